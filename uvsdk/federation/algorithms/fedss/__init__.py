"""FedSS: softmax over the own classes and a sample of others, chosen by the device (Waghmare et al. 2022; SPEC 5)."""
