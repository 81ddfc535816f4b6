"""MNIST with one digit on each of ten devices, the network, and the figure of merit of the paper's Table 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from examples.reproduce import data
from uvsdk.simulation import Tensors

DIGITS = 10
VALIDATION = 5_000
_MEAN, _DEVIATION = 0.1307, 0.3081
_BATCH = 2_000


class LeNet(nn.Module):
    """Images, float32 (B, 1, 28, 28), to an embedding (B, d), not normalised.

    The network of Ruff et al. 2018 for MNIST (8 and 4 filters of 5 x 5, each with pooling and leaky ReLU, one linear
    layer to 32) with GroupNorm for their BatchNorm, as S3 has it.

    Args:
        affine: whether the normalisation scales and shifts; Deep SVDD must have no biases.
        code: length of FedUV's code head, one more linear layer without biases; 0 for none.
    """

    def __init__(self, *, affine: bool = True, code: int = 0) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2, bias=False),
            nn.GroupNorm(2, 8, affine=affine),
            nn.LeakyReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 4, 5, padding=2, bias=False),
            nn.GroupNorm(1, 4, affine=affine),
            nn.LeakyReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * 7 * 7, 32, bias=False),
        )
        self.code = nn.Linear(32, code, bias=False) if code else None

    def forward(self, images: Tensor) -> Tensor:
        """Embed (B, 1, 28, 28) as (B, 32), or as (B, c) with a code head."""
        z: Tensor = self.trunk(images)
        return z if self.code is None else self.code(z)


def lenet(seed: int, *, affine: bool = True, code: int = 0) -> LeNet:
    """A :class:`LeNet` whose random values come from ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LeNet(affine=affine, code=code)


@dataclass(frozen=True, slots=True)
class Split:
    """Training images by digit, and images to measure on with their digits, int64 (n,)."""

    train: tuple[Tensor, ...]
    images: Tensor
    labels: NDArray[np.int64]

    def population(self) -> Tensors:
        """Ten devices with one digit each."""
        return Tensors({f"digit {digit}": images for digit, images in enumerate(self.train)})


def load(*, validate: bool) -> Split:
    """The split that settings are chosen on (the last 5,000 training images), or the paper's: all of them, and test."""
    mnist = data.mnist()
    if validate:
        kept = len(mnist.x_train) - VALIDATION
        return _split(mnist.x_train[:kept], mnist.y_train[:kept], mnist.x_train[kept:], mnist.y_train[kept:])
    return _split(mnist.x_train, mnist.y_train, mnist.x_test, mnist.y_test)


def _split(x: NDArray[np.uint8], y: NDArray[np.int64], images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Split:
    return Split(tuple(_scaled(x[y == digit]) for digit in range(DIGITS)), _scaled(images), labels)


def _scaled(images: NDArray[np.uint8]) -> Tensor:
    return ((torch.from_numpy(images[:, None]).float() / 255.0) - _MEAN) / _DEVIATION


@torch.no_grad()
def embed(trunk: nn.Module, images: Tensor) -> NDArray[np.float64]:
    """Unit embeddings, float64 (n, d)."""
    trunk.eval()
    rows = torch.cat([trunk(part) for part in torch.split(images, _BATCH)])
    found: NDArray[np.float64] = nn.functional.normalize(rows, dim=1).double().numpy()
    return found


def auroc(scores: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """Mean over the digits, in percent, of the area under the curve of that digit's scores (SPEC 12).

    Mann and Whitney's statistic: the chance that a sample of the digit scores above one of another, a tie for half.

    Args:
        scores: (n, 10), of each image for each digit, high for the same.
        labels: int64 (n,).

    >>> round(auroc(np.tile([[0.9], [0.4], [0.6], [0.6]], 10), np.array([0, 1, 0, 1])), 2)  # 3.5 of 4 pairs, and 0.5
    50.0
    """
    areas = []
    for digit in np.unique(labels):
        same = labels == digit
        # Ranks from 1, those of equal scores averaged.
        _, place, counts = np.unique(scores[:, digit], return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
        positives, negatives = int(same.sum()), int((~same).sum())
        areas.append((ranks[same].sum() - positives * (positives + 1) / 2) / (positives * negatives))
    return 100.0 * float(np.mean(areas))
