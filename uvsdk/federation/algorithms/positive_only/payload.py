"""What positives-only training sends and receives, and who learns what of it."""

from __future__ import annotations

from dataclasses import dataclass

from uvsdk.arrays import Float32
from uvsdk.federation.classes.matrix import check_hinge
from uvsdk.federation.strategy import Disclosure


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of positives-only training: those of FedAwS that are left where the server sees no geometry.

    Rows start from the users' own means as they are: centring them needs everybody's mean and is a spreadout of its
    own kind. Started from centred means the rows stayed apart as long as it was tried (voices, 60 rounds: mean cosine
    0.20, the hinge being satisfied before they met).

    Args:
        margin_positive: tau_p of the positive hinge, 0.9 (S0 Eq 23); 1 keeps it always active.
        vector_rate: learning rate of the own class vector as a multiple of the trunk's; 0 freezes it on the device.
        initialisation: ``client_means``, ``random`` or, to compare a regulariser alone, ``centred_client_means``.
    """

    margin_positive: float = 0.9
    vector_rate: float = 1.0
    initialisation: str = "client_means"

    def __post_init__(self) -> None:
        check_hinge(self)


@dataclass(frozen=True, slots=True)
class Task:
    """Server to device, each round: the device's own class vector, float32 (d,), unit."""

    vector: Float32


@dataclass(frozen=True, slots=True)
class Payload:
    """Device to server, each round, beside the trunk's delta: the trained class vector, float32 (d,), unit."""

    vector: Float32


DISCLOSURE = Disclosure(
    sends=(
        "the change of the trunk's parameters",
        "the own class vector: a direction that stands for this person, usable as a template",
        "the number of enrolment samples",
    ),
    receives=("the trunk's parameters", "the own class vector"),
    once=("the mean of the enrolment embeddings; nothing under initialisation = random",),
    server_learns=(
        "a template of every person under a hashed id, and each device's change of the trunk, from which the class "
        "vector can be computed as well; no recording, no photo, no single embedding of a person with several samples"
    ),
    others_learn="the trunk that all trained together; nobody else's class vector, and not who takes part",
)
