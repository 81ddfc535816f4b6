"""What FedALC-fixed sends and receives, and who learns what of it."""

from __future__ import annotations

from dataclasses import dataclass

from uvsdk.arrays import Float32
from uvsdk.errors import SettingsError
from uvsdk.federation.classes.labels import check_form
from uvsdk.federation.classes.matrix import check_hinge
from uvsdk.federation.strategy import Disclosure


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of FedALC-fixed.

    The paper leaves alpha, beta, the server's steps T' and its nu open; the defaults are SPEC 3.3's.

    Args:
        margin_positive: tau_p of the positive hinge, 0.9 (S2 Eq 14); 1 keeps it always active.
        initialisation: where the codebook starts: ``random``, ``client_means`` or ``centred_client_means``.
        alpha: weight of the pull between classes that occur together (S2 Eq 12).
        beta: weight of the push between classes that do not.
        unit_mean: scale sigma to mean 1, and pi by the same factor, so that ``step`` means what it means in FedAwS.
        largest_pull: pi is at most this many times the mean sigma, so that a device that lies about its samples cannot
            tie two others together harder than they are pushed apart (SPEC 3.7).
        step: lambda x eta_s of one step; halved whenever a step raises the objective.
        codebook_steps: T', the most steps before training.
        tolerance: the codebook is done when no row's tangent gradient is longer.
        margin: nu as a cosine distance; 0 takes 1.1 for up to 10 classes, 1.0 to 100, 0.8 above.
        max_angle_radians: longest move of a row in one step.
        instances: what devices hash to tell common samples: ``content``, ``embedding`` or ``off``.
        smallest_shared: fewest common samples for which a pair counts as correlated (SPEC 3.6); 1 counts every pair.
    """

    margin_positive: float = 0.9
    initialisation: str = "random"
    alpha: float = 1.0
    beta: float = 1.0
    unit_mean: bool = True
    largest_pull: float = 1.0
    step: float = 0.1
    codebook_steps: int = 2000
    tolerance: float = 1e-4
    margin: float = 0.0
    max_angle_radians: float = 0.3
    instances: str = "content"
    smallest_shared: int = 5

    def __post_init__(self) -> None:
        check_hinge(self)
        check_form(self.instances, self.smallest_shared)
        for name in ("alpha", "beta", "largest_pull", "step", "tolerance"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be finite and not negative")
        if self.codebook_steps < 0:
            raise SettingsError(f"codebook_steps is {self.codebook_steps}; it cannot be negative")
        if not 0 <= self.margin <= 2:
            raise SettingsError(f"a margin is a cosine distance in (0, 2], or 0 for the default, got {self.margin}")
        if not 0 < self.max_angle_radians <= 1.5:
            raise SettingsError(f"the longest step is {self.max_angle_radians} rad; it must lie in (0, 1.5]")

    @property
    def vector_rate(self) -> float:
        """0: the class vector never moves."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Invitation:
    """Server to device, before each round: nothing; the device knows what it has."""


@dataclass(frozen=True, slots=True)
class Request:
    """Device to server, before each round: SHA-256 of the class vector it keeps, hexadecimal, or nothing."""

    held: str


@dataclass(frozen=True, slots=True)
class Task:
    """Server to device, each round: the device's own class vector, float32 (d,), unit, or (0,) where it has it."""

    vector: Float32


@dataclass(frozen=True, slots=True)
class Payload:
    """Device to server, each round: nothing beside the trunk's delta."""


DISCLOSURE = Disclosure(
    sends=(
        "the change of the trunk's parameters",
        "the number of enrolment samples",
        "the hash of the vector it was given, so that this is not sent again",
    ),
    receives=("the trunk's parameters",),
    once=(
        "a keyed hash of each enrolment sample, 32 bytes, unless instances = off",
        "where the application links identities: a keyed hash of the person",
        "received: the own class vector, made by the server before training and never moved",
        "the mean of the enrolment embeddings under an initialisation from means",
    ),
    server_learns=(
        "each device's change of the trunk under a hashed id, and which devices hold the very same sample and how "
        "often; the class vector it made itself, to which the trained trunk maps that person"
    ),
    others_learn="the trunk that all trained together; nobody else's class vector, and not who takes part",
)
