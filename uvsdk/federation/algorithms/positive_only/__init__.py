"""Positives only, a baseline of FedAwS: FedAwS without its spreadout, which collapses and shows that (SPEC 2.9).

Federated Learning with Only Positive Labels
  Felix X. Yu, Ankit Singh Rawat, Aditya Krishna Menon, Sanjiv Kumar. ICML 2020 (S0).
  https://arxiv.org/abs/2004.10342

The paper calls it Baseline-1 (S0 section 6).
"""
