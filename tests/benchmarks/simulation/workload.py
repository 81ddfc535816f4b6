"""What every contestant trains: the same devices, network, loss and number of steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

DEVICES, SAMPLES, WIDTH, BATCH = 50, 100, 128, 20
RATE = 0.1


def network() -> nn.Sequential:
    """98,880 parameters."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 64))


def samples(device: int, count: int = SAMPLES) -> Tensor:
    """float32 (count, WIDTH), those of one device."""
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(device))


def row(device: int) -> Tensor:
    """The device's own class vector, unit."""
    return nn.functional.normalize(torch.randn(64, generator=torch.Generator().manual_seed(-1 - device)), dim=0)


def local_steps(module: nn.Module, features: Tensor, own: Tensor, steps: int) -> None:
    """Plain SGD on the squared hinge of the cosine to ``own``, batch after batch of a permutation, end to end."""
    order = torch.cat([torch.randperm(len(features)) for _ in range(-(-steps * BATCH // len(features)))])
    for step in range(steps):
        batch = features[order[step * BATCH : (step + 1) * BATCH]]
        cosines = nn.functional.normalize(module(batch), dim=1) @ own
        module.zero_grad()
        torch.relu(0.9 - cosines).square().mean().backward()
        with torch.no_grad():
            for value in module.parameters():
                value.sub_(value.grad, alpha=RATE)
