"""The local steps of a round: one loop for every algorithm, on a device and in a simulation.

The trunk is trained by plain SGD on random crops of the enrolment samples; what an algorithm adds (its loss, its own
vector) comes from its ``client.py``. Where a part of the trunk is trained, that part alone runs here, on what the
frozen layers made of the samples (:mod:`uvsdk.bundle.frozen`). Needs torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from uvsdk import modality
from uvsdk.arrays import Array, Float32, Int64
from uvsdk.bundle.frozen import FrozenViews
from uvsdk.bundle.manifest import Manifest
from uvsdk.errors import BundleError, UpdateRejectedError
from uvsdk.federation import algorithms, clipping, controls
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.strategy import AnyClientAlgorithm, Secret
from uvsdk.modality.contract import Augmentation
from uvsdk.records import codec
from uvsdk.training import backbones
from uvsdk.training.backbones import Backbone, Partial
from uvsdk.training.participation import TrainingJob, TrainingResult

_SMALLEST_NORM = 1e-8
_EMBED_BATCH = 64
# All layers that keep statistics of a batch: one person's batch must neither use nor change them.
_BATCH_STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)

Forward = Callable[[Tensor], Tensor]
"""A trunk: views (B, ...) -> embeddings (B, d), not normalised."""


class Samples(Protocol):
    """What one device trains on."""

    def __len__(self) -> int:
        """n."""
        ...

    @property
    def classes(self) -> Int64 | None:
        """int64 (n,), the place of each sample's class among the device's own; ``None`` for one class."""
        ...

    def views(self, batch: Sequence[int], rng: np.random.Generator, /) -> Tensor:
        """One random training view of each sample of ``batch``, float32 (B, ...)."""
        ...

    def embed(self, forward: Forward, indices: Sequence[int] | None, /) -> Tensor:
        """Unit embeddings (n, d) as at inference, without gradient; of all samples for ``None``."""
        ...


class Assignment(controls.Assignment, Protocol):
    """What one device is handed for one round, apart from its samples: a ``TrainingJob`` is one."""

    @property
    def task(self) -> bytes:
        """The algorithm's ``Task``, packed."""
        ...

    @property
    def clip_norm(self) -> float:
        """Longest delta that counts in this round."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedSamples:
    """Samples as their modality prepared them: each training view is a new random crop, augmented where asked for.

    Args:
        features: one array each.
        manifest: of the model that they were prepared for.
        classes: see :class:`Samples`.
        augmentation: see :attr:`uvsdk.federation.messages.TrainingConfig.augmentation`; embeddings never are augmented.
    """

    features: Sequence[Array]
    manifest: Manifest
    classes: Int64 | None = None
    augmentation: Augmentation = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.features)

    def views(self, batch: Sequence[int], rng: np.random.Generator, /) -> Tensor:
        """See :class:`Samples`."""
        return _crops(self, batch, rng)

    def embed(self, forward: Forward, indices: Sequence[int] | None, /) -> Tensor:
        """See :class:`Samples`: of each sample the mean over its inference views."""
        source = modality.get(self.manifest.modality)
        chosen = range(len(self)) if indices is None else indices
        views = (source.views(self.features[index], self.manifest.preprocessing) for index in chosen)
        return torch.cat([_mean_embedding(forward, each) for each in views])


@dataclass(frozen=True, slots=True)
class FrozenSamples:
    """Samples as the frozen part of a model left them: a training view is one of each sample's crops.

    Args:
        samples: of each what the frozen part made of it, with at least one crop where it is trained on.
        classes: see :class:`Samples`.
    """

    samples: Sequence[FrozenViews]
    classes: Int64 | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def views(self, batch: Sequence[int], rng: np.random.Generator, /) -> Tensor:
        """See :class:`Samples`; these are what the trained part is given."""
        crops = [self.samples[index].crops for index in batch]
        return torch.from_numpy(np.stack([rows[rng.integers(len(rows))] for rows in crops]))

    def embed(self, forward: Forward, indices: Sequence[int] | None, /) -> Tensor:
        """See :class:`Samples`: of each sample the mean over its inference views."""
        chosen = range(len(self)) if indices is None else indices
        return torch.cat([_mean_embedding(forward, self.samples[index].inference) for index in chosen])


@torch.no_grad()
def _mean_embedding(forward: Forward, views: Float32) -> Tensor:
    """The direction of the mean of one sample's unit embeddings, (1, d)."""
    parts = torch.split(torch.from_numpy(np.array(views, np.float32)), _EMBED_BATCH)
    return unit(torch.cat([unit(forward(part)) for part in parts]).mean(dim=0, keepdim=True))


class LocalTrainer:
    """Trains on this machine's processor; keeps the last backbone built, since rounds repeat.

    Args:
        threads: threads torch may use, set before every round; 1 leaves the device responsive.
        secret: where what must stay secret comes from; replaced in simulations and tests only.
    """

    def __init__(self, threads: int = 1, *, secret: Secret = os.urandom) -> None:
        if threads < 1:
            raise ValueError(f"training needs at least 1 thread, got {threads}")
        self._threads = threads
        self._secret = secret
        self._kind = ("", "")
        self._module: Backbone | None = None

    def train(self, job: TrainingJob, rng: np.random.Generator) -> TrainingResult:
        """Run the local steps of one round.

        Args:
            job: model, features and the algorithm's task; not changed.
            rng: draws batches, crops and dropout: the same generator state gives the same result.

        Returns:
            The delta (local minus global) and the algorithm's packed payload, both finite.

        Raises:
            UpdateRejectedError: the loss, the parameters or the payload stopped being numbers, or theta does not
                fit the backbone; nothing of the round may be sent.
            BundleError: the manifest names another backbone, modality or trained part than the configuration.
            WireError: the task is not this algorithm's.
        """
        torch.set_num_threads(self._threads)
        config, manifest = job.config, job.manifest
        if (manifest.backbone, manifest.modality) != (config.backbone, config.modality):
            raise BundleError(
                f"the model is a {manifest.backbone} for {manifest.modality}, the approved configuration trains a "
                f"{config.backbone} for {config.modality}"
            )
        if manifest.train != config.train:
            raise BundleError(
                f"of the model {manifest.train!r} is trained, the approved configuration trains {config.train!r}; "
                f"export the model with --train {config.train}"
            )
        algorithm = algorithms.client(config.algorithm)
        settings = algorithms.settings(config.algorithm, config.algorithm_settings)
        backbone = self._prepared(manifest)
        module: nn.Module = backbone.rest if isinstance(backbone, Partial) else backbone
        samples: Samples = PreparedSamples(job.features, manifest, job.classes, augmentation=config.augmentation)
        if job.frozen is not None:
            samples = FrozenSamples(job.frozen, job.classes)
        return train_once(module, algorithm, settings, samples, job, rng, self._secret)

    def _prepared(self, manifest: Manifest) -> Backbone:
        kind = (manifest.backbone, manifest.train)
        if self._module is None or self._kind != kind:
            self._module, self._kind = _build(*kind), kind
        if backbones.parameters(self._module) != manifest.parameters:
            raise UpdateRejectedError(
                f"the model's parameters are not those of the backbone {manifest.backbone!r} installed here; "
                "server and device must run the same version"
            )
        return self._module


def _build(name: str, part: str) -> Backbone:
    """The backbone with any parameters: theta replaces them all. Only what theta does not hold must be loaded.

    Frozen layers are not run here, so that theirs need not be; they are let go.
    """
    kind = backbones.get(name, part)
    module = kind.random()
    trained = module.rest if isinstance(module, Partial) else module
    module = kind.load() if any(True for _ in trained.buffers()) else module
    if isinstance(module, Partial):
        module.stem = nn.Identity()
    return module


def train_once(
    module: nn.Module,
    algorithm: AnyClientAlgorithm,
    settings: object,
    samples: Samples,
    job: Assignment,
    rng: np.random.Generator,
    secret: Secret,
) -> TrainingResult:
    """One device's whole part in a round; ``module`` is left as the device's trunk is at its end, in eval mode.

    The delta is clipped before SCAFFOLD's c_i is made of it: the server's c is the mean of what was sent.

    Raises:
        UpdateRejectedError: the loss or the parameters stopped being numbers, or theta does not fit the module.
        WireError: the task is not this algorithm's.
    """
    task = codec.unpack(algorithm.task, job.task)
    backbones.unflatten(module, job.theta)

    def embed(indices: Sequence[int] | None = None) -> Tensor:
        return samples.embed(module, indices)

    module.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(rng))
        memory, variate = controls.split(job)
        local = algorithm.begin(task, memory, embed, settings, rng, secret)
        last = _local_steps(module, algorithm, local, settings, samples, job.config, rng, variate)
        payload, memory = algorithm.finish(local, embed, settings, rng, secret)
    delta = clipping.clip(backbones.flatten(module) - job.theta, job.clip_norm)
    memory = controls.join(memory, variate, delta, job)
    if not bool(np.isfinite(delta).all()):
        raise UpdateRejectedError("the trained parameters are not finite; lower the learning rate")
    return TrainingResult(delta, len(samples), codec.pack(payload), memory, last)


def torch_seed(rng: np.random.Generator) -> int:
    """The seed of torch's own generator (dropout): the first number a device draws in a round."""
    return int(rng.integers(1 << 62))


def _local_steps(
    module: nn.Module,
    algorithm: AnyClientAlgorithm,
    local: object,
    settings: object,
    samples: Samples,
    config: TrainingConfig,
    rng: np.random.Generator,
    variate: Float32 | None,
) -> float:
    """E steps of SGD on trunk and local tensors, with FedProx's pull and SCAFFOLD's shift; the last step's loss."""
    trunk = list(module.parameters())
    anchors = [value.detach().clone() for value in trunk] if config.proximal else []
    own = list(algorithm.parameters(local, settings))
    for value in own:
        value.requires_grad_()
    for value in (*trunk, *own):
        value.grad = None
    shifts = [] if variate is None else cut(variate, trunk)
    classes = class_places(samples)
    drawn = batches(len(samples), config.batch_size, rng)
    to_training(module)
    last = math.nan
    for _ in range(config.local_steps):
        batch = next(drawn)
        views = samples.views(batch, rng)
        objective: Tensor = algorithm.loss(unit(module(views)), classes[batch], local, settings)
        last = float(objective.detach())
        if not math.isfinite(last):
            raise UpdateRejectedError(f"the training loss became {last}; lower the learning rate")
        if config.proximal:
            objective = objective + proximal_term(trunk, anchors, config.proximal)
        objective.backward()  # type: ignore[no-untyped-call]
        if config.gradient_clip:
            _clip(trunk, config.gradient_clip)
        _shift(trunk, shifts)
        _descend(trunk, config.learning_rate)
        _descend(own, config.learning_rate * algorithm.rate(settings))
        algorithm.constrain(local, settings)
    module.eval()
    return last


def proximal_term(trunk: Sequence[Tensor], anchors: Sequence[Tensor], weight: float) -> Tensor:
    """FedProx: (mu / 2) |theta_i - theta_t|^2, a scalar."""
    squares = [(value - anchor).square().sum() for value, anchor in zip(trunk, anchors, strict=True)]
    return 0.5 * weight * torch.stack(squares).sum()


@torch.no_grad()
def _clip(trunk: Sequence[Tensor], longest: float) -> None:
    """Shorten the trunk's gradient to ``longest``, its direction kept (Pascanu et al. 2013, algorithm 1)."""
    gradients = [value.grad for value in trunk if value.grad is not None]
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    if norm > longest:
        for gradient in gradients:
            gradient.mul_(longest / norm)


def cut(vector: Float32, trunk: Sequence[Tensor]) -> list[Tensor]:
    """``vector``, float32 (P,), cut into tensors of the trunk's shapes."""
    pieces = torch.split(torch.from_numpy(vector), [value.numel() for value in trunk])
    return [piece.view_as(value) for piece, value in zip(pieces, trunk, strict=True)]


@torch.no_grad()
def _shift(trunk: Sequence[Tensor], shifts: Sequence[Tensor]) -> None:
    """Add SCAFFOLD's c - c_i to the gradients."""
    for value, shift in zip(trunk, shifts, strict=False):
        value.grad = shift.clone() if value.grad is None else value.grad.add_(shift)


@torch.no_grad()
def _descend(trained: Sequence[Tensor], learning_rate: float) -> None:
    """One step of plain SGD.

    Not ``torch.optim.SGD``, which gives the same bits: making one imports ``torch._dynamo``, 2.3 s of processor time
    in each device process, inside its first round and against that round's deadline.
    """
    for value in trained:
        if value.grad is not None:
            value.add_(value.grad, alpha=-learning_rate)
            value.grad = None


def batches(count: int, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Indices of one batch after another: permutations of the samples end to end, so that all are used equally."""
    waiting: list[int] = []
    while True:
        while len(waiting) < size:
            waiting.extend(rng.permutation(count).tolist())
        yield waiting[:size]
        waiting = waiting[size:]


def class_places(samples: Samples) -> Tensor:
    """int64 (n,): the place of each sample's class; all 0 on a device of one class."""
    if samples.classes is None:
        return torch.zeros(len(samples), dtype=torch.int64)
    return torch.from_numpy(np.array(samples.classes, np.int64))


def _crops(samples: PreparedSamples, batch: Sequence[int], rng: np.random.Generator) -> Tensor:
    source = modality.get(samples.manifest.modality)
    preprocessing, augmentation = samples.manifest.preprocessing, samples.augmentation
    crops = [
        source.training_view(samples.features[index], preprocessing, rng, augmentation=augmentation) for index in batch
    ]
    return torch.from_numpy(np.stack(crops).astype(np.float32, copy=False))


def to_training(module: nn.Module) -> None:
    """Training mode, except in layers that keep statistics of a batch."""
    module.train()
    for layer in module.modules():
        if isinstance(layer, _BATCH_STATISTICS):
            layer.eval()


def unit(rows: Tensor) -> Tensor:
    """z / |z|, rows (B, d); a row shorter than 1e-8 becomes 0 and passes no gradient (SPEC 6.7).

    Unlike z / max(|z|, 1e-12) (SPEC 0), whose gradient of 1e12 at z = 0 would end the training: a trunk that ends in
    a ReLU does give 0.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(norms < _SMALLEST_NORM, torch.zeros_like(rows), rows / norms.clamp_min(_SMALLEST_NORM))
