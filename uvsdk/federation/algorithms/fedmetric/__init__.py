"""FedMetric: a metric loss on the device against the proxy balls of others (Park, Hosseini, Yun; SPEC 4)."""
