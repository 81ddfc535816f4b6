"""Error-correcting codewords as class vectors nobody but their owner knows (FedUV, Hosseini et al. 2021; SPEC 6.1).

A message is the user's number b_u, which the server hands out, 32 bits big-endian, followed by secret bits r_u that
only the device knows. Its BCH codeword, written with +-1 and divided by sqrt(c), is a unit vector, and the least
distance of the code bounds how close two users' vectors can lie, whoever they are: their cosine is at most
1 - 2 d_min / c.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from uvsdk.arrays import Bool, Float32, UInt8
from uvsdk.errors import SettingsError
from uvsdk.federation.algorithms.feduv.bch import BCH

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMBER_BITS = 32
"""l_b: bits of the number at the head of a message. A fixed width keeps distinct numbers distinct messages."""

SHORTEST_SECRET_BITS = 32
"""No code with a shorter secret is offered; even 2^32 secrets can be tried offline by whoever can test one."""

MESSAGE_BITS: Mapping[int, int] = MappingProxyType({127: 64, 255: 99, 511: 130})
"""Code length c -> message bits k of the preset of that length (SPEC 6.1)."""


@dataclass(frozen=True, slots=True, repr=False)
class Code:
    """A BCH code of length c for messages of k bits, systematic: a codeword starts with its message.

    Args:
        length: c.
        message_bits: k.
        distance: d_min by design.
    """

    length: int
    message_bits: int
    distance: int
    _inner: BCH

    def __repr__(self) -> str:
        return f"Code({self.length}, {self.message_bits}, distance {self.distance})"

    @property
    def secret_bits(self) -> int:
        """l_r: what of a message is the device's own."""
        return self.message_bits - NUMBER_BITS

    def message(self, number: int, secret: bytes) -> UInt8:
        """b_u || r_u as bits, uint8 (k,); ``secret`` is cut to its first ``secret_bits`` bits.

        Raises:
            SettingsError: a number that 32 bits do not hold, or too short a secret.
        """
        if not 0 <= number < 1 << NUMBER_BITS:
            raise SettingsError(f"a user's number has {NUMBER_BITS} bits; this one does not fit")
        if 8 * len(secret) < self.secret_bits:
            raise SettingsError(f"a secret has {8 * len(secret)} bits, the code takes {self.secret_bits}")
        own = np.unpackbits(np.frombuffer(number.to_bytes(NUMBER_BITS // 8, "big"), np.uint8))
        drawn = np.unpackbits(np.frombuffer(secret, np.uint8))[: self.secret_bits]
        return np.concatenate((own, drawn))

    def encode(self, message: UInt8) -> UInt8:
        """Bits (..., k) -> the codeword's bits, uint8 (..., c)."""
        return self._inner.encode(message)

    def decode(self, bits: UInt8) -> tuple[UInt8, Bool]:
        """Messages, uint8 (n, k), whose codewords lie within (d_min - 1) / 2 flips of the rows of ``bits`` (n, c).

        The second value, bool (n,), says of which rows that is true; the other rows' messages mean nothing.
        """
        return self._inner.decode(bits)

    def vector(self, message: UInt8) -> Float32:
        """v / sqrt(c) of a message, float32 (..., c), unit: bit 1 is +1, bit 0 is -1."""
        signs = 2.0 * self.encode(message).astype(np.float64) - 1.0
        return np.asarray(signs / np.sqrt(self.length), np.float32)


def secret_bytes(message_bits: int) -> int:
    """Bytes of secret that a message of that many bits takes.

    >>> secret_bytes(99)
    9
    """
    return -(-(message_bits - NUMBER_BITS) // 8)


def number_of(message: UInt8) -> int:
    """b_u of a message, bits (k,).

    >>> number_of(np.unpackbits(np.array([0, 0, 1, 2, 255], np.uint8)))
    258
    """
    return int.from_bytes(np.packbits(message[:NUMBER_BITS]).tobytes(), "big")


def check_layout(length: int, message_bits: int, least_secret_bits: int) -> None:
    """Refuse a code length that no preset has, and a message with too little secret.

    Raises:
        SettingsError: naming the backbone to use instead.
    """
    if length not in MESSAGE_BITS:
        raise SettingsError(
            f"the trunk has {length} dimensions, and a codeword has one of {sorted(MESSAGE_BITS)}; give the trunk a "
            "head of that size: the backbone '<name>+255', e.g. 'ge2e+255'"
        )
    secret_bits = message_bits - NUMBER_BITS
    if secret_bits < least_secret_bits:
        raise SettingsError(
            f"a message of {message_bits} bits leaves {secret_bits} secret ones, at least {least_secret_bits} are "
            "asked for; use a longer code (the backbone '<name>+255') or allow fewer"
        )


@functools.cache
def code(length: int, message_bits: int) -> Code:
    """The BCH code of that length and message.

    Raises:
        SettingsError: there is no such code.
    """
    try:
        inner = BCH.of(length, message_bits)
    except ValueError as error:
        raise SettingsError(f"there is no BCH code of length {length} for messages of {message_bits} bits") from error
    return Code(length, message_bits, inner.distance, inner)
