"""The device's half of FedAwS: train the trunk and the own class vector, send both."""

from __future__ import annotations

from uvsdk.federation import positive
from uvsdk.federation.algorithms.fedaws.payload import Payload, Settings, Task

CLIENT = positive.client(Settings, Task, Payload)
