"""FedSS: softmax over the own classes and a sample of others, chosen by the device (SPEC 5).

Efficient Image Representation Learning with Federated Sampled Softmax
  Sagar M. Waghmare, Hang Qi, Huizhong Chen, Mikhail Sirotenko, Tomer Meron. arXiv 2022 (S4).
  https://arxiv.org/abs/2203.04888
"""
