"""Softmax over all classes on every device: the oracle that FedAwS and the others are compared with (SPEC 2.9).

Federated Learning with Only Positive Labels
  Felix X. Yu, Ankit Singh Rawat, Aditya Krishna Menon, Sanjiv Kumar. ICML 2020 (S0).
  https://arxiv.org/abs/2004.10342

The paper calls it Softmax, an oracle (S0 section 6); S4 FullSoftmax (S4 section 4.1).
"""
