"""What training towards fixed class vectors sends and receives, and who learns what of it."""

from __future__ import annotations

from dataclasses import dataclass

from uvsdk.arrays import Float32
from uvsdk.federation.classes.matrix import check_hinge
from uvsdk.federation.strategy import Disclosure


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of training towards fixed class vectors.

    Args:
        margin_positive: tau_p of the positive hinge, 0.9 (S0 Eq 23); 1 keeps it always active.
        initialisation: ``random``, as the papers' baseline has it, ``client_means`` or ``centred_client_means``.
    """

    margin_positive: float = 0.9
    initialisation: str = "random"

    def __post_init__(self) -> None:
        check_hinge(self)

    @property
    def vector_rate(self) -> float:
        """0: the class vector never moves."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """Server to device, each round: the device's own class vector, float32 (d,), unit, the same in every round."""

    vector: Float32


@dataclass(frozen=True, slots=True)
class Payload:
    """Device to server, each round: nothing beside the trunk's delta."""


DISCLOSURE = Disclosure(
    sends=("the change of the trunk's parameters", "the number of enrolment samples"),
    receives=("the trunk's parameters", "the own class vector, drawn by the server and never moved"),
    once=("the mean of the enrolment embeddings under an initialisation from means",),
    server_learns=(
        "each device's change of the trunk, under a hashed id; the class vector it drew itself, which says nothing "
        "about a person when random but to which the trained trunk maps that person"
    ),
    others_learn="the trunk that all trained together; nobody else's class vector, and not who takes part",
)
