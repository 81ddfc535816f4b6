"""What an algorithm is: two records of pure functions, one for the server and one for the device.

A folder under ``algorithms/`` is an algorithm when it holds

* ``payload.py``: ``Settings``, ``Task`` (server to device), ``Payload`` (device to server) and ``DISCLOSURE``;
* ``server.py``: ``SERVER``, a :class:`ServerAlgorithm` (numpy only);
* ``client.py``: ``CLIENT``, a :class:`ClientAlgorithm` (torch).

State goes in and state comes out; there is no I/O, clock, logging or hidden sampling in any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from uvsdk.arrays import Array, Float64
from uvsdk.federation.messages import Admission

if TYPE_CHECKING:
    from torch import Tensor

State = TypeVar("State")
Settings = TypeVar("Settings")
Task = TypeVar("Task")
Payload = TypeVar("Payload")
Local = TypeVar("Local")

Memory = Mapping[str, Array]
"""What an algorithm keeps on one device between rounds (a frozen offset, a secret); sealed in the device's store."""


@dataclass(frozen=True, slots=True)
class Contribution(Generic[Payload]):
    """One accepted update as the server step sees it: whose, how many samples stand behind it, what it holds."""

    user: str
    samples: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Disclosure:
    """One row of the README's table of what leaves the device."""

    sends: tuple[str, ...]
    receives: tuple[str, ...]
    once: tuple[str, ...]
    server_learns: str
    others_learn: str


@dataclass(frozen=True, slots=True)
class ServerAlgorithm(Generic[State, Settings, Task, Payload]):
    """The server's half. ``State`` is a frozen dataclass that :mod:`uvsdk.federation.codec` can pack.

    Attributes:
        state: the class of the state.
        settings: the class of the settings.
        payload: the class of what a device sends.
        needs_mean: (settings) -> whether :class:`Admission` must hold the mean embedding; where not, none is sent.
        empty: (dimension, settings) -> the state before anyone has joined.
        admit: (state, admission, settings, rng) -> state with that user; a user admitted twice is one user.
        remove: (state, user) -> state without a trace of that user.
        start: (state, settings, rng) -> state at the first round (vectors drawn, a codebook spread).
        task: (state, user, settings) -> what that user's device is sent.
        check: (payload, state, user, settings) -> None, or raises ``UpdateRejectedError``.
        step: (state, contributions sorted by user, settings, rng) -> the next state.
        class_matrix: (state) -> (users, W) with unit rows, for monitoring; W has shape (0, d) where there is none.
    """

    state: type[State]
    settings: type[Settings]
    payload: type[Payload]
    needs_mean: Callable[[Settings], bool]
    empty: Callable[[int, Settings], State]
    admit: Callable[[State, Admission, Settings, np.random.Generator], State]
    remove: Callable[[State, str], State]
    start: Callable[[State, Settings, np.random.Generator], State]
    task: Callable[[State, str, Settings], Task]
    check: Callable[[Payload, State, str, Settings], None]
    step: Callable[[State, tuple[Contribution[Payload], ...], Settings, np.random.Generator], State]
    class_matrix: Callable[[State], tuple[tuple[str, ...], Float64]]


@dataclass(frozen=True, slots=True)
class ClientAlgorithm(Generic[Settings, Task, Payload, Local]):
    """The device's half. ``Local`` holds what is trained beside the trunk, e.g. the own class vector.

    ``embed`` gives unit embeddings (n, d) of all of the device's training data with the trunk as it now is,
    without gradient.

    Attributes:
        task: the class of what the server sends.
        begin: (task, memory, embed, settings, rng) -> local state.
        parameters: (local) -> tensors trained beside the trunk.
        loss: (unit embeddings (B, d), local, settings) -> scalar.
        constrain: (local) -> None: back onto the sphere after a step, in place on the tensors of ``local``.
        finish: (local, embed) -> (payload, memory).
    """

    task: type[Task]
    begin: Callable[[Task, Memory, Callable[[], Tensor], Settings, np.random.Generator], Local]
    parameters: Callable[[Local], tuple[Tensor, ...]]
    loss: Callable[[Tensor, Local, Settings], Tensor]
    constrain: Callable[[Local], None]
    finish: Callable[[Local, Callable[[], Tensor]], tuple[Payload, Memory]]


AnyServerAlgorithm = ServerAlgorithm[Any, Any, Any, Any]
AnyClientAlgorithm = ClientAlgorithm[Any, Any, Any, Any]
