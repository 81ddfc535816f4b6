"""FedAwS: positives on the device, spreadout of all class vectors on the server (Yu et al. 2020; SPEC 2)."""
