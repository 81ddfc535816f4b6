"""FedMetric: a metric loss on the device against the proxy balls of others (SPEC 4).

Federated Learning with Metric Loss
  Hyunsin Park, Hossein Hosseini, Sungrack Yun. FL-ICML workshop 2021 (S3).
  https://federated-learning.org/fl-icml-2021/
"""
