"""FedALC-fixed: class vectors optimised before training for what occurs together, sent once, frozen (S2; SPEC 3.3)."""
