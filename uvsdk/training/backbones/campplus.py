"""CAM++: a speaker encoder of masked, densely connected time-delay layers, which knows telephones and short clips.

Source: Wang et al., "CAM++: A Fast and Efficient Network for Speaker Verification Using Context-Aware Masking",
Interspeech 2023, arXiv 2303.00332, with the weights that its authors publish (3D-Speaker, 200,000 speakers of Chinese
and English). Every BatchNorm of the paper is gone: its statistics, as they were at the end of its training, are folded
into the convolution before it or, where there is none, into a scale and a shift. A device's batch holds one person, so
statistics taken from it would drift to that person and tell of them; what is left of the layers is trained like the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor, nn, relu

from uvsdk.errors import WeightsError
from uvsdk.training import weights as catalogue
from uvsdk.training.backbones import Backbone, Pooling, load_tensors, read_state

_MELS = 80
_FRONT = 32
"""Channels of the two-dimensional front end."""
_BOTTLENECK = 128
_GROWTH = 32
"""Channels that every layer of a block adds."""
_BLOCKS = ((12, 1), (24, 2), (16, 2))
"""Layers of each block, and their dilation."""
_SEGMENT = 100
"""Frames, of 20 ms, over which a mask hears the nearer context (the paper's s)."""
_SPAN = 25
"""Frames, of 20 ms, in a span."""
_EPSILON = 1e-5
"""BatchNorm's, which the published statistics are used with."""
# Keeps the gradient of the deviation finite where a channel is constant over time.
_VARIANCE_FLOOR = 1e-10


class CamPlusPlus(Backbone):
    """float32 (B, frames, 80) log mel energies less their mean over time -> (B, 192); 6.84 M parameters."""

    name = "campplus"
    modality = "voice"
    dimension = 192
    view_shape = (300, _MELS)
    dynamic_axes = MappingProxyType({1: "frames"})
    preprocessing = MappingProxyType(
        {
            "sample_rate": 16_000,
            "mels": _MELS,
            "window_s": 0.025,
            "hop_s": 0.010,
            "bank": "kaldi",
            "scale": "log",
            "mean": "utterance",
            "view_frames": 300,
            "view_hop_frames": 300,
            "windows": "even",
            # Of the exported graph where the head is trained; see uvsdk.training.graphs.campplus.integer.
            "frozen": "int8",
            "minimum_speech_s": 0.5,
            # Of the difference between two parts by spans; examples/reproduce/conditions has how often it refuses.
            "second_speaker": 0.55,
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.front = _Front()
        channels = 128
        self.tdnn = nn.Conv1d(_FRONT * _MELS // 8, channels, 5, stride=2, padding=2)
        stages: list[nn.Module] = []
        for place, (layers, dilation) in enumerate(_BLOCKS):
            block = _Block(channels, layers, dilation)
            channels += layers * _GROWTH
            # The last transition's output is normalised, which its bias is for.
            stages.append(_Stage(block, _Transition(channels, channels // 2, bias=place == len(_BLOCKS) - 1)))
            channels //= 2
        self.stages = nn.Sequential(*stages)
        self.dense = nn.Linear(2 * channels, self.dimension)
        self.statistics = _Statistics(self.dense)

    def forward(self, views: Tensor) -> Tensor:
        """See :class:`Backbone`."""
        rows = relu(self.tdnn(self.front(views)))
        z: Tensor = self.dense(self.statistics(self.stages(rows)))
        return z

    def split(self, part: str) -> tuple[nn.Module, nn.Module]:
        """See :class:`Backbone`: the head is the linear layer, the block begins with the last of the three blocks."""
        before = (self.front, self.tdnn, nn.ReLU())
        if part == "head":
            return nn.Sequential(*before, *self.stages, self.statistics), self.dense
        return nn.Sequential(*before, *self.stages[:2]), nn.Sequential(self.stages[2], self.statistics, self.dense)

    @classmethod
    def load(cls, *, weights: Path | None = None, download: bool = False, seed: int = 0) -> Self:
        """Start from the pretrained weights; ``seed`` is not used."""
        path = catalogue.find("campplus", path=weights, download=download)
        backbone = cls()
        load_tensors(backbone, _folded(read_state(path), path), path)
        source = catalogue.CATALOGUE["campplus"].source if weights is None else f"{path.name}, given by path"
        backbone.sources = (source,)
        return backbone.eval()


class _Front(nn.Module):
    """The front end: two-dimensional convolutions, after which mels are an eighth, (B, T, 80) -> (B, 320, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, _FRONT, 3, padding=1)
        self.residuals = nn.Sequential(*(_Residual(stride) for stride in (2, 1, 2, 1)))
        self.last = nn.Conv2d(_FRONT, _FRONT, 3, stride=(2, 1), padding=1)

    def forward(self, views: Tensor) -> Tensor:
        rows = relu(self.first(views.transpose(1, 2).unsqueeze(1)))
        return relu(self.last(self.residuals(rows))).flatten(1, 2)


class _Residual(nn.Module):
    """Two convolutions beside a shortcut; ``stride`` is that of the mels."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(_FRONT, _FRONT, 3, stride=(stride, 1), padding=1)
        self.second = nn.Conv2d(_FRONT, _FRONT, 3, padding=1)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(_FRONT, _FRONT, 1, stride=(stride, 1))

    def forward(self, rows: Tensor) -> Tensor:
        return relu(self.second(relu(self.first(rows))) + self.shortcut(rows))


class _Scaled(nn.Module):
    """A scale and a shift of each channel, then ReLU; (B, channels, T)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, rows: Tensor) -> Tensor:
        return relu(rows * self.weight[:, None] + self.bias[:, None])


class _Masked(nn.Module):
    """A layer of a block: a bottleneck, a convolution over time, and the mask that its context lays over it."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.scaled = _Scaled(channels)
        self.bottleneck = nn.Conv1d(channels, _BOTTLENECK, 1)
        self.local = nn.Conv1d(_BOTTLENECK, _GROWTH, 3, padding=dilation, dilation=dilation, bias=False)
        self.context = nn.Conv1d(_BOTTLENECK, _BOTTLENECK // 2, 1)
        self.mask = nn.Conv1d(_BOTTLENECK // 2, _GROWTH, 1)

    def forward(self, rows: Tensor) -> Tensor:
        narrow = relu(self.bottleneck(self.scaled(rows)))
        heard = narrow.mean(dim=2, keepdim=True) + _segments(narrow)
        out: Tensor = self.local(narrow) * torch.sigmoid(self.mask(relu(self.context(heard))))
        return out


class _Block(nn.ModuleList):
    """Layers each of which hears all before it."""

    def __init__(self, channels: int, layers: int, dilation: int) -> None:
        super().__init__(_Masked(channels + place * _GROWTH, dilation) for place in range(layers))

    def forward(self, rows: Tensor) -> Tensor:
        for layer in self:
            rows = torch.cat((rows, layer(rows)), dim=1)
        return rows


class _Transition(nn.Module):
    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.scaled = _Scaled(inputs)
        self.linear = nn.Conv1d(inputs, outputs, 1, bias=bias)

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.linear(self.scaled(rows))
        return out


class _Stage(nn.Sequential):
    """A block and the transition that halves its channels."""


class _Statistics(Pooling):
    """Mean and deviation over time, and of half seconds; the rows are 20 ms apart."""

    def forward(self, rows: Tensor) -> Tensor:
        return _statistics(rows)

    def spans(self, rows: Tensor) -> Tensor:
        """See :class:`Pooling`: max(1, round(T / 25)) spans of equal length."""
        rows = relu(rows)
        # Counted in the graph, which takes any number of frames.
        frame = torch.ones_like(rows[0, 0]).long().cumsum(0) - 1
        frames = frame[-1] + 1
        count = ((frames + _SPAN // 2) // _SPAN).clamp(min=1)
        # A tensor, so that the exported graph counts too; the type stubs know numbers only.
        spans = torch.arange(count)[:, None]  # type: ignore[call-overload]
        member = (spans == frame * count // frames).float()
        sizes = member.sum(dim=1)
        shares = (member / sizes[:, None]).T
        mean = rows @ shares
        spread = (rows.square() @ shares - mean.square()).clamp(min=0)
        variance = spread * (sizes / (sizes - 1).clamp(min=1))
        return torch.cat((mean, torch.sqrt(variance + _VARIANCE_FLOOR)), dim=1).transpose(1, 2)


def _statistics(rows: Tensor) -> Tensor:
    """Mean and unbiased deviation over time of what is above zero, (B, channels, T) -> (B, 2 * channels)."""
    rows = relu(rows)
    mean = rows.mean(dim=2, keepdim=True)
    # Counted in the graph, which takes any number of frames.
    count = torch.ones_like(rows[:1, :1]).sum(dim=2)
    variance = (rows - mean).square().sum(dim=2) / (count - 1).clamp(min=1)
    return torch.cat((mean.squeeze(2), torch.sqrt(variance + _VARIANCE_FLOOR)), dim=1)


def _segments(rows: Tensor) -> Tensor:
    """The mean of the segment that each frame lies in, (B, channels, T); the last segment may be shorter."""
    batch, channels, count = rows.shape
    short = -count % _SEGMENT
    whole = nn.functional.pad(rows, (0, short)).reshape(batch, channels, -1, _SEGMENT)
    sizes = nn.functional.pad(torch.ones_like(rows[:1, :1]), (0, short)).reshape(1, 1, -1, _SEGMENT).sum(dim=3)
    means = whole.sum(dim=3) / sizes
    return means.unsqueeze(3).expand(-1, -1, -1, _SEGMENT).reshape(batch, channels, -1)[:, :, :count]


def _folded(state: Mapping[str, object], path: Path) -> dict[str, object]:
    """The published tensors under the names of :class:`CamPlusPlus`, without a BatchNorm."""
    published = _Published(state, path)
    made = {
        **published.convolution("front.first", "head.conv1", "head.bn1"),
        **published.convolution("front.last", "head.conv2", "head.bn2"),
        **published.convolution("tdnn", "xvector.tdnn.linear", "xvector.tdnn.nonlinear.batchnorm"),
        **published.convolution("dense", "xvector.dense.linear", "xvector.dense.nonlinear.batchnorm"),
    }
    made["dense.weight"] = made["dense.weight"].squeeze(-1)
    for place in range(4):
        here, there = f"front.residuals.{place}", f"head.layer{place // 2 + 1}.{place % 2}"
        made |= published.convolution(f"{here}.first", f"{there}.conv1", f"{there}.bn1")
        made |= published.convolution(f"{here}.second", f"{there}.conv2", f"{there}.bn2")
        if place % 2 == 0:
            made |= published.convolution(f"{here}.shortcut", f"{there}.shortcut.0", f"{there}.shortcut.1")
    for number, (layers, _) in enumerate(_BLOCKS, start=1):
        stage = f"stages.{number - 1}"
        for layer in range(layers):
            here, there = f"{stage}.0.{layer}", f"xvector.block{number}.tdnnd{layer + 1}"
            made |= published.normalisation(f"{here}.scaled", f"{there}.nonlinear1.batchnorm")
            made |= published.convolution(f"{here}.bottleneck", f"{there}.linear1", f"{there}.nonlinear2.batchnorm")
            made[f"{here}.local.weight"] = published[f"{there}.cam_layer.linear_local.weight"]
            for mine, name in (("context", "linear1"), ("mask", "linear2")):
                for part in ("weight", "bias"):
                    made[f"{here}.{mine}.{part}"] = published[f"{there}.cam_layer.{name}.{part}"]
        there = f"xvector.transit{number}"
        made |= published.normalisation(f"{stage}.1.scaled", f"{there}.nonlinear.batchnorm")
        made[f"{stage}.1.linear.weight"] = published[f"{there}.linear.weight"]
    last = f"stages.{len(_BLOCKS) - 1}.1.linear"
    made |= published.convolution(last, f"xvector.transit{len(_BLOCKS)}.linear", "xvector.out_nonlinear.batchnorm")
    return dict(made)


class _Published:
    """The tensors of a checkpoint. Raises :class:`WeightsError` for one that it lacks."""

    def __init__(self, state: Mapping[str, object], path: Path) -> None:
        self._state = state
        self._path = path

    def __getitem__(self, name: str) -> Tensor:
        found = self._state.get(name)
        if not isinstance(found, Tensor):
            raise WeightsError(f"{self._path}: there is no tensor {name}; expected CAM++ as 3D-Speaker publishes it")
        return found

    def normalisation(self, mine: str, name: str) -> dict[str, Tensor]:
        """A BatchNorm as a scale and a shift."""
        scale, shift = self._scale(name, len(self[f"{name}.running_mean"]))
        return {f"{mine}.weight": scale.float(), f"{mine}.bias": shift.float()}

    def convolution(self, mine: str, name: str, norm: str) -> dict[str, Tensor]:
        """A convolution without bias, and the BatchNorm behind it, as one convolution."""
        weight = self[f"{name}.weight"].double()
        scale, shift = self._scale(norm, len(weight))
        scaled = weight * scale.reshape(-1, *(1,) * (weight.ndim - 1))
        return {f"{mine}.weight": scaled.float(), f"{mine}.bias": shift.float()}

    def _scale(self, name: str, channels: int) -> tuple[Tensor, Tensor]:
        """Scale and shift, float64 (channels,), that a BatchNorm is at inference."""
        parts = ["running_mean", "running_var"]
        if f"{name}.weight" in self._state:  # that of the embedding has none
            parts += ["weight", "bias"]
        found = [self[f"{name}.{part}"].double() for part in parts]
        if any(part.shape != (channels,) for part in found):
            raise WeightsError(f"{self._path}: {name} is not of {channels} channels")
        mean, variance, *learnt = found
        weight, bias = learnt or (torch.ones_like(mean), torch.zeros_like(mean))
        scale = weight * torch.rsqrt(variance + _EPSILON)
        return scale, bias - mean * scale


BACKBONE = CamPlusPlus
