"""FedALC-fixed: class vectors optimised before training for what occurs together, sent once, frozen (SPEC 3.3).

Federated Learning with Only Positive Labels by Exploring Label Correlations
  Xuming An, Dui Wang, Li Shen, Yong Luo, Han Hu, Bo Du, Yonggang Wen, Dacheng Tao. arXiv 2024 (S2).
  https://arxiv.org/abs/2404.15598
"""
