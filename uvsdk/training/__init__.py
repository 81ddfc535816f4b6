"""From a backbone to a bundle, and from samples to an update.

Rooms: :mod:`~uvsdk.training.participation` (one device's part in a round; needs no torch) · :mod:`~uvsdk.training.loop`
(the one training loop) · :mod:`~uvsdk.training.backbones` (trainable trunks) · :mod:`~uvsdk.training.weights` and
:mod:`~uvsdk.training.catalogue` (pretrained weights) · :mod:`~uvsdk.training.graphs` (networks that are used as they
are) · :mod:`~uvsdk.training.export` (to a bundle).
"""
