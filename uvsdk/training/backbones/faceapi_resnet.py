"""dlib's face ResNet, starting from the uint8-quantised copy of its weights that face-api ships.

Source: D. King, ``dlib_face_recognition_resnet_model_v1`` (a 29-layer ResNet after He et al. 2016), as ported by
face-api.js. Two things differ from that port: the affine layer behind every convolution is folded into it, and
images are normalised inside the graph, so that a view is plain RGB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d, pad, relu

from uvsdk.arrays import Float32
from uvsdk.errors import WeightsError
from uvsdk.training import weights as catalogue
from uvsdk.training.backbones import Backbone, load_tensors

_MEAN_RGB = (122.782, 117.001, 104.298)
_MANIFEST = catalogue.CATALOGUE["faceapi-resnet-manifest"]
_LIST_LIMIT = 1 << 20


class FaceApiResnet(Backbone):
    """float32 (B, 3, 150, 150) RGB 0-255 -> (B, 128); 5.6 M parameters.

    dlib compares these embeddings by Euclidean distance; they are close to unit length, so the cosine that this
    library uses ranks pairs almost alike.
    """

    name = "faceapi-resnet"
    modality = "face"
    dimension = 128
    view_shape = (3, 150, 150)
    preprocessing = MappingProxyType({"size": 150, "template": "dlib"})

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(_MEAN_RGB).reshape(1, 3, 1, 1), persistent=False)
        self.conv32_down = nn.Conv2d(3, 32, 7, stride=2)
        self.conv32_1, self.conv32_2, self.conv32_3 = (_Residual(32) for _ in range(3))
        # Spatial sides behind the stages: 35 -> 17 -> 8 -> 4 -> 2; pooling and convolution disagree in the last two.
        self.conv64_down = _ResidualDown(32, 64)
        self.conv64_1, self.conv64_2, self.conv64_3 = (_Residual(64) for _ in range(3))
        self.conv128_down = _ResidualDown(64, 128)
        self.conv128_1, self.conv128_2 = (_Residual(128) for _ in range(2))
        self.conv256_down = _ResidualDown(128, 256, short=True)
        self.conv256_1, self.conv256_2 = (_Residual(256) for _ in range(2))
        self.conv256_down_out = _ResidualDown(256, 256, short=True)
        self.fc = nn.Linear(256, 128, bias=False)

    def forward(self, views: Tensor) -> Tensor:
        """See :class:`Backbone`."""
        out = max_pool2d(relu(self.conv32_down((views - self.mean) / 256.0)), 3, 2)
        out = self.conv32_3(self.conv32_2(self.conv32_1(out)))
        out = self.conv64_3(self.conv64_2(self.conv64_1(self.conv64_down(out))))
        out = self.conv128_2(self.conv128_1(self.conv128_down(out)))
        out = self.conv256_2(self.conv256_1(self.conv256_down(out)))
        z: Tensor = self.fc(self.conv256_down_out(out).mean(dim=(2, 3)))
        return z

    def split(self, part: str) -> tuple[nn.Module, nn.Module]:
        """See :class:`Backbone`: the head is the linear layer, the block begins with the last residual layer."""
        first = (_First(self.mean, self.conv32_down), self.conv32_1, self.conv32_2, self.conv32_3, self.conv64_down)
        second = (self.conv64_1, self.conv64_2, self.conv64_3, self.conv128_down, self.conv128_1, self.conv128_2)
        third = (self.conv256_down, self.conv256_1, self.conv256_2)
        last = (self.conv256_down_out, _Mean())
        if part == "head":
            return nn.Sequential(*first, *second, *third, *last), self.fc
        return nn.Sequential(*first, *second, *third), nn.Sequential(*last, self.fc)

    @classmethod
    def load(cls, *, weights: Path | None = None, download: bool = False, seed: int = 0) -> Self:
        """Start from the pretrained weights; ``seed`` is not used.

        The list of tensors is read from beside ``weights`` where it lies there, else found like any weights.
        """
        path = catalogue.find("faceapi-resnet", path=weights, download=download)
        beside = path.with_name(_MANIFEST.file)
        listing = beside if beside.is_file() else catalogue.find(_MANIFEST.name, download=download)
        backbone = cls()
        load_tensors(backbone, dict(_fold(_dequantise(path, listing), path)), path)
        known = catalogue.CATALOGUE["faceapi-resnet"].source
        backbone.sources = (known if weights is None else f"{path.name}, given by path",)
        return backbone.eval()


class _First(nn.Module):
    """Pixels to the first stage, (B, 32, 35, 35)."""

    mean: Tensor

    def __init__(self, mean: Tensor, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.register_buffer("mean", mean, persistent=False)
        self.convolution = convolution

    def forward(self, views: Tensor) -> Tensor:
        return max_pool2d(relu(self.convolution((views - self.mean) / 256.0)), 3, 2)


class _Mean(nn.Module):
    """The mean of each channel, (B, channels)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.conv2(relu(self.conv1(x))) + x)


class _ResidualDown(nn.Module):
    """Halves the sides; the shortcut is average pooling, its missing channels are zeros.

    Args:
        short: the convolution's result is one row and one column short of the pooled one, and zeros fill them.
    """

    def __init__(self, inputs: int, outputs: int, *, short: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=2)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.missing = (0, 0, 0, 0, 0, outputs - inputs)
        self.short = short

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(relu(self.conv1(x)))
        if self.short:
            out = pad(out, (0, 1, 0, 1))
        return relu(out + pad(avg_pool2d(x, 2), self.missing))


def _dequantise(path: Path, listing: Path) -> dict[str, Float32]:
    """The tensors of a TensorFlow.js weights file: value = scale * uint8 + min, or float32 where not quantised.

    Raises:
        WeightsError: the two files do not fit together.
    """
    body = path.read_bytes()
    if listing.stat().st_size > _LIST_LIMIT:
        raise WeightsError(f"{listing} is too large to be a list of tensors")
    tensors: dict[str, Float32] = {}
    start = 0
    try:
        for entry in json.loads(listing.read_bytes())[0]["weights"]:
            shape = tuple(int(side) for side in entry["shape"])
            count, packing = int(np.prod(shape)), entry.get("quantization")
            dtype = np.dtype(np.uint8) if packing else np.dtype("<f4")
            values = np.frombuffer(body, dtype, count, start).astype(np.float32)
            if packing:
                values = values * np.float32(packing["scale"]) + np.float32(packing["min"])
            tensors[entry["name"]] = values.reshape(shape)
            start += count * dtype.itemsize
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} and {listing.name} do not fit together: {error}") from error
    if start != len(body):
        raise WeightsError(f"{path} has {len(body)} bytes, {listing.name} describes {start}; fetch both again")
    return tensors


def _fold(tensors: Mapping[str, Float32], path: Path) -> Iterator[tuple[str, Tensor]]:
    """Fold each affine layer into its convolution: w (F x + b) + c = (w F) x + (w b + c)."""
    try:
        for name, filters in tensors.items():
            if name == "fc":
                yield "fc.weight", torch.from_numpy(filters.T.copy())
            elif name.endswith("/conv/filters"):
                layer = name.removesuffix("/conv/filters")
                scale, shift = tensors[f"{layer}/scale/weights"], tensors[f"{layer}/scale/biases"]
                weight = (filters * scale).transpose(3, 2, 0, 1)  # (h, w, in, out) -> (out, in, h, w)
                target = layer.replace("/", ".")
                yield f"{target}.weight", torch.from_numpy(weight.copy())
                yield f"{target}.bias", torch.from_numpy(scale * tensors[f"{layer}/conv/bias"] + shift)
    except KeyError as error:
        raise WeightsError(f"{path} lacks the tensor {error}") from error


BACKBONE = FaceApiResnet
