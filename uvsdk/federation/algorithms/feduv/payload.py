"""What FedUV sends and receives, and who learns what of it."""

from __future__ import annotations

from dataclasses import dataclass

from uvsdk.errors import SettingsError
from uvsdk.federation.algorithms.feduv.codewords import NUMBER_BITS, SHORTEST_SECRET_BITS
from uvsdk.federation.strategy import Disclosure

LOSSES = ("linear", "squared")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of FedUV. The code's length is the trunk's dimension: a backbone with a head, ``<name>+255``.

    Args:
        message_bits: k, bits of number and secret together; 0 takes the preset of the code's length, 127/64, 255/99
            or 511/130 (SPEC 6.1).
        least_secret_bits: codes that leave fewer secret bits are refused: 64, and never below 32.
        loss: ``linear``, 1 - s (UV Alg 2), or ``squared``, (1 - s)^2, as S3 Eq 3 quotes it.
    """

    message_bits: int = 0
    least_secret_bits: int = 64
    loss: str = "linear"

    def __post_init__(self) -> None:
        if self.message_bits and self.message_bits < NUMBER_BITS + SHORTEST_SECRET_BITS:
            raise SettingsError(
                f"message_bits is {self.message_bits}; a message holds {NUMBER_BITS} bits of number and at least "
                f"{SHORTEST_SECRET_BITS} of secret, or 0 stands for the preset"
            )
        if self.least_secret_bits < SHORTEST_SECRET_BITS:
            raise SettingsError(
                f"least_secret_bits is {self.least_secret_bits}; fewer than {SHORTEST_SECRET_BITS} can be tried out"
            )
        if self.loss not in LOSSES:
            raise SettingsError(f"loss {self.loss!r} is not one of {LOSSES}")


@dataclass(frozen=True, slots=True)
class Task:
    """Server to device, each round: the user's number b_u, and the code: its length c and its message bits k."""

    number: int
    code_length: int
    message_bits: int


@dataclass(frozen=True, slots=True)
class Payload:
    """Device to server, each round: nothing beside the delta of the trunk, its head included."""


DISCLOSURE = Disclosure(
    sends=("the change of the trunk's parameters", "the number of enrolment samples"),
    receives=("the trunk's parameters", "the own number, which the server handed out"),
    once=(),
    server_learns=(
        "each device's change of the trunk, its head included, under a hashed id, from which the secret codeword can "
        "be computed as long as changes arrive one by one; no vector is sent, and no recording, photo or embedding"
    ),
    others_learn="the trunk that all trained together; nobody else's codeword, and not who takes part",
)
