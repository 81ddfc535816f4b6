"""What crosses the wire between a device and the coordination server, apart from who handles it.

Sealing and signing live in :mod:`uvsdk.privacy.sealing`; what an algorithm adds lives in its ``payload.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields

import numpy as np

from uvsdk import modality
from uvsdk.arrays import Float32, UInt8
from uvsdk.bundle.manifest import PARTS
from uvsdk.errors import SettingsError, WireError
from uvsdk.records.codec import Scalar

WEIGHTINGS = ("uniform", "samples", "capped")
"""How much each update counts: all alike, or by samples, which are the device's own word."""

CLIPPINGS = ("median", "fixed", "off")
"""How long an update may be (:mod:`uvsdk.federation.clipping`)."""

OPTIMISERS = ("sgd", "momentum", "adam", "yogi", "adagrad")

EVALUATIONS = ("auto", "moments", "third_moments", "cohort", "own", "off")
"""What a device reports of impostors when it evaluates a model (:mod:`uvsdk.release`)."""

CENTRINGS = ("never", "measured")
"""Whether the domain's mean is subtracted before embeddings are compared (:mod:`uvsdk.release.subtraction`)."""

_OMITTED = (
    "train",
    "clipping",
    "clip_norm",
    "trust_ratio",
    "evaluation",
    "evaluation_share",
    "evaluate_every",
    "centring",
    "backtracking",
    "augmentation",
)
"""Settings that later versions brought: left out of the canonical JSON where they have their defaults."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Everything a round asks of a device; a device trains only under a digest it has approved.

    Defaults are SPEC Appendix B.

    Args:
        deployment: name of the deployment; part of every seal and of every hashed id.
        modality: its name, e.g. ``voice`` or ``face``.
        backbone: registry name of the trunk, e.g. ``ge2e``.
        algorithm: registry name, e.g. ``fedaws``.
        algorithm_settings: fields of that algorithm's ``Settings``; absent ones take their defaults.
        train: one of :data:`uvsdk.bundle.manifest.PARTS`; the model says the same of itself (``Manifest.train``).
        local_steps: SGD steps a device makes in a round.
        batch_size: training views in a step.
        learning_rate: eta of the device's SGD.
        proximal: mu of FedProx, 0 for none.
        control_variates: whether devices correct each local step by SCAFFOLD's control variates.
        gradient_clip: longest gradient of the trunk in one step (L2 norm), 0 for any: recurrent trunks need a bound.
        weighting: ``uniform`` (all updates count alike), ``samples`` (p_i = n_i / sum n), as the papers have it, or
            ``capped`` (n_i at most ``samples_cap``). n_i is what the device said when it was admitted and not what an
            update says; it is its own word all the same, so that one device can take most of the weight.
        samples_cap: the cap of ``capped``.
        clipping: ``median``: a round announces a norm from the medians of earlier rounds and from ``clip_norm``, and a
            longer update is shortened to it; ``fixed``: from ``clip_norm`` alone; ``off``: for simulations only.
        clip_norm: longest update that counts in any round; 0 for what
            :func:`uvsdk.federation.clipping.absolute_norm` makes of the model and of the rates.
        optimiser: server optimiser on the averaged delta (FedOpt): one of :data:`OPTIMISERS`.
        server_learning_rate: its step size a.
        server_adaptivity: tau of adam, yogi and adagrad: coordinates whose deltas are far below it move in proportion
            to their delta, those above it at the full step size whatever their scale.
        trust_ratio: longest step of the server on one tensor of the trunk, as a part of that tensor's norm; 0 for any.
            Optimisers that divide by their moments move every parameter by the step size, however sensitive the tensor
            is; recurrent trunks need this bound (:mod:`uvsdk.federation.optimisers`).
        warmup_rounds: rounds over which that step size rises linearly from 0.
        cooldown_rounds: last rounds of ``rounds``, over which it falls linearly to 0.
        rounds: committed rounds after which training rests; with 0 nobody trains, and everybody evaluates: a deployment
            that keeps its model and calibrates it on its own people.
        cohort_size: devices selected for a round, 0 for all.
        min_clients: fewest updates that make a round; fewer abort it. 0 means max(3, half the cohort).
        deadline_s: seconds from selection to aggregation.
        evaluation: what a device reports of impostors when it evaluates a candidate, one of :data:`EVALUATIONS`:
            ``moments`` (sums over people of means and second moments), ``third_moments`` (third ones too, for poor
            recordings), ``cohort`` (its scores against people whose embeddings the operator provides), ``own`` (against
            what the algorithm itself gave it: codewords, proxies), ``off``; ``auto`` lets the algorithm decide, which
            never sends more than its rounds do.
        evaluation_share: of those who join once there are enough to train, the share who only evaluate, for good; not
            looked at where ``rounds`` is 0.
        evaluate_every: committed rounds between two evaluations; 0 evaluates at rest and on request only.
        centring: ``never``: embeddings are compared as they are. ``measured``: once the domain's mean is known, devices
            report of the released model a second time without it, and it is subtracted before two embeddings are
            compared where that rejects fewer genuine trials. It costs half as many bytes again, twice as many where
            the released model is evaluated alone, and the server may work out embeddings of single samples.
        backtracking: whether training returns to the best candidate so far, with half the step, where an evaluation
            finds a worse one (:mod:`uvsdk.release.backtracking`).
        augmentation: what happens to training views on the device, settings of the modality by name
            (:class:`uvsdk.modality.voice.augmentation.VoiceAugmentation`,
            :class:`uvsdk.modality.face.augmentation.FaceAugmentation`); nothing where it is empty. Evaluation and
            verification never look at it. Devices older than this setting refuse a configuration that has it.
        seed: seed of selection, crops and initial vectors; ``None`` draws from the operating system.
    """

    deployment: str
    modality: str
    backbone: str
    algorithm: str
    algorithm_settings: Mapping[str, Scalar] = field(default_factory=dict)
    train: str = "all"
    local_steps: int = 1
    batch_size: int = 8
    learning_rate: float = 0.1
    proximal: float = 0.0
    control_variates: bool = False
    gradient_clip: float = 0.0
    weighting: str = "uniform"
    samples_cap: int = 1000
    clipping: str = "median"
    clip_norm: float = 0.0
    optimiser: str = "sgd"
    server_learning_rate: float = 1.0
    server_adaptivity: float = 1e-3
    trust_ratio: float = 0.0
    warmup_rounds: int = 0
    cooldown_rounds: int = 0
    rounds: int = 100
    cohort_size: int = 0
    min_clients: int = 0
    deadline_s: float = 600.0
    evaluation: str = "auto"
    evaluation_share: float = 0.2
    evaluate_every: int = 8
    centring: str = "never"
    backtracking: bool = True
    augmentation: Mapping[str, Scalar] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("local_steps", "batch_size", "samples_cap"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in (
            "rounds",
            "warmup_rounds",
            "cooldown_rounds",
            "cohort_size",
            "min_clients",
            "proximal",
            "gradient_clip",
            "evaluate_every",
        ):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; it cannot be negative")
        for name in ("clip_norm", "trust_ratio"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be finite and not negative")
        for name in ("learning_rate", "server_learning_rate", "server_adaptivity", "deadline_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be positive and finite")
        if self.train not in PARTS:
            raise SettingsError(f"train {self.train!r} is not one of {PARTS}")
        if self.weighting not in WEIGHTINGS:
            raise SettingsError(f"weighting {self.weighting!r} is not one of {WEIGHTINGS}")
        if self.clipping not in CLIPPINGS:
            raise SettingsError(f"clipping {self.clipping!r} is not one of {CLIPPINGS}")
        if self.evaluation not in EVALUATIONS:
            raise SettingsError(f"evaluation {self.evaluation!r} is not one of {EVALUATIONS}")
        if self.centring not in CENTRINGS:
            raise SettingsError(f"centring {self.centring!r} is not one of {CENTRINGS}")
        if not 0.0 <= self.evaluation_share < 1.0:
            raise SettingsError(f"evaluation_share is {self.evaluation_share}; it lies in [0, 1)")
        if self.optimiser not in OPTIMISERS:
            raise SettingsError(f"optimiser {self.optimiser!r} is not one of {OPTIMISERS}")
        if not isinstance(self.augmentation, Mapping):
            raise SettingsError(f"augmentation is settings by name, got {self.augmentation!r}")
        if self.augmentation and self.modality:  # a simulation may take it from the model
            modality.get(self.modality).augmenting(self.augmentation)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces.

        Settings that later versions brought are left out where they have their defaults, as before there was a choice,
        so that digests approved stay.
        """
        values = asdict(self)
        for name in _OMITTED:
            declared = type(self).__dataclass_fields__[name]
            if values[name] == ({} if declared.default is MISSING else declared.default):
                del values[name]
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> TrainingConfig:
        """Read :meth:`to_json`'s form. Raises :class:`WireError` for anything else."""
        try:
            values = json.loads(text)
            if not isinstance(values, dict):
                raise WireError("a training configuration is a JSON object")
            unknown = set(values) - {item.name for item in fields(cls)}
            if unknown:
                raise WireError(f"unknown training settings {sorted(unknown)}; is the server newer than this device?")
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise WireError(f"not a training configuration: {error}") from error

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal: what a device approves."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def cohort(self, devices: int) -> int:
        """How many of ``devices`` are selected for a round."""
        return min(devices, self.cohort_size or devices)

    def quorum(self, cohort: int) -> int:
        """Fewest updates that make a round of ``cohort`` devices (SPEC 1.5)."""
        return self.min_clients or max(3, -(-cohort // 2))


@dataclass(frozen=True, slots=True)
class ServerStatement:
    """What a server says of itself to whoever asks, signed (:mod:`uvsdk.federation.statements`).

    ``server_public_key`` is the raw X25519 key that admissions and templates are sealed to. ``needs`` names what an
    :class:`Admission` must hold, sorted. ``authorities`` are the names by which the server is called, ``host`` or
    ``host:port``.
    """

    deployment: str
    config_digest: str
    server_key_id: str
    server_public_key: bytes
    model_version: str
    needs: tuple[str, ...]
    authorities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoundHeader:
    """What a device learns of a round before it takes part (SPEC Appendix A), signed like a :class:`ServerStatement`.

    ``server_public_key`` is the raw X25519 key that the update is sealed to. ``clip_norm`` is the longest update that
    counts: the device shortens a longer one, and the server does so where the device does not.
    """

    deployment: str
    algorithm: str
    round_id: int
    model_version: str
    config_digest: str
    deadline_unix_s: float
    server_key_id: str
    server_public_key: bytes
    cohort: int
    clip_norm: float


@dataclass(frozen=True, slots=True)
class EvaluationHeader:
    """What a device learns of an evaluation before it answers, signed like a :class:`RoundHeader`.

    Args:
        deployment: its name.
        algorithm: of the training.
        evaluation_id: counts evaluations of the deployment.
        candidate: model version under evaluation.
        released: model version that verifies now; the same where that is evaluated alone.
        impostors: where impostors' scores come from (:data:`uvsdk.release.report.Impostors`).
        config_digest: of the training configuration.
        deadline_unix_s: when the evaluation closes at the latest.
        server_key_id: of the next.
        server_public_key: the raw X25519 key that the report is sealed to.
        asked: devices that are asked.
    """

    deployment: str
    algorithm: str
    evaluation_id: int
    candidate: str
    released: str
    impostors: str
    config_digest: str
    deadline_unix_s: float
    server_key_id: str
    server_public_key: bytes
    asked: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What a user's device sends once, when it joins; fields that the algorithm does not need are empty.

    Args:
        user: hashed id.
        model_version: of the model that ``mean`` was made with.
        samples: enrolment samples.
        mean: float32 (d,), the mean of the enrolment embeddings, not normalised again.
        instances: uint8 (n, 32), a keyed hash of each sample's canonical bytes, sorted
            (:func:`uvsdk.privacy.identifiers.hash_instance`).
        person: keyed hash that links the identities of one person; empty where there is no link.
        classes: names of the classes that the device holds samples of, sorted; empty for the user alone.
    """

    user: str
    model_version: str
    samples: int
    mean: Float32
    instances: UInt8 = field(default_factory=lambda: np.empty((0, 32), np.uint8))
    person: str = ""
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TemplateUpload:
    """What a device sends when its user wants to be verified on the server too; never otherwise.

    ``template`` is everything the device itself decides by, made with ``model_version``: the unit embedding, the number
    of samples, their conditions and the person's threshold (:meth:`uvsdk.templates.template.Template.packed`).
    """

    user: str
    model_version: str
    template: bytes


@dataclass(frozen=True, slots=True)
class Numbered:
    """An :class:`Admission` or a :class:`TemplateUpload`, packed, in the order in which its device made them.

    A server takes no ``number`` that is not above the last of that device, so that nothing captured earlier can take
    the place of something newer.
    """

    number: int
    body: bytes

    def __post_init__(self) -> None:
        if not -(1 << 63) <= self.number < 1 << 63:  # as databases keep it
            raise WireError("a message's number has at most 64 bits")


@dataclass(frozen=True, slots=True)
class UpdateHead:
    """First chunk of an update; the others are the delta of theta, float32, in order.

    ``payload`` is the algorithm's own ``Payload``, packed. The ids are repeated inside the seal on purpose.
    """

    round_id: int
    algorithm: str
    model_version: str
    samples: int
    parameters: int
    payload: bytes


# What is packed names its class: this Task and Request, and those of each algorithm, keep their names.
@dataclass(frozen=True, slots=True)
class Task:
    """What the server seals to one device for one round; ``body`` is the algorithm's own ``Task``, packed."""

    round_id: int
    algorithm: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Invitation:
    """What the server seals to a device that may choose what it is sent: ``body`` is the algorithm's, packed."""

    round_id: int
    algorithm: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """What a device asks for in one round, sealed to the server: ``body`` is the algorithm's, packed."""

    round_id: int
    algorithm: str
    body: bytes


@dataclass(frozen=True, slots=True)
class OptimiserState:
    """What the server optimiser keeps between steps.

    Args:
        steps: made so far.
        first: float32 (P,), first moment; (0,) where unused.
        second: float32 (P,), second moment; (0,) where unused.
        control: float32 (P,), SCAFFOLD's c; (0,) where unused.
    """

    steps: int
    first: Float32
    second: Float32
    control: Float32 = field(default_factory=lambda: np.empty(0, np.float32))
