"""FedALC: FedAwS whose spreadout knows which classes share samples (S2; SPEC 3)."""
