"""FedALC: FedAwS whose spreadout knows which classes share samples (SPEC 3).

Federated Learning with Only Positive Labels by Exploring Label Correlations
  Xuming An, Dui Wang, Li Shen, Yong Luo, Han Hu, Bo Du, Yonggang Wen, Dacheng Tao. arXiv 2024 (S2).
  https://arxiv.org/abs/2404.15598
"""
