"""The trunks of the reproductions that are no backbone of the product."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_GROUPS = 8
# Keeps the gradient of the deviation finite where a channel is constant over time.
_VARIANCE_FLOOR = 1e-5
# The lowest band is silent in nearly every utterance: its statistics are left small.
_LEAST_SCALE = 0.3


class SpeakerTdnn(nn.Module):
    """Log-mel frames, float32 (B, frames, 40), to a 128-d speaker embedding, not normalised; 0.1 M parameters.

    Dilated convolutions over time, then the mean and the deviation of each channel (the x-vector family, Snyder et al.
    2018), with GroupNorm and two first layers of stride 2, each of which halves the cost of the rest.

    Args:
        dimension: d of the embedding.
        code: length c of a code head, FedUV's W: one more linear layer without a bias, whose output (B, c) replaces
            the embedding; 0 for none.
    """

    def __init__(self, dimension: int = 128, *, code: int = 0) -> None:
        super().__init__()
        self.frames = nn.Sequential(
            *_layer(40, 64, width=5, stride=2),
            *_layer(64, 96, width=3, stride=2, dilation=2),
            *_layer(96, 96, width=3, dilation=3),
            *_layer(96, 128, width=1),
        )
        self.linear = nn.Linear(2 * 128, dimension)
        self.code = nn.Linear(dimension, code, bias=False) if code else None
        self.dimension = code or dimension

    def forward(self, frames: Tensor) -> Tensor:
        """Embed (B, frames, 40) as (B, ``dimension``)."""
        z = self.before_code(frames)
        return z if self.code is None else self.code(z)

    def before_code(self, frames: Tensor) -> Tensor:
        """z, float32 (B, d): what the code head is applied to."""
        hidden = self.frames(frames.transpose(1, 2))
        mean = hidden.mean(dim=2, keepdim=True)
        deviation = torch.sqrt((hidden - mean).square().mean(dim=2) + _VARIANCE_FLOOR)
        z: Tensor = self.linear(torch.cat((mean.squeeze(2), deviation), dim=1))
        return z


def _layer(inputs: int, outputs: int, *, width: int, stride: int = 1, dilation: int = 1) -> tuple[nn.Module, ...]:
    padding = dilation * (width // 2)
    convolution = nn.Conv1d(inputs, outputs, width, stride=stride, dilation=dilation, padding=padding)
    return convolution, nn.GroupNorm(_GROUPS, outputs), nn.ReLU()


def speaker_tdnn(seed: int, *, code: int = 0) -> SpeakerTdnn:
    """A :class:`SpeakerTdnn` whose random values come from ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SpeakerTdnn(code=code)


class SpeakerStatistics(nn.Module):
    """Log-mel frames, float32 (B, frames, 40), to a 128-d speaker embedding, not normalised; 0.13 M parameters.

    The mean, the deviation and the mean absolute change over time of each band, standardised, then three linear
    layers. It pools before it learns and so costs a fraction of :class:`SpeakerTdnn`.

    Args:
        public: float32 (n, frames, 40), public utterances whose statistics are standardised to mean 0 and deviation 1.
        dimension: d of the embedding.
        code: length c of a code head, FedUV's W, as in :class:`SpeakerTdnn`.
    """

    centre: Tensor
    scale: Tensor

    def __init__(self, public: Tensor, dimension: int = 128, *, code: int = 0) -> None:
        super().__init__()
        statistics = _statistics(public)
        self.register_buffer("centre", statistics.mean(dim=0))
        self.register_buffer("scale", statistics.std(dim=0).clamp_min(_LEAST_SCALE))
        self.layers = nn.Sequential(
            nn.Linear(3 * 40, 256),
            nn.GroupNorm(_GROUPS, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.GroupNorm(_GROUPS, 256),
            nn.ReLU(),
            nn.Linear(256, dimension),
        )
        self.code = nn.Linear(dimension, code, bias=False) if code else None
        self.dimension = code or dimension

    def forward(self, frames: Tensor) -> Tensor:
        """Embed (B, frames, 40) as (B, ``dimension``)."""
        z: Tensor = self.layers((_statistics(frames) - self.centre) / self.scale)
        return z if self.code is None else self.code(z)


def _statistics(frames: Tensor) -> Tensor:
    """Mean, deviation and mean absolute change over time of each band: (B, frames, 40) to (B, 120)."""
    change = (frames[:, 1:] - frames[:, :-1]).abs().mean(dim=1)
    return torch.cat((frames.mean(dim=1), frames.std(dim=1), change), dim=1)
