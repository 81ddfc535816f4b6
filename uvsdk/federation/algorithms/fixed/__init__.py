"""Fixed class vectors: drawn once, never moved, only the trunk is trained (Baseline-2, SPEC 2.9)."""
