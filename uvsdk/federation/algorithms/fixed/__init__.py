"""Fixed class vectors, a baseline of FedAwS: drawn once, never moved, only the trunk is trained (SPEC 2.9).

Federated Learning with Only Positive Labels
  Felix X. Yu, Ankit Singh Rawat, Aditya Krishna Menon, Sanjiv Kumar. ICML 2020 (S0).
  https://arxiv.org/abs/2004.10342

The paper calls it Baseline-2 (S0 section 6), S2 FedAvg-fixed.
"""
