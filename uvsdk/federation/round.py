"""One round of a federation, as pure functions.

::

    admit -> select -> (invite -> choose) -> assign -> local steps -> accept -> weigh -> mean -> commit

The server (:mod:`uvsdk_server.driver`), a simulation (:mod:`uvsdk.simulation`) and an experiment that loops itself call
the same ones, so that the same seeds give the same model in each. What differs stays with them: loops, clocks, what is
durable, where local steps are made, and how deltas are added up (:func:`uvsdk.federation.aggregation.weighted_mean`
where each lies apart).

Two devices, one round, and what their local steps made is given:

>>> from uvsdk.federation import streams
>>> config = TrainingConfig("clinic", "voice", "ge2e", "fedaws", {"initialisation": "random"}, weighting="samples")
>>> method, seed = Method.of(config), streams.round_seed(7, 1)
>>> state = method.server.empty(2, method.settings)
>>> joining = [Admission(user, "m", samples, np.empty(0, np.float32)) for user, samples in (("a", 3), ("b", 1))]
>>> state, refused = admit(method, state, joining, seed=seed, start=True)
>>> select(method.server.users(state), config, seed=seed)
('a', 'b')
>>> task = assign(method, state, "a", request=None, seed=seed)
>>> payloads = {item.user: codec.pack(method.server.payload(np.eye(2, dtype=np.float32)[place]))
...             for place, item in enumerate(joining)}
>>> updates = [Update(Contribution(item.user, item.samples, accept(method, state, item.user, payloads[item.user])), 1.0)
...            for item in joining]
>>> weights = weigh(updates, 0.5, config)  # both are twice as long as was announced
>>> weights.tolist()
[0.375, 0.125]
>>> before = ServerState(np.zeros(2, np.float32), optimisers.initial(2, config), state)
>>> mean = (weights @ np.eye(2)).astype(np.float32)
>>> done = commit(method, before, mean, updates, clip_norm=0.5, everybody=[3, 1], seed=seed, tensors=[2])
>>> done.state.theta.tolist()
[0.375, 0.125]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation import aggregation, algorithms, clipping, optimisers
from uvsdk.federation.messages import Admission, OptimiserState, TrainingConfig
from uvsdk.federation.strategy import AnyRequestAlgorithm, AnyServerAlgorithm, Contribution, Memory, Secret
from uvsdk.federation.streams import ADMIT, COHORT, STEP, TASK, server_stream
from uvsdk.records import codec

_Device = TypeVar("_Device")


@dataclass(frozen=True, slots=True)
class Method:
    """What a configuration names: the sides of its algorithm that need no torch, and their settings."""

    config: TrainingConfig
    server: AnyServerAlgorithm
    request: AnyRequestAlgorithm | None
    settings: object

    @classmethod
    def of(cls, config: TrainingConfig) -> Method:
        """Look it up. Raises :class:`uvsdk.errors.UnknownNameError`, :class:`uvsdk.errors.SettingsError`."""
        name = config.algorithm
        settings = algorithms.settings(name, config.algorithm_settings)
        return cls(config, algorithms.server(name), algorithms.request(name), settings)

    @property
    def impostors(self) -> Literal["moments", "third_moments", "cohort", "off"]:
        """Where impostors' scores come from when a model is evaluated (:data:`uvsdk.release.report.Impostors`).

        Raises:
            SettingsError: ``own``, or moments where no template may leave a device.
        """
        asked = self.config.evaluation
        if asked == "own":
            other = ", or 'moments'" if self.server.verifies_on_server else ""
            raise SettingsError(
                "evaluation = 'own' is refused: thresholds from codewords that a device makes up, or from proxies that "
                "it was sent, were measured to let in ten times as many strangers as asked (docs/releases.md). Say "
                f"'cohort' (uvsdk cohort make), by which a device tells scores alone{other}"
            )
        if asked in ("moments", "third_moments") and not self.server.verifies_on_server:
            raise SettingsError(
                f"evaluation = {asked!r} is refused under {self.config.algorithm}: a device's sums tell its template, "
                "and there none may leave the device. Say 'cohort' (uvsdk cohort make), or 'off'"
            )
        if asked == "auto":
            return self.server.impostors
        return cast("Literal['moments', 'third_moments', 'cohort', 'off']", asked)


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a committed round replaces.

    Args:
        theta: float32 (P,), the trunk's parameters.
        optimiser: the server optimiser's state.
        algorithm: the algorithm's state.
        step: what the optimiser's step is multiplied by; evaluations shorten it (:mod:`uvsdk.release.backtracking`).
    """

    theta: Float32
    optimiser: OptimiserState
    algorithm: Any
    step: float = 1.0


@dataclass(frozen=True, slots=True)
class Update:
    """One accepted update but for its delta, of which ``norm`` is the L2 norm."""

    contribution: Contribution[Any]
    norm: float


@dataclass(frozen=True, slots=True)
class Step:
    """How far the server moved the trunk in a round.

    Args:
        mean_norm: L2 norm of the mean delta: what the devices agree on. Training that goes well lets it fall.
        largest_ratio: of the tensor that moved most, the length of its step as a part of its norm.
    """

    mean_norm: float
    largest_ratio: float


@dataclass(frozen=True, slots=True)
class Result:
    """What a round leaves, to be committed at once.

    Args:
        state: the next one.
        norm_median: what later rounds clip by; ``None`` where too few updates moved.
        step: what an operator should watch of the server's step.
    """

    state: ServerState
    norm_median: float | None
    step: Step


def admit(
    method: Method,
    state: Any,
    admissions: Iterable[Admission],
    *,
    seed: int,
    start: bool,
    anew: Collection[str] = (),
    refusal: type[Exception] = UpdateRejectedError,
) -> tuple[Any, dict[str, str]]:
    """Take those who join into the algorithm's state; gives it and who was refused, each with the reason.

    Args:
        method: the configured algorithm.
        state: the algorithm's, before.
        admissions: of those who join, in the order in which they are taken.
        seed: of the round (:func:`uvsdk.federation.streams.round_seed`).
        start: whether this is the first round, which draws the first vectors.
        anew: users of whom nothing is kept that the state holds already: it was somebody else's.
        refusal: which errors of the algorithm refuse one user; others are raised.
    """
    rng = server_stream(seed, ADMIT)
    refused: dict[str, str] = {}
    for admission in admissions:
        former = method.server.remove(state, admission.user) if admission.user in anew else state
        try:
            state = method.server.admit(former, admission, method.settings, rng)
        except refusal as error:
            refused[admission.user] = str(error)
    return method.server.start(state, method.settings, rng) if start else state, refused


def select(devices: Sequence[_Device], config: TrainingConfig, *, seed: int) -> Sequence[_Device]:
    """The cohort: ``config.cohort_size`` of ``devices`` without replacement, in their order; all where they are fewer.

    ``seed`` is the round's.
    """
    size = config.cohort(len(devices))
    if size == len(devices):
        return devices
    chosen = sorted(server_stream(seed, COHORT).choice(len(devices), size, replace=False).tolist())
    return [devices[place] for place in chosen]


def invite(method: Method, state: Any, user: str) -> bytes | None:
    """What the device of ``user`` may choose from, packed; ``None`` where it chooses nothing."""
    chooser = method.request
    return None if chooser is None else codec.pack(chooser.invite(state, user, method.settings))


def choose(
    method: Method, invitation: bytes, memory: Memory, *, rng: np.random.Generator, secret: Secret
) -> tuple[bytes, Memory]:
    """The device's answer to :func:`invite`: its request, packed, and what it keeps.

    Raises:
        WireError: it is no invitation of this algorithm.
        UpdateRejectedError: an invitation that a device must not accept.
    """
    chooser = method.request
    assert chooser is not None  # there is an invitation
    request, memory = chooser.choose(codec.unpack(chooser.invitation, invitation), memory, method.settings, rng, secret)
    return codec.pack(request), memory


def assign(method: Method, state: Any, user: str, *, request: bytes | None, seed: int) -> bytes:
    """The algorithm's task for one user's device, packed; the same request in the same round gives the same task.

    Args:
        method: the configured algorithm.
        state: the algorithm's.
        user: whose.
        request: what :func:`choose` gave; ``None`` where the algorithm has no requests.
        seed: of the round.

    Raises:
        WireError: the request is none of this algorithm's.
        UpdateRejectedError: the algorithm refuses it.
    """
    chooser = method.request
    asked = None if chooser is None or request is None else codec.unpack(chooser.request, request)
    stream = server_stream(seed, TASK, user)
    return codec.pack(method.server.task(state, user, asked, method.settings, stream))


def accept(method: Method, state: Any, user: str, payload: bytes) -> Any:
    """What a device sends beside its delta, unpacked and checked.

    Raises:
        WireError: it is no payload of this algorithm.
        UpdateRejectedError: the algorithm refuses it.
    """
    found = codec.unpack(method.server.payload, payload)
    method.server.check(found, state, user, method.settings)
    return found


def weigh(updates: Sequence[Update], clip_norm: float, config: TrainingConfig) -> Float64:
    """What each delta is multiplied by in the mean, float64 (n,): p_i, and less where it is longer than announced.

    A device that sends more than ``clip_norm`` gains nothing: its whole delta is scaled.
    """
    weights = aggregation.sample_weights([update.contribution.samples for update in updates], config)
    scales: Float64 = np.array([clipping.scale_of(update.norm, clip_norm) for update in updates])
    return weights * scales


def commit(
    method: Method,
    before: ServerState,
    mean: Float32,
    updates: Sequence[Update],
    *,
    clip_norm: float,
    everybody: Iterable[int],
    seed: int,
    tensors: Sequence[int],
) -> Result:
    """The server's step: its optimiser on the mean delta, then the algorithm's own.

    Args:
        method: the configured algorithm.
        before: what the round started from; it is not changed.
        mean: float32 (P,), the weighted mean of the deltas.
        updates: the accepted ones, sorted by user.
        clip_norm: the longest delta that counted.
        everybody: samples of each device that could have taken part; read for SCAFFOLD alone.
        seed: of the round.
        tensors: how many parameters each tensor of the trunk has, in order.

    Raises:
        UpdateRejectedError: theta would not be finite, or the algorithm refuses the updates.
    """
    config, contributions = method.config, tuple(update.contribution for update in updates)
    share = 1.0
    if config.control_variates:
        share = aggregation.weight_share([item.samples for item in contributions], list(everybody), config)
    theta, optimiser = optimisers.step(
        before.theta, mean, before.optimiser, config, share=share, tensors=tensors, scale=before.step
    )
    stream = server_stream(seed, STEP)
    state = method.server.step(before.algorithm, contributions, method.settings, stream)
    median = clipping.round_median([update.norm for update in updates], clip_norm)
    travelled = Step(clipping.norm_of(mean), optimisers.largest_ratio(before.theta, theta, tensors))
    return Result(ServerState(theta, optimiser, state, before.step), median, travelled)
