"""The server's side of training towards fixed class vectors: draw them once."""

from __future__ import annotations

from uvsdk.federation.algorithms.fixed.payload import Payload, Settings, Task
from uvsdk.federation.classes import matrix
from uvsdk.federation.classes.server import class_rows

SERVER = class_rows(Settings, Task, Payload, check=matrix.check_user, step=matrix.count_round)
