"""The server's side of positives-only training: write the rows that came back, nothing else."""

from __future__ import annotations

from uvsdk.federation.algorithms.positive_only.payload import Payload, Settings, Task
from uvsdk.federation.classes import matrix
from uvsdk.federation.classes.server import class_rows

SERVER = class_rows(Settings, Task, Payload, check=matrix.check_row, step=matrix.write_sent)
