"""What the federated methods are held against: all data in one place, cross-entropy over scaled cosine logits.

The logits are ``scale`` times the cosine between the embedding and each class's row, l = -log softmax (Wang et al.
2018, "CosFace", with margin 0); trunk and rows are trained together by Adam (Kingma and Ba 2015). Not a method of the
federation: nobody's data stays where it was recorded. Needs torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from uvsdk.arrays import Float32, Int64
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.simulation.population import Tensors


@dataclass(frozen=True, slots=True)
class Settings:
    """How the central reference is trained.

    Args:
        steps: of the optimiser; steps x batch_size / n is the number of passes over the data.
        batch_size: examples in a step, drawn without repetition within a pass.
        learning_rate: of Adam, for trunk and rows.
        warmup_steps: steps over which it rises linearly from 0.
        cooldown_steps: last steps over which it falls linearly to 0.
        scale: of the cosine logits; 20 as in FedSS (S4 A.2).
        weight_decay: of AdamW on the trunk; 0 is Adam.
        seed: of rows, batches, views and dropout.
    """

    steps: int = 600
    batch_size: int = 160
    learning_rate: float = 2e-3
    warmup_steps: int = 60
    cooldown_steps: int = 0
    scale: float = 20.0
    weight_decay: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise SettingsError(f"steps {self.steps} and batch_size {self.batch_size} must be at least 1")
        if self.warmup_steps < 0 or self.cooldown_steps < 0 or not 0 <= self.weight_decay < math.inf:
            raise SettingsError("warmup_steps, cooldown_steps and weight_decay cannot be negative")
        for name in ("learning_rate", "scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be positive and finite")


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """What a training gives beside the trunk, which is trained in place.

    Args:
        classes: names of the classes, sorted, in the order of the rows.
        class_matrix: float32 (C, d) with unit rows.
        losses: the loss of every step.
        seconds: wall-clock time of all steps.
    """

    classes: tuple[str, ...]
    class_matrix: Float32
    losses: tuple[float, ...]
    seconds: float


def pool(population: Tensors) -> tuple[Tensor, Int64, tuple[str, ...]]:
    """Everybody's samples in one tensor (n, ...), each one's class, int64 (n,), and the names of the classes, sorted.

    A device that names no classes is one class, under its own name.

    Raises:
        SettingsError: a class without a sample: no row could be learned for it.
    """
    names = {user: population.identity(user).classes or (user,) for user in population.users}
    classes = tuple(sorted({name for own in names.values() for name in own}))
    place = {name: row for row, name in enumerate(classes)}
    features, labels = [], []
    for user in population.users:
        samples = population.samples(user)
        own = np.array([place[name] for name in names[user]], np.int64)
        features.append(samples.features)
        labels.append(own[np.zeros(len(samples), np.int64) if samples.classes is None else samples.classes])
    joined = np.concatenate(labels)
    empty = len(classes) - len(np.unique(joined))
    if empty:
        raise SettingsError(f"{empty} of {len(classes)} classes have no sample; leave them out of class_names")
    return torch.cat(features), joined, classes


def train(
    trunk: nn.Module, population: Tensors, settings: Settings, *, on_step: Callable[[int, float], None] | None = None
) -> TrainingOutcome:
    """Train ``trunk`` in place on everybody's samples; it is left in eval mode.

    Args:
        trunk: views (B, ...) to embeddings (B, d), not normalised.
        population: what the devices of a federation would train on, and how its views are drawn.
        on_step: called after each step with its number, from 0, and its loss.

    Raises:
        SettingsError: a class without a sample.
        UpdateRejectedError: the loss is no longer a number.
    """
    features, labels, classes = pool(population)
    augment = population.augment
    rng = np.random.default_rng(settings.seed)
    targets = torch.from_numpy(labels)
    losses = []
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(1 << 62)))
        with torch.no_grad():
            dimension = trunk.eval()(features[:1]).shape[1]
        rows = nn.Parameter(nn.functional.normalize(torch.randn(len(classes), dimension), dim=1))
        optimiser = torch.optim.AdamW(
            [
                {"params": list(trunk.parameters()), "weight_decay": settings.weight_decay},
                {"params": [rows], "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
        )
        trunk.train()
        drawn = _batches(len(labels), settings.batch_size, rng)
        for step in range(settings.steps):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, settings)
            batch = next(drawn)
            views = features[batch] if augment is None else augment(features[batch], rng)
            embeddings = nn.functional.normalize(trunk(views), dim=1)
            logits = settings.scale * embeddings @ nn.functional.normalize(rows, dim=1).T
            loss = nn.functional.cross_entropy(logits, targets[batch])
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                raise UpdateRejectedError(f"the loss of step {step} is {losses[-1]}; lower the learning rate")
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if on_step is not None:
                on_step(step, losses[-1])
        trunk.eval()
    matrix: Float32 = nn.functional.normalize(rows.detach(), dim=1).numpy()
    return TrainingOutcome(classes, matrix, tuple(losses), time.perf_counter() - started)


def learning_rate(step: int, settings: Settings) -> float:
    """Adam's rate at ``step``: rises over the first steps, falls over the last ones.

    >>> settings = Settings(steps=10, learning_rate=0.4, warmup_steps=4, cooldown_steps=2)
    >>> [learning_rate(step, settings) for step in (0, 1, 3, 8, 9)]
    [0.1, 0.2, 0.4, 0.4, 0.2]
    """
    rise = (step + 1) / settings.warmup_steps if settings.warmup_steps else 1.0
    fall = (settings.steps - step) / settings.cooldown_steps if settings.cooldown_steps else 1.0
    return settings.learning_rate * min(1.0, rise, fall)


def _batches(examples: int, size: int, rng: np.random.Generator) -> Iterator[Int64]:
    """Endless batches: each pass is a new order, and a batch may span two passes."""
    waiting = np.empty(0, np.int64)
    while True:
        while len(waiting) < size:
            waiting = np.concatenate([waiting, rng.permutation(examples)])
        yield waiting[:size]
        waiting = waiting[size:]
