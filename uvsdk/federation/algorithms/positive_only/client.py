"""The device's half of positives-only training: train the trunk and the own class vector, send both."""

from __future__ import annotations

from uvsdk.federation import positive
from uvsdk.federation.algorithms.positive_only.payload import Payload, Settings, Task

CLIENT = positive.client(Settings, Task, Payload)
