"""The device's half of training towards a fixed class vector: the trunk moves, the vector does not."""

from __future__ import annotations

from uvsdk.federation import positive
from uvsdk.federation.algorithms.fixed.payload import Payload, Settings, Task

CLIENT = positive.client(Settings, Task, lambda vector: Payload())
