"""The device's side of FedMetric: pull to the own centre, push out of the balls of others, publish a proxy.

l = mean over the batch of pull(d(g, C)) + lambda sum_j max(0, M_j - d(g, A_j))^2, with the Euclidean distance d (S3
Eqs 4-6; the paper sums over the batch, and its pull is d itself). A trained centre C is pushed like an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedmetric import proxies
from uvsdk.federation.algorithms.fedmetric.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedmetric.proxies import Ball
from uvsdk.federation.strategy import ClientAlgorithm, Embed, Memory, Secret

_CENTRE = "centre"
_SMALLEST_APART = 1e-6
# Keeps the gradient of a norm finite where an embedding lies on the point it is compared with (SPEC 4.2).
_SOFTENING = 1e-12


@dataclass(frozen=True, slots=True)
class Local:
    """What the loss needs, and what is sent and kept at the end.

    Args:
        centre: C, (d,), unit where it is trained; not used under ``centre = batch``.
        kept: bool (), whether it is one to keep for the next round.
        others: A of others, (q, d).
        margins: their M, clamped, (q,).
        publish: bool (), whether a proxy is to be sent.
        proxy: A, (d,), and its margin M, (): 0 for nothing to send, or not measured yet.
        margin: see ``proxy``.
        offset: o, (d,), zeros where none was drawn.
        rotations: int64 (), how often it was replaced; -1 where none was drawn.
    """

    centre: Tensor
    kept: Tensor
    others: Tensor
    margins: Tensor
    publish: Tensor
    proxy: Tensor
    margin: Tensor
    offset: Tensor
    rotations: Tensor


def _begin(
    task: Task, memory: Memory, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> Local:
    _check(task)
    measured = settings.measured == "global" and task.publish
    rows = _rows(embed, settings, measured=measured, centre=settings.centre != "batch" and _CENTRE not in memory)
    dimension = rows.shape[1]
    if len(task.centres) and task.centres.shape[1] != dimension:
        raise UpdateRejectedError(
            f"the server sent proxies of {task.centres.shape[1]} numbers, the trunk gives {dimension}"
        )
    offset, rotations = proxies.offset_of(memory, dimension)
    others, margins = task.centres.reshape(-1, dimension), clamp(task.centres, task.margins, settings)
    centre, started = _centre(rows, others[margins > 0], memory, settings, secret)
    local = Local(
        centre=centre,
        kept=torch.tensor(started),
        others=torch.tensor(others),
        margins=torch.tensor(margins),
        publish=torch.tensor(task.publish),
        proxy=torch.zeros(dimension),
        margin=torch.zeros((), dtype=torch.float64),
        offset=torch.tensor(offset),
        rotations=torch.tensor(rotations),
    )
    return _published(local, rows, settings, secret) if measured else local


def _centre(rows: Tensor, others: Float32, memory: Memory, settings: Settings, secret: Secret) -> tuple[Tensor, bool]:
    """C, and whether it is one to keep: a trained one is, but not before there are others to start ``apart`` from."""
    before = memory.get(_CENTRE)
    mean = rows.double().mean(dim=0).numpy()
    if settings.centre != "trained":
        return rows.mean(dim=0), False
    if before is not None and before.shape == mean.shape:
        return torch.tensor(before.astype(np.float32)), True
    if settings.initialisation == "random":
        return torch.tensor(proxies.direction(len(mean), secret).astype(np.float32)), True
    apart = mean - others.astype(np.float64).mean(axis=0) if len(others) else mean
    length = float(np.linalg.norm(apart))
    unit = apart / length if length > _SMALLEST_APART else mean / max(float(np.linalg.norm(mean)), _SMALLEST_APART)
    return torch.tensor(unit.astype(np.float32)), len(others) > 0


def clamp(centres: Float32, margins: Float32, settings: Settings) -> Float32:
    """Margins for training, float32 (q,): a ball that covers the whole unit sphere could never be left.

    |x - A|^2 = 1 + |A|^2 - 2 |A| cos(x, A) for unit x, so those with a cosine of ``cap_cosine`` lie on the largest
    margin.
    """
    lengths = np.linalg.norm(centres.astype(np.float64), axis=1)
    largest = np.sqrt(np.maximum(1.0 + lengths**2 - 2.0 * lengths * settings.cap_cosine, 0.0))
    if settings.margin_max > 0:
        largest = np.minimum(largest, settings.margin_max)
    result: Float32 = np.clip(margins, 0.0, largest).astype(np.float32)
    return result


def _check(task: Task) -> None:
    if task.centres.ndim != 2 or task.margins.shape != task.centres.shape[:1]:
        raise UpdateRejectedError(
            f"the server sent proxies of shape {task.centres.shape}, margins {task.margins.shape}"
        )
    if not (np.isfinite(task.centres).all() and np.isfinite(task.margins).all()):
        raise UpdateRejectedError("the server sent a proxy that holds NaN or infinity")


def _rows(embed: Embed, settings: Settings, *, measured: bool, centre: bool = False) -> Tensor:
    """Embeddings (n, d) to measure the ball on, or only its centre, or, where neither is needed, one."""
    most = settings.radius_samples if measured else settings.centre_samples if centre else 1
    if most == 0:
        return embed()
    try:
        return embed(range(most))
    except IndexError:  # the device has fewer samples
        return embed()


def _published(local: Local, rows: Tensor, settings: Settings, secret: Secret) -> Local:
    """``local`` with the ball to send, where these embeddings may be published."""
    if len(rows) < proxies.FEWEST_SAMPLES:
        return local
    ball = proxies.true_ball(rows.numpy(), percentile=settings.percentile, smallest=settings.radius_min)
    if settings.sharing == "true":
        return _with_ball(local, ball.centre, ball)
    offset, rotations = proxies.fit_offset(
        local.offset.numpy(), int(local.rotations), radius=ball.radius, shift=settings.shift(), secret=secret
    )
    kept = replace(local, offset=torch.tensor(offset), rotations=torch.tensor(rotations))
    if not proxies.hides(offset, ball.radius, settings.shift()):
        return kept
    return _with_ball(kept, proxies.proxy_ball(ball, offset).centre, ball)


def _with_ball(local: Local, centre: Float64, ball: Ball) -> Local:
    """The proxy rounded to float32, its margin made to hold the true ball all the same."""
    rounded: Float32 = centre.astype(np.float32)
    margin = ball.radius + float(np.linalg.norm(rounded - ball.centre))
    return replace(local, proxy=torch.tensor(rounded), margin=torch.tensor(margin, dtype=torch.float64))


def _parameters(local: Local, settings: Settings) -> tuple[Tensor, ...]:
    return (local.centre,) if settings.centre == "trained" and settings.centre_rate > 0 else ()


def _rate(settings: Settings) -> float:
    return settings.centre_rate


def _loss(embeddings: Tensor, classes: Tensor, local: Local, settings: Settings) -> Tensor:
    centre = embeddings.detach().mean(dim=0) if settings.centre == "batch" else local.centre
    distances = torch.sqrt((embeddings - centre).square().sum(dim=1) + _SOFTENING)
    pull = torch.relu(distances - settings.pull_radius)
    total = (pull.square() if settings.positive_loss == "squared" else pull).mean()
    if local.others.shape[0] == 0:
        return total
    push = _push(embeddings, local, settings).mean()
    if settings.negative_reduction == "mean":
        push = push / (local.margins > 0).sum().clamp_min(1)
    total = total + settings.negative_weight * push
    if settings.centre == "trained":
        total = total + settings.centre_push * _push(centre[None], local, settings).mean()
    return total


def _push(points: Tensor, local: Local, settings: Settings) -> Tensor:
    """sum_j max(0, M_j - d(x, A_j))^2 of each of (B, d), or without the square; 0 for a ball of margin 0."""
    inside = torch.relu(local.margins - _distances(points, local.others))
    return (inside.square() if settings.negative_loss == "squared" else inside).sum(dim=1)


def _distances(embeddings: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances (B, q) by one matrix product; the gradient at g = A_j is 0, not NaN."""
    products = embeddings @ others.T
    squares = embeddings.square().sum(dim=1, keepdim=True) - 2.0 * products + others.square().sum(dim=1)
    return torch.sqrt(squares.clamp_min(0.0) + _SOFTENING)


def _constrain(local: Local, settings: Settings) -> None:
    """Put a trained centre back on the sphere, in place."""
    if _parameters(local, settings):
        with torch.no_grad():
            local.centre.div_(torch.linalg.vector_norm(local.centre).clamp_min(1e-12))


def _finish(
    local: Local, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Payload, Memory]:
    if settings.measured == "local" and bool(local.publish):
        local = _published(local, _rows(embed, settings, measured=True), settings, secret)
    memory = dict(proxies.memory_of(local.offset.numpy(), int(local.rotations)))
    if bool(local.kept):
        memory[_CENTRE] = local.centre.detach().numpy().copy()
    if float(local.margin) == 0.0:
        return Payload(np.empty(0, np.float32), 0.0), memory
    return Payload(local.proxy.numpy(), float(local.margin)), memory


CLIENT = ClientAlgorithm(
    task=Task,
    begin=_begin,
    parameters=_parameters,
    rate=_rate,
    loss=_loss,
    constrain=_constrain,
    finish=_finish,
)
