"""FedUV: everybody trains towards an error-correcting codeword of their own (SPEC 6).

Federated Learning of User Verification Models Without Sharing Embeddings
  Hossein Hosseini, Hyunsin Park, Sungrack Yun, Christos Louizos, Joseph Soriaga, Max Welling. ICML 2021 (UV).
  https://arxiv.org/abs/2104.08776
"""
