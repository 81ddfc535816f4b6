"""FedAwS: positives on the device, spreadout of all class vectors on the server (SPEC 2).

Federated Learning with Only Positive Labels
  Felix X. Yu, Ankit Singh Rawat, Aditya Krishna Menon, Sanjiv Kumar. ICML 2020 (S0).
  https://arxiv.org/abs/2004.10342
"""
