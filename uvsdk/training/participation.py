"""One device's part in one round: what it is handed, what it returns, and who can do the training.

The device runtime knows only these records; torch comes in through the entry point group ``uvsdk.trainers``,
so that a device which never trains never installs it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, cast

import numpy as np

from uvsdk.arrays import Array, Float32, Int64
from uvsdk.bundle.frozen import FrozenViews
from uvsdk.bundle.manifest import Manifest
from uvsdk.errors import EnrolmentError, TrainingUnavailableError, UpdateRejectedError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.strategy import Memory


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What one device trains on in one round.

    Args:
        config: the approved configuration.
        manifest: of the bundle that ``theta`` belongs to: backbone, preprocessing and parameter shapes.
        round_id: the round, for logs and for the update's head.
        theta: float32 (P,), the trunk's parameters at the start of the round.
        features: the device's enrolment samples as its modality prepared them, one array each.
        task: the algorithm's ``Task``, packed.
        memory: what the algorithm kept on this device since its last round; empty the first time.
        classes: int64 (n,), the place of each sample's class among the device's own; ``None`` for one class.
        control: float32 (P,), SCAFFOLD's c of this round; ``None`` unless the configuration has ``control_variates``.
        clip_norm: longest delta that counts in this round; a trainer shortens a longer one, and the server does else.
        frozen: what the frozen part of the model made of each sample, where a part of it is trained; else ``None``.
    """

    config: TrainingConfig
    manifest: Manifest
    round_id: int
    theta: Float32
    features: tuple[Array, ...]
    task: bytes
    memory: Memory
    classes: Int64 | None = None
    control: Float32 | None = None
    clip_norm: float = math.inf
    frozen: tuple[FrozenViews, ...] | None = None

    def __post_init__(self) -> None:
        if not self.features:
            raise EnrolmentError("training needs at least one enrolment sample, there is none; enrol first")
        expected = sum(math.prod(parameter.shape) for parameter in self.manifest.parameters)
        if self.theta.shape != (expected,):
            raise UpdateRejectedError(
                f"theta has shape {self.theta.shape}, the bundle's manifest lists {expected} parameters; "
                "download the model of this round"
            )
        if self.classes is not None and self.classes.shape != (len(self.features),):
            raise EnrolmentError(f"{len(self.features)} samples have classes of shape {self.classes.shape}")
        if self.config.control_variates and (self.control is None or self.control.shape != (expected,)):
            raise UpdateRejectedError("this configuration corrects steps by control variates, and the job has none")
        if (self.frozen is None) != (self.manifest.train == "all"):
            raise UpdateRejectedError(
                f"of the model {self.manifest.train!r} is trained: what its frozen part made of the samples "
                "(uvsdk.bundle.frozen.FrozenPart) is needed where that is not 'all', and nowhere else"
            )
        if self.frozen is not None and len(self.frozen) != len(self.features):
            raise EnrolmentError(f"{len(self.features)} samples, and the frozen part's outputs of {len(self.frozen)}")


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What one device made of its job; nothing of it has left the device yet.

    Args:
        delta: float32 (P,), local minus global (SPEC 0), always finite.
        samples: enrolment samples behind it, n_i.
        payload: the algorithm's ``Payload``, packed.
        memory: what the algorithm, and SCAFFOLD, keep on this device for the next round.
        loss: training loss of the last local step, without the proximal term.
    """

    delta: Float32
    samples: int
    payload: bytes
    memory: Memory
    loss: float


class Trainer(Protocol):
    """Does the local steps of a round."""

    def train(self, job: TrainingJob, rng: np.random.Generator) -> TrainingResult:
        """Train on ``job``; ``rng`` draws batches and crops.

        Raises:
            UpdateRejectedError: the loss is no longer a number; nothing of the round may be sent.
        """
        ...


def find_trainer() -> Trainer:
    """The installed trainer, from the entry point group ``uvsdk.trainers``.

    Raises:
        TrainingUnavailableError: none is installed, or what it needs (torch) is missing.
    """
    for entry in entry_points(group="uvsdk.trainers"):
        try:
            return cast("Trainer", entry.load()())
        except ImportError as error:
            raise TrainingUnavailableError(
                f"the trainer {entry.name!r} cannot be loaded ({error}); pip install 'uvsdk[train]'"
            ) from error
    raise TrainingUnavailableError("no trainer is installed; pip install 'uvsdk[train]'")
