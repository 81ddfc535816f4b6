"""The device's side of the softmax oracle: train the trunk and all columns, send both changes."""

from __future__ import annotations

from uvsdk.federation.algorithms.softmax.payload import Payload, Settings, Task
from uvsdk.federation.sampled_softmax.client import sampled_softmax

CLIENT = sampled_softmax(Settings, Task, Payload)
