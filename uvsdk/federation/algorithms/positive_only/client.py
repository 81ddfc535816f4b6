"""The device's side of positives-only training: train the trunk and the own class vector, send both."""

from __future__ import annotations

from uvsdk.federation.algorithms.positive_only.payload import Payload, Settings, Task
from uvsdk.federation.classes.client import positive_hinge

CLIENT = positive_hinge(Settings, Task, Payload)
