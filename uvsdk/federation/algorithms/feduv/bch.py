"""Binary BCH codes of length 2^m - 1: the generator by cyclotomic cosets, systematic encoding, decoding in rows.

Source: Lin and Costello, "Error Control Coding", 2nd edition, 2004, chapter 6. Words are written with the highest power
first, so that a codeword starts with its message. Rows are decoded together: syndromes, Massey's shift registers
(1969), and the roots of what they find at every place of a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from uvsdk.arrays import Bool, Float32, UInt8

PRIMITIVE: Mapping[int, int] = MappingProxyType({7: 0b1000_1001, 8: 0b1_0001_1101, 9: 0b10_0001_0001})
"""m -> the primitive polynomial of GF(2^m), a bit a power: x^7+x^3+1, x^8+x^4+x^3+x^2+1, x^9+x^4+1."""

Elements = NDArray[np.int64]
"""Elements of GF(2^m) as polynomials, a bit a power."""


@dataclass(frozen=True, slots=True)
class Field:
    """GF(2^m) by the powers of its generator: ``power[i]`` is alpha^i, twice round, and ``log`` is the way back."""

    power: Elements
    log: Elements

    @classmethod
    def of(cls, degree: int) -> Field:
        """GF(2^degree), of the degrees of :data:`PRIMITIVE`."""
        order = (1 << degree) - 1
        powers = [1]
        for _ in range(1, order):
            doubled = powers[-1] << 1
            powers.append(doubled ^ PRIMITIVE[degree] if doubled > order else doubled)
        power = np.array(2 * powers, np.int64)
        log = np.zeros(order + 1, np.int64)
        log[power[:order]] = np.arange(order)
        return cls(power, log)

    def times(self, a: Elements, b: Elements) -> Elements:
        """a b, elementwise."""
        product: Elements = np.where((a != 0) & (b != 0), self.power[self.log[a] + self.log[b]], 0)
        return product

    def inverse(self, a: Elements) -> Elements:
        """1 / a, elementwise; what it says of 0 means nothing."""
        inverse: Elements = self.power[len(self.log) - 1 - self.log[a]]
        return inverse


@dataclass(frozen=True, slots=True, repr=False)
class BCH:
    """One code.

    Args:
        length: n.
        message_bits: k.
        distance: the designed one, as large as its roots allow: alpha, alpha^2, ... alpha^(distance - 1).
        field: GF(2^m).
        parity: float32 (k, n - k), bits: what follows a message that is one bit.
    """

    length: int
    message_bits: int
    distance: int
    field: Field
    parity: Float32

    @classmethod
    def of(cls, length: int, message_bits: int) -> BCH:
        """The code of that length and message.

        Raises:
            ValueError: there is none.
        """
        degree = length.bit_length()
        if degree not in PRIMITIVE or length != (1 << degree) - 1:
            raise ValueError(f"no code has length {length}")
        if not 1 <= message_bits < length:
            raise ValueError(f"no code of length {length} has messages of {message_bits} bits")
        field = Field.of(degree)
        roots: set[int] = set()
        generator, root = 1, 1
        # Each root brings those that have its minimal polynomial; the code of k bits takes as many as leave k.
        while root in roots or length - len(roots) > message_bits:
            if root not in roots:
                conjugates = _conjugates(root, length)
                generator = _carryless(generator, _minimal_polynomial(conjugates, field))
                roots |= conjugates
            root += 1
        if length - len(roots) != message_bits:
            raise ValueError(f"no code of length {length} has messages of {message_bits} bits")
        return cls(length, message_bits, root, field, _parity(generator, length, message_bits))

    def encode(self, messages: UInt8) -> UInt8:
        """Bits (..., k) -> codewords, uint8 (..., n)."""
        # Sums of at most k ones, which float32 holds exactly.
        parity = (messages.astype(np.float32) @ self.parity).astype(np.int64) & 1
        return np.concatenate((messages, parity), axis=-1).astype(np.uint8)

    def decode(self, words: UInt8) -> tuple[UInt8, Bool]:
        """Messages, uint8 (rows, k), of the codewords within (distance - 1) / 2 flips of the words (rows, n).

        The second value, bool (rows,), says of which rows there is one; the others' messages mean nothing.
        """
        corrected = (words != 0).astype(np.uint8)
        most = (self.distance - 1) // 2
        locator, flips = self._locator(self._syndromes(corrected), most)
        # A word's place i belongs to alpha^(n-1-i); an error there makes alpha^-(n-1-i) a root.
        exponent = -np.arange(self.length - 1, -1, -1) % self.length
        value = np.zeros(words.shape, np.int64)
        for order in range(most + 1):
            power = self.field.power[exponent * order % self.length]
            value ^= self.field.times(locator[:, order, None], power[None])
        wrong = value == 0
        corrected[wrong] ^= 1
        found = (flips <= most) & (wrong.sum(axis=1) == flips) & ~self._syndromes(corrected).any(axis=1)
        return corrected[:, : self.message_bits], found

    def _syndromes(self, words: UInt8) -> Elements:
        """The word at alpha, alpha^2, ... alpha^(distance - 1): (rows, distance - 1)."""
        places = np.arange(self.length - 1, -1, -1)
        found = np.empty((len(words), self.distance - 1), np.int64)
        for root in range(1, self.distance):
            found[:, root - 1] = np.bitwise_xor.reduce(words * self.field.power[places * root % self.length], axis=1)
        return found

    def _locator(self, syndromes: Elements, most: int) -> tuple[Elements, Elements]:
        """The shortest shift register of each row of syndromes, (rows, most + 1), and its length.

        Where the length is more than ``most``, the register is cut and means nothing.
        """
        field, rows = self.field, len(syndromes)
        register = np.zeros((rows, most + 1), np.int64)
        register[:, 0] = 1
        before, length = register.copy(), np.zeros(rows, np.int64)
        for step in range(2 * most):
            taken = min(step, most)
            past = syndromes[:, step - taken : step + 1][:, ::-1]
            discrepancy = np.bitwise_xor.reduce(field.times(register[:, : taken + 1], past), axis=1)
            before = np.pad(before[:, :-1], ((0, 0), (1, 0)))
            changed = register ^ field.times(discrepancy[:, None], before)
            grows = (discrepancy != 0) & (2 * length <= step)
            restarted = field.times(field.inverse(discrepancy)[:, None], register)
            before = np.where(grows[:, None], restarted, before)
            length = np.where(grows, step + 1 - length, length)
            register = changed
        return register, length


def _conjugates(root: int, length: int) -> set[int]:
    """The exponents of the roots of the minimal polynomial of alpha^root."""
    found: set[int] = set()
    while root % length not in found:
        found.add(root % length)
        root *= 2
    return found


def _minimal_polynomial(conjugates: set[int], field: Field) -> int:
    """The product of x - alpha^i, whose coefficients are bits: a bit a power."""
    product = np.ones(1, np.int64)  # the lowest power first
    for exponent in sorted(conjugates):
        shifted, scaled = np.pad(product, (1, 0)), np.pad(product, (0, 1))
        product = shifted ^ field.times(scaled, field.power[exponent : exponent + 1])
    return sum(int(bit) << place for place, bit in enumerate(product))


def _carryless(a: int, b: int) -> int:
    """The product of two polynomials over GF(2)."""
    product = 0
    for place in range(b.bit_length()):
        product ^= a << place if b >> place & 1 else 0
    return product


def _parity(generator: int, length: int, message_bits: int) -> Float32:
    """What is left of x^(n-1), ... x^(n-k) on division by the generator: (k, n - k), the highest power first."""
    width = length - message_bits
    rest = 1 << width ^ generator  # x^(n-k)
    rows = []
    for _ in range(message_bits):
        rows.append([rest >> place & 1 for place in range(width - 1, -1, -1)])
        rest <<= 1
        rest ^= generator if rest >> width else 0
    return np.array(rows[::-1], np.float32)
