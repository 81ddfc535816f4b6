"""Federated training of many simulated devices in one process, with the records that production runs.

>>> import torch
>>> from uvsdk.federation.messages import TrainingConfig
>>> digits = torch.eye(4).repeat(4, 1).split(4)
>>> population = Tensors({f"device {number}": rows for number, rows in enumerate(digits)})
>>> config = TrainingConfig("lab", "tensors", "custom", "fedaws", rounds=2, seed=1)
>>> simulation = Simulation(config, torch.nn.Linear(4, 3), population)
>>> [record.participants for record in simulation.run()]
[4, 4]
"""

from __future__ import annotations

from uvsdk.simulation.engine import Simulation
from uvsdk.simulation.population import Frozen, Identity, Prepared, Tensors
from uvsdk.simulation.records import Engine, RoundRecord

__all__ = ["Engine", "Frozen", "Identity", "Prepared", "RoundRecord", "Simulation", "Tensors"]
