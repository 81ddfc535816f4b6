"""FedAwS, Table 1: CIFAR-10 with a class on each of ten devices, ResNet-8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from examples.reproduce import data
from examples.reproduce.record import Row
from uvsdk.evaluation import ranking
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records.codec import Scalar
from uvsdk.simulation import Simulation, Tensors

SETTING = "cifar10"
PASSES = 8.0
"""Over the training images, unless the command says otherwise."""

DIMENSION = 64
WIDTHS = (16, 32, 64)
PER_CLASS, VALIDATION_PER_CLASS = 13, 500
WARMUP = 0.1
"""Views a device draws in a round; images of each class kept for validation; part of the rounds that warms up."""

_GROUPS = 8
_PADDING = 4
_MEAN, _DEVIATION = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
_EMBED_BATCH = 500
_FMR_AT = 0.7


@dataclass(frozen=True, slots=True)
class Method:
    """How a method is trained here: its own settings and the server's step size, chosen on the validation images."""

    server_rate: float
    settings: Mapping[str, Scalar]


METHODS: Mapping[str, Method] = {
    "positive_only": Method(3e-3, {"initialisation": "random"}),
    "fixed": Method(3e-3, {"initialisation": "random"}),
    "fedaws": Method(3e-3, {"initialisation": "random", "step": 0.1}),
    "softmax": Method(3e-3, {"scale": 20.0, "vector_rate": 0.01, "samples_cap": 1000}),
}


class ResNet8(nn.Module):
    """He et al. 2016, 6n + 2 layers with n = 1: uint8 (B, 32, 32, 3) to (B, 64), not normalised; 79,000 parameters.

    GroupNorm in the place of BatchNorm; the last linear layer gives the embedding in the place of the logits; the first
    convolution has stride 2, which makes a pass over the images three and a half times as fast on this processor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(_convolution(3, WIDTHS[0], 2), nn.GroupNorm(_GROUPS, WIDTHS[0]), nn.ReLU())
        self.blocks = nn.Sequential(
            _Block(WIDTHS[0], WIDTHS[0], 1), _Block(WIDTHS[0], WIDTHS[1], 2), _Block(WIDTHS[1], WIDTHS[2], 2)
        )
        self.last = nn.Linear(WIDTHS[2], DIMENSION)
        self.register_buffer("mean", torch.tensor(_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(_DEVIATION).view(1, 3, 1, 1), persistent=False)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images of levels 0 to 255."""
        # Pixels lie channel by channel within a row of memory already, which is what channels_last means.
        pixels = images.permute(0, 3, 1, 2).to(torch.float32)
        hidden = self.blocks(self.first((pixels - self.mean) / self.deviation))
        z: Tensor = self.last(hidden.mean(dim=(2, 3)))
        return z


class _Block(nn.Module):
    """Two convolutions beside an identity, which skips pixels and adds empty channels where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(inputs, outputs, stride),
            nn.GroupNorm(_GROUPS, outputs),
            nn.ReLU(),
            _convolution(outputs, outputs),
            nn.GroupNorm(_GROUPS, outputs),
        )
        self.stride, self.added = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        identity = x[:, :, :: self.stride, :: self.stride]
        if self.added:
            identity = nn.functional.pad(identity, (0, 0, 0, 0, 0, self.added))
        return torch.relu(self.residual(x) + identity)


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


@dataclass(frozen=True, slots=True)
class Split:
    """Images uint8 (n, 32, 32, 3) and classes int64 (n,): to train on, and to measure on."""

    train: Tensor
    train_classes: NDArray[np.int64]
    measured: Tensor
    measured_classes: NDArray[np.int64]


def load(*, validation: bool) -> Split:
    """All training images and the test images; or the last 500 training images of each class apart, to tune on."""
    images = data.cifar10()
    if not validation:
        return Split(torch.from_numpy(images.x_train), images.y_train, torch.from_numpy(images.x_test), images.y_test)
    kept = np.zeros(len(images.y_train), np.bool_)
    for label in range(10):
        kept[np.flatnonzero(images.y_train == label)[-VALIDATION_PER_CLASS:]] = True
    x = torch.from_numpy(images.x_train)
    return Split(x[~kept], images.y_train[~kept], x[kept], images.y_train[kept])


def augment(images: Tensor, rng: np.random.Generator) -> Tensor:
    """A random crop of the image with four pixels of margin, mirrored half the time: uint8 (B, 32, 32, 3)."""
    count, size = images.shape[:2]
    padded = nn.functional.pad(images, (0, 0, _PADDING, _PADDING, _PADDING, _PADDING))
    offsets = torch.from_numpy(rng.integers(0, 2 * _PADDING + 1, (2, count, 1)))
    rows, columns = offsets + torch.arange(size)
    flipped = torch.from_numpy(rng.random(count) < 0.5)
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def population(split: Split) -> Tensors:
    """Ten devices with the images of one class each."""
    features = {f"class-{label}": split.train[torch.from_numpy(split.train_classes == label)] for label in range(10)}
    return Tensors(features, augment=augment)


def config(method: str, seed: int, passes: float, split: Split, *, rate: float | None = None) -> TrainingConfig:
    """A round is one step of the trunk on 13 views of each class."""
    rounds = round(passes * len(split.train) / (10 * PER_CLASS))
    chosen = METHODS[method]
    return TrainingConfig(
        deployment="laboratory",
        modality="tensors",
        backbone="resnet8",
        algorithm=method,
        algorithm_settings=dict(chosen.settings),
        batch_size=PER_CLASS,
        learning_rate=0.1,
        weighting="uniform",
        clipping="off",
        optimiser="adam",
        server_learning_rate=rate or chosen.server_rate,
        server_adaptivity=1e-5,
        warmup_rounds=round(WARMUP * rounds),
        cooldown_rounds=rounds - round(WARMUP * rounds),
        rounds=rounds,
        seed=seed,
    )


def trunk(seed: int) -> ResNet8:
    """A network whose random values come from ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ResNet8()


def evaluate(simulation: Simulation, split: Split) -> dict[str, float]:
    """P@1 against the class vectors (percent), the mean cosine of images of different classes, and the share of
    (image, other class) whose cosine reaches 0.7 (percent)."""
    names, vectors = simulation.class_matrix()
    order = [names.index(f"class-{label}") for label in range(10)]
    model = simulation.trunk.eval()
    with torch.no_grad():
        parts = [nn.functional.normalize(model(part), dim=1) for part in split.measured.split(_EMBED_BATCH)]
    embeddings = torch.cat(parts).numpy().astype(np.float64)
    own = split.measured_classes[:, None] == np.arange(10)
    scores = embeddings @ vectors[order].T
    collapse = ranking.collapse(embeddings[::10], split.measured_classes[::10])
    return {
        "P@1": 100 * ranking.precision_at_k(scores, own, k=1),
        "mean_cosine": collapse.mean_cosine,
        f"fmr_at_{_FMR_AT}": 100 * float((scores[~own] >= _FMR_AT).mean()),
    }


def rows(method: str, setting: str, seed: int, figures: Mapping[str, float]) -> list[Row]:
    """``figures`` by metric as rows of a results file."""
    units = {"mean_cosine": "cosine", "training_time": "seconds", "passes": "count"}
    return [
        Row(method, setting, seed, metric, value, units.get(metric, "percent")) for metric, value in figures.items()
    ]
