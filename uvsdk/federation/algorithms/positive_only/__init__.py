"""Positives only: FedAwS without its spreadout (Baseline-1, SPEC 2.9). It collapses, and shows that it does."""
