"""Softmax over all classes on every device: the oracle that the other methods are compared with (SPEC 2.9)."""
