"""The device's side of FedUV: the trunk is pulled to a codeword that never leaves the device (SPEC 6.2-6.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from uvsdk.arrays import Array, Float32, Int64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.feduv import codewords
from uvsdk.federation.algorithms.feduv.payload import Payload, Settings, Task
from uvsdk.federation.strategy import TEMPLATE, ClientAlgorithm, Embed, Memory, Secret

_MESSAGE, _SECRET = "message", "secret"


@dataclass(frozen=True, slots=True, repr=False)
class Secretive:
    """What a device trains towards and keeps to itself.

    All of it tensors, although the loss reads the codeword only: a simulation stacks devices by their tensors' shapes.

    Args:
        codeword: float32 (c,), v / sqrt(c).
        message: int64 (3,), the number, c and k that the codeword was made for.
        secret: uint8 (n,), r_u.
    """

    codeword: Tensor
    message: Tensor
    secret: Tensor


def _begin(
    task: Task, memory: Memory, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> Secretive:
    """The codeword kept for this number, or a new one: for a new number, and where the secret was lost (SPEC 6.7).

    Raises:
        UpdateRejectedError: a code that leaves too little secret, or an impossible number.
    """
    secret_bits = task.message_bits - codewords.NUMBER_BITS
    if secret_bits < settings.least_secret_bits or not 0 <= task.number < 1 << codewords.NUMBER_BITS:
        raise UpdateRejectedError(
            f"the server asks for a codeword with {secret_bits} secret bits, at least {settings.least_secret_bits} "
            "were agreed on, or for a number that no user can have"
        )
    message: Int64 = np.array([task.number, task.code_length, task.message_bits], np.int64)
    kept = _kept(memory, message)
    if kept is not None:
        return kept
    drawn = secret(codewords.secret_bytes(task.message_bits))
    code = codewords.code(task.code_length, task.message_bits)
    vector = code.vector(code.message(task.number, drawn))
    return Secretive(torch.from_numpy(vector), torch.from_numpy(message), torch.tensor(list(drawn), dtype=torch.uint8))


def _kept(memory: Memory, message: Int64) -> Secretive | None:
    found = {key: memory.get(key) for key in (_MESSAGE, _SECRET, TEMPLATE)}
    if any(value is None for value in found.values()) or not np.array_equal(memory[_MESSAGE], message):
        return None
    vector: Float32 = memory[TEMPLATE].astype(np.float32)
    if vector.shape != (int(message[1]),):
        return None
    return Secretive(*(torch.tensor(part) for part in (vector, message, memory[_SECRET].astype(np.uint8))))


def _parameters(local: Secretive, settings: Settings) -> tuple[Tensor, ...]:
    return ()


def _rate(settings: Settings) -> float:
    return 0.0


def _loss(embeddings: Tensor, classes: Tensor, local: Secretive, settings: Settings) -> Tensor:
    """Mean over the batch of 1 - g . v / sqrt(c), where g is the head's output sigma(W z) / sqrt(c) (UV Alg 2).

    The paper's max(0, .) never acts, a score being at most 1.
    """
    if embeddings.shape[-1] != local.codeword.shape[-1]:
        raise UpdateRejectedError(
            f"the trunk gives {embeddings.shape[-1]} dimensions, the codeword has {local.codeword.shape[-1]}"
        )
    shortfall = 1.0 - embeddings @ local.codeword
    return (shortfall * shortfall if settings.loss == "squared" else shortfall).mean()


def _constrain(local: Secretive, settings: Settings) -> None:
    """Nothing of a device's own moves."""


def _finish(
    local: Secretive, embed: Embed, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Payload, Memory]:
    parts = {_MESSAGE: local.message, _SECRET: local.secret, TEMPLATE: local.codeword}
    kept: dict[str, Array] = {key: part.cpu().numpy() for key, part in parts.items()}
    return Payload(), kept


CLIENT = ClientAlgorithm(
    task=Task,
    begin=_begin,
    parameters=_parameters,
    rate=_rate,
    loss=_loss,
    constrain=_constrain,
    finish=_finish,
)
