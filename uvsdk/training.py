"""The local steps of a round: one loop for every algorithm.

The trunk is trained by plain SGD on random crops of the enrolment samples; what an algorithm adds (its loss, its own
vector) comes from its ``client.py``. Needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from uvsdk import backbones, modality
from uvsdk.arrays import Array
from uvsdk.backbones import Backbone
from uvsdk.bundle import Manifest
from uvsdk.errors import BundleError, UpdateRejectedError
from uvsdk.federation import algorithms, codec
from uvsdk.federation.participation import TrainingJob, TrainingResult
from uvsdk.federation.strategy import AnyClientAlgorithm

_SMALLEST_NORM = 1e-12
_EMBED_BATCH = 64
# All layers that keep statistics of a batch: one person's batch must neither use nor change them.
_BATCH_STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class LocalTrainer:
    """Trains on this machine's processor; keeps the last backbone built, since rounds repeat.

    Args:
        threads: threads torch may use, set before every round; 1 leaves the device responsive.
    """

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"training needs at least 1 thread, got {threads}")
        self._threads = threads
        self._name = ""
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
            BundleError: the manifest names another backbone than the configuration, or another modality.
            WireError: the task is not this algorithm's.
        """
        torch.set_num_threads(self._threads)
        config, manifest = job.config, job.manifest
        if (manifest.backbone, manifest.modality) != (config.backbone, config.modality):
            raise BundleError(
                f"the model is a {manifest.backbone} for {manifest.modality}, the approved configuration trains a "
                f"{config.backbone} for {config.modality}"
            )
        half = algorithms.client(config.algorithm)
        settings = algorithms.settings(config.algorithm, config.algorithm_settings)
        task = codec.unpack(half.task, job.task)
        module = self._prepared(manifest)
        backbones.unflatten(module, job.theta)

        def embed() -> Tensor:
            return _embed_samples(module, manifest, job.features)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(1 << 62)))
            local = half.begin(task, job.memory, embed, settings, rng)
            last = _local_steps(module, half, local, settings, job, rng)
            payload, memory = half.finish(local, embed)
        delta = backbones.flatten(module) - job.theta
        if not bool(np.isfinite(delta).all()):
            raise UpdateRejectedError("the trained parameters are not finite; lower the learning rate")
        return TrainingResult(delta, len(job.features), codec.pack(payload), memory, last)

    def _prepared(self, manifest: Manifest) -> Backbone:
        if self._module is None or self._name != manifest.backbone:
            self._module = _build(manifest.backbone)
            self._name = manifest.backbone
        if backbones.parameters(self._module) != manifest.parameters:
            raise UpdateRejectedError(
                f"the model's parameters are not those of the backbone {manifest.backbone!r} installed here; "
                "server and device must run the same version"
            )
        return self._module


def _build(name: str) -> Backbone:
    """The backbone with any parameters: theta replaces them all. Only what theta does not hold must be loaded."""
    kind = backbones.get(name)
    module = kind.random()
    return kind.load() if any(True for _ in module.buffers()) else module


def _local_steps(
    module: Backbone,
    half: AnyClientAlgorithm,
    local: object,
    settings: object,
    job: TrainingJob,
    rng: np.random.Generator,
) -> float:
    """E steps of SGD on trunk and local tensors, with FedProx's pull to the start; the last step's loss."""
    config = job.config
    trunk = list(module.parameters())
    anchors = [value.detach().clone() for value in trunk] if config.proximal else []
    trained = [*trunk, *half.parameters(local)]
    for value in trained:
        value.grad = None
    batches = _batches(len(job.features), config.batch_size, rng)
    _to_training(module)
    last = math.nan
    for _ in range(config.local_steps):
        views = _crops(job, next(batches), rng)
        objective: Tensor = half.loss(_unit(module(views)), local, settings)
        last = float(objective.detach())
        if not math.isfinite(last):
            raise UpdateRejectedError(f"the training loss became {last}; lower the learning rate")
        for value, anchor in zip(trunk, anchors, strict=False):
            objective = objective + 0.5 * config.proximal * (value - anchor).square().sum()
        objective.backward()  # type: ignore[no-untyped-call]
        if config.gradient_clip:
            _clip(trunk, config.gradient_clip)
        _descend(trained, config.learning_rate)
        half.constrain(local)
    module.eval()
    return last


@torch.no_grad()
def _clip(trunk: Sequence[Tensor], longest: float) -> None:
    """Shorten the trunk's gradient to ``longest``, its direction kept (Pascanu et al. 2013, algorithm 1)."""
    gradients = [value.grad for value in trunk if value.grad is not None]
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    if norm > longest:
        for gradient in gradients:
            gradient.mul_(longest / norm)


@torch.no_grad()
def _descend(trained: list[Tensor], learning_rate: float) -> None:
    """One step of plain SGD.

    Not ``torch.optim.SGD``, which gives the same bits: making one imports ``torch._dynamo``, 2.3 s of processor time
    in each device process, inside its first round and against that round's deadline.
    """
    for value in trained:
        if value.grad is not None:
            value.add_(value.grad, alpha=-learning_rate)
            value.grad = None


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Indices of one batch after another: permutations of the samples end to end, so that all are used equally."""
    waiting: list[int] = []
    while True:
        while len(waiting) < size:
            waiting.extend(rng.permutation(count).tolist())
        yield waiting[:size]
        waiting = waiting[size:]


def _crops(job: TrainingJob, batch: list[int], rng: np.random.Generator) -> Tensor:
    source = modality.get(job.manifest.modality)
    crops = [source.crop(job.features[index], job.manifest.preprocessing, rng) for index in batch]
    return torch.from_numpy(np.stack(crops).astype(np.float32, copy=False))


def _embed_samples(module: Backbone, manifest: Manifest, features: tuple[Array, ...]) -> Tensor:
    """Unit embeddings (n, d): of each sample the mean over its views, as at inference; without gradient."""
    source = modality.get(manifest.modality)
    was_training = module.training
    module.eval()
    rows = []
    with torch.no_grad():
        for feature in features:
            views = torch.from_numpy(np.array(source.views(feature, manifest.preprocessing), np.float32))
            parts = [_unit(module(part)) for part in torch.split(views, _EMBED_BATCH)]
            rows.append(_unit(torch.cat(parts).mean(dim=0, keepdim=True)))
    if was_training:
        _to_training(module)
    return torch.cat(rows)


def _to_training(module: nn.Module) -> None:
    module.train()
    for layer in module.modules():
        if isinstance(layer, _BATCH_STATISTICS):
            layer.eval()


def _unit(rows: Tensor) -> Tensor:
    """z / max(|z|, 1e-12), rows (B, d) (SPEC 0)."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norms.clamp_min(_SMALLEST_NORM)
