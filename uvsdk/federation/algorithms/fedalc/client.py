"""The device's side of FedALC, the same as in FedAwS: train the trunk and the own class vector, send both."""

from __future__ import annotations

from uvsdk.federation.algorithms.fedalc.payload import Payload, Settings, Task
from uvsdk.federation.classes.client import positive_hinge

CLIENT = positive_hinge(Settings, Task, Payload)
