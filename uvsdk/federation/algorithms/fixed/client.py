"""The device's side of training towards a fixed class vector: the trunk moves, the vector does not."""

from __future__ import annotations

from uvsdk.federation.algorithms.fixed.payload import Payload, Settings, Task
from uvsdk.federation.classes.client import positive_hinge

CLIENT = positive_hinge(Settings, Task, lambda vector: Payload())
