"""A real ray on this machine: the same bits as one process, in a process of its own that ends what it started."""

import os
import subprocess
import sys

import pytest

CODE = """
import sys
import torch
from torch import nn
from uvsdk.training import backbones
from uvsdk.federation.messages import TrainingConfig
from uvsdk.simulation import Engine, Simulation, Tensors
from uvsdk.simulation.ray_backend import RayWorkers

def trunk():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 15))

draw = torch.Generator().manual_seed(0)
population = Tensors({f"d{n}": torch.randn(3 + n % 2, 8, generator=draw) + n for n in range(7)})
with RayWorkers(trunk(), population, workers=1) as workers:
    for steps, batching in ((1, "auto"), (2, "stacked")):
        config = TrainingConfig("lab", "tensors", "custom", "fedss", local_steps=steps, rounds=2, seed=3, batch_size=4)
        engine = Engine(batching=batching, chunk_clients=2)
        here = Simulation(config, trunk(), population, engine)
        here.run()
        whole = Simulation(config, trunk(), population, Engine(batching=batching))
        whole.run()
        there = Simulation(config, trunk(), population, engine, workers=workers)
        there.run()
        assert here.theta.tobytes() == there.theta.tobytes(), batching
        # Cut into other chunks, sums are rounded elsewhere: a few units in the last place of numbers near 1.
        assert (abs(there.theta - whole.theta) < 2e-6).all(), batching
        print("same bits", batching)
import ray
assert not ray.is_initialized()
"""


def test_ray_gives_the_bits_of_one_process() -> None:
    pytest.importorskip("ray", reason="needs the extra scale")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:2] == ["same bits auto", "same bits stacked"]
