"""A tiny encoder of handwriting, trained from nothing in seconds: for a first try, for tests and for teaching."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Self

from torch import Tensor, nn

from uvsdk.training.backbones import Backbone, load_tensors, read_state


class DigitsCnn(Backbone):
    """float32 (B, 1, 8, 8) ink 0..1 -> (B, 32); 22 k parameters."""

    name = "digits-cnn"
    modality = "handwriting"
    dimension = 32
    view_shape = (1, 8, 8)
    preprocessing = MappingProxyType({"size": 8})

    def __init__(self) -> None:
        super().__init__()
        self.ink = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.GroupNorm(4, 32),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.linear = nn.Linear(32 * 4 * 4, self.dimension)

    def forward(self, views: Tensor) -> Tensor:
        """See :class:`Backbone`."""
        z: Tensor = self.linear(self.ink(views))
        return z

    def split(self, part: str) -> tuple[nn.Module, nn.Module]:
        """See :class:`Backbone`: the head is the linear layer, the block begins with the second convolution."""
        if part == "head":
            return self.ink, self.linear
        return self.ink[:3], nn.Sequential(*self.ink[3:], self.linear)

    @classmethod
    def load(cls, *, weights: Path | None = None, download: bool = False, seed: int = 0) -> Self:
        """Start from a saved ``state_dict`` where ``weights`` names one, else from ``seed``; nothing is fetched."""
        backbone = cls.random(seed)
        if weights is not None:
            load_tensors(backbone, read_state(weights), weights)
            backbone.sources = (f"{weights.name}, given by path",)
        return backbone


BACKBONE = DigitsCnn
