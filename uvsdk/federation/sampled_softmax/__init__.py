"""Softmax over all classes or a sample of them, which FedSS and the softmax oracle share: the label space
(``columns``), the round on the server (``server``), the loss on the device (``client``, torch).
"""
