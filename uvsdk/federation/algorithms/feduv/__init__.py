"""FedUV: everybody trains towards an error-correcting codeword of their own (Hosseini et al. 2021; SPEC 6)."""
