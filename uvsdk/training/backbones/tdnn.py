"""A small speaker encoder to train from nothing: dilated convolutions over time, then mean and deviation.

Source: the x-vector family, Snyder et al., "X-Vectors: Robust DNN Embeddings for Speaker Recognition", ICASSP 2018,
with GroupNorm (Wu & He 2018) in place of BatchNorm, since a device's batch holds one person only, and a first layer
of stride 2, which halves the cost of the rest.
"""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor, nn

from uvsdk.training.backbones import Backbone

_GROUPS = 8
# Keeps the gradient of the deviation finite where a channel is constant over time.
_VARIANCE_FLOOR = 1e-5


class Tdnn(Backbone):
    """float32 (B, frames, 40) log mel with the utterance's mean removed -> (B, 128); 0.13 M parameters."""

    name = "tdnn"
    modality = "voice"
    dimension = 128
    view_shape = (100, 40)
    dynamic_axes = MappingProxyType({1: "frames"})
    preprocessing = MappingProxyType(
        {
            "sample_rate": 16_000,
            "mels": 40,
            "window_s": 0.025,
            "hop_s": 0.010,
            "scale": "log",
            "mean": "utterance",
            "view_frames": 100,
            "view_hop_frames": 50,
            "minimum_speech_s": 0.5,
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Sequential(
            *_layer(40, 64, width=5, stride=2),
            *_layer(64, 96, width=3, dilation=2),
            *_layer(96, 96, width=3, dilation=3),
            *_layer(96, 192, width=1),
        )
        self.linear = nn.Linear(2 * 192, self.dimension)

    def forward(self, views: Tensor) -> Tensor:
        """See :class:`Backbone`."""
        z: Tensor = self.linear(_statistics(self.frames(views.transpose(1, 2))))
        return z

    def split(self, part: str) -> tuple[nn.Module, nn.Module]:
        """See :class:`Backbone`: the head is the linear layer, the block begins with the last convolution."""
        if part == "head":
            return nn.Sequential(_ChannelsFirst(), *self.frames, _Statistics()), self.linear
        before = nn.Sequential(_ChannelsFirst(), *self.frames[:9])
        return before, nn.Sequential(*self.frames[9:], _Statistics(), self.linear)


class _ChannelsFirst(nn.Module):
    def forward(self, views: Tensor) -> Tensor:
        return views.transpose(1, 2)


class _Statistics(nn.Module):
    def forward(self, frames: Tensor) -> Tensor:
        return _statistics(frames)


def _statistics(frames: Tensor) -> Tensor:
    """Mean and deviation over time, (B, channels, T) -> (B, 2 * channels)."""
    mean = frames.mean(dim=2, keepdim=True)
    deviation = torch.sqrt((frames - mean).square().mean(dim=2) + _VARIANCE_FLOOR)
    return torch.cat((mean.squeeze(2), deviation), dim=1)


def _layer(inputs: int, outputs: int, *, width: int, stride: int = 1, dilation: int = 1) -> tuple[nn.Module, ...]:
    padding = dilation * (width // 2)
    convolution = nn.Conv1d(inputs, outputs, width, stride=stride, dilation=dilation, padding=padding)
    return convolution, nn.GroupNorm(_GROUPS, outputs), nn.ReLU()


BACKBONE = Tdnn
