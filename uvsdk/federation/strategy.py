"""What an algorithm is: two records of pure functions, one for the server and one for the device.

A folder under ``algorithms/`` is an algorithm when it holds

* ``payload.py``: ``Settings``, ``Task`` (server to device), ``Payload`` (device to server) and ``DISCLOSURE``;
* ``server.py``: ``SERVER``, a :class:`ServerAlgorithm` (numpy only);
* ``client.py``: ``CLIENT``, a :class:`ClientAlgorithm` (torch);
* where the device chooses what it is sent, ``request.py``: ``REQUEST``, a :class:`RequestAlgorithm` (numpy only).

State goes in and state comes out; there is no I/O, clock, logging or hidden sampling in any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

import numpy as np

from uvsdk.arrays import Array, Float64
from uvsdk.federation.messages import Admission
from uvsdk.records.codec import Scalar

if TYPE_CHECKING:
    from torch import Tensor

State = TypeVar("State")
Settings = TypeVar("Settings")
Task = TypeVar("Task")
Payload = TypeVar("Payload")
Local = TypeVar("Local")
Invitation = TypeVar("Invitation")
Request = TypeVar("Request")

Memory = Mapping[str, Array]
"""What an algorithm keeps on one device between rounds (a frozen offset, a secret); sealed in the device's store."""

TEMPLATE = "template"
"""Key of a :data:`Memory` under which an algorithm leaves a unit vector, float32 (d,), that stands for the owner in
place of the mean of the enrolment embeddings."""

MEAN, INSTANCES, EMBEDDED, PERSON = "mean", "instances", "embedded-instances", "person"
"""What an algorithm can ask an :class:`Admission` to hold: the mean embedding, hashes of the samples' content, in their
place hashes of the samples' embeddings under the model it is made with, and, where the application links identities,
the hash of the person."""

Secret = Callable[[int], bytes]
"""(n) -> n secret bytes, for what must stay secret: ``os.urandom`` on a device, a seeded stream in a simulation."""


class Embed(Protocol):
    """Unit embeddings (n, d) of a device's samples with the trunk as it now is, without gradient."""

    def __call__(self, indices: Sequence[int] | None = None, /) -> Tensor:
        """Of the samples at ``indices``, of all where ``None``."""
        ...


@dataclass(frozen=True, slots=True)
class Contribution(Generic[Payload]):
    """One accepted update as the server step sees it: whose, how many samples stand behind it, what it holds."""

    user: str
    samples: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Disclosure:
    """One row of the tables of ``docs/privacy.md``: what leaves the device."""

    sends: tuple[str, ...]
    receives: tuple[str, ...]
    once: tuple[str, ...]
    server_learns: str
    others_learn: str


def unrestricted(settings: object) -> str:
    """For algorithms that any deployment may run: no reason to refuse."""
    return ""


def nothing_to_report(state: object, settings: object) -> dict[str, Scalar]:
    """For algorithms that have nothing to tell the operator."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAlgorithm(Generic[State, Settings, Task, Payload]):
    """The server's side. ``State`` is a frozen dataclass that :mod:`uvsdk.records.codec` can pack.

    Attributes:
        state: the class of the state.
        settings: the class of the settings.
        payload: the class of what a device sends.
        needs: (settings) -> what :class:`Admission` must hold, of :data:`MEAN` and :data:`INSTANCES` or
            :data:`EMBEDDED`, and may hold, :data:`PERSON`; nothing else is sent.
        empty: (dimension, settings) -> the state before anyone has joined. Raises ``SettingsError`` where the trunk's
            dimension does not suit.
        admit: (state, admission, settings, rng) -> state with that user; a user admitted twice is one user.
        remove: (state, user) -> state without a trace of that user.
        start: (state, settings, rng) -> state at the first round (vectors drawn, a codebook spread).
        users: (state) -> those admitted, sorted.
        task: (state, user, request, settings, rng) -> what that user's device is sent; ``request`` is ``None`` where
            the algorithm has no ``request.py``, and otherwise what that device asked for.
        check: (payload, state, user, settings) -> None, or raises ``UpdateRejectedError``.
        step: (state, contributions sorted by user, settings, rng) -> the next state.
        class_matrix: (state) -> (classes, W) with unit rows, for monitoring; W has shape (0, d) where there is none.
        restricted: (settings) -> why a deployment must not run these settings unless its operator names the
            algorithm as allowed, in words; empty where there is no such reason.
        report: (state, settings) -> what an operator should know of this training, by name.
        verifies_on_server: whether a user may leave a template with the server; ``False`` where no template may leave
            the device.
        impostors: where impostors' scores come from when a model is evaluated and the configuration says ``auto``:
            ``moments`` where the rounds tell the server a vector of every person anyway, ``cohort`` where they do not.
    """

    state: type[State]
    settings: type[Settings]
    payload: type[Payload]
    needs: Callable[[Settings], frozenset[str]]
    empty: Callable[[int, Settings], State]
    admit: Callable[[State, Admission, Settings, np.random.Generator], State]
    remove: Callable[[State, str], State]
    start: Callable[[State, Settings, np.random.Generator], State]
    users: Callable[[State], tuple[str, ...]]
    task: Callable[[State, str, Any, Settings, np.random.Generator], Task]
    check: Callable[[Payload, State, str, Settings], None]
    step: Callable[[State, tuple[Contribution[Payload], ...], Settings, np.random.Generator], State]
    class_matrix: Callable[[State], tuple[tuple[str, ...], Float64]]
    restricted: Callable[[Settings], str] = unrestricted
    report: Callable[[State, Settings], Mapping[str, Scalar]] = nothing_to_report
    verifies_on_server: bool = True
    impostors: Literal["moments", "cohort"] = "moments"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAlgorithm(Generic[State, Settings, Invitation, Request]):
    """What a device asks for before a round, where the algorithm lets it choose; both sides import it.

    Attributes:
        invitation: the class of what the server says first: what there is to choose from.
        request: the class of what the device asks for.
        invite: (state, user, settings) -> invitation, on the server.
        choose: (invitation, memory, settings, rng, secret) -> (request, memory), on the device.
    """

    invitation: type[Invitation]
    request: type[Request]
    invite: Callable[[State, str, Settings], Invitation]
    choose: Callable[[Invitation, Memory, Settings, np.random.Generator, Secret], tuple[Request, Memory]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAlgorithm(Generic[Settings, Task, Payload, Local]):
    """The device's side. ``Local`` is a frozen dataclass that holds what is trained beside the trunk.

    What differs between devices and matters to ``loss`` is a Tensor field of ``Local``: a simulation stacks those of
    many devices and calls ``loss`` and ``constrain`` once for all of them (``torch.func.vmap``), so both use tensor
    operations only and never branch on a tensor's value.

    Attributes:
        task: the class of what the server sends.
        begin: (task, memory, embed, settings, rng, secret) -> local state.
        parameters: (local, settings) -> tensors trained beside the trunk, each a field of ``local``.
        rate: (settings) -> their learning rate as a multiple of the trunk's.
        loss: (unit embeddings (B, d), classes (B,), local, settings) -> scalar, the mean over the batch; ``classes``
            is int64, the place of each sample's class among the device's own: all 0 on a device of one person.
        constrain: (local, settings) -> None: back onto the sphere after a step, in place on the tensors of ``local``.
        finish: (local, embed, settings, rng, secret) -> (payload, memory).
    """

    task: type[Task]
    begin: Callable[[Task, Memory, Embed, Settings, np.random.Generator, Secret], Local]
    parameters: Callable[[Local, Settings], tuple[Tensor, ...]]
    rate: Callable[[Settings], float]
    loss: Callable[[Tensor, Tensor, Local, Settings], Tensor]
    constrain: Callable[[Local, Settings], None]
    finish: Callable[[Local, Embed, Settings, np.random.Generator, Secret], tuple[Payload, Memory]]


AnyServerAlgorithm = ServerAlgorithm[Any, Any, Any, Any]
AnyRequestAlgorithm = RequestAlgorithm[Any, Any, Any, Any]
AnyClientAlgorithm = ClientAlgorithm[Any, Any, Any, Any]
