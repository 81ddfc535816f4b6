"""A tiny encoder of handwriting, trained from nothing in seconds: for a first try, for tests and for teaching."""

from __future__ import annotations

from types import MappingProxyType

from torch import Tensor, nn

from uvsdk.training.backbones import Backbone


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


BACKBONE = DigitsCnn
