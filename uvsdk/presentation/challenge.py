"""Challenges: what a person is asked to say or do now, so that nothing recorded before can answer it."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from uvsdk.errors import ChallengeError, SettingsError, WireError
from uvsdk.records.codec import pack, unpack
from uvsdk.records.transfer import stays_here
from uvsdk.system.forking import in_child

ChallengeKind: TypeAlias = Literal["digits", "head-turns"]
"""``digits``: say these digits. ``head-turns``: look straight, left or right, in this order."""

DIGITS: Final = tuple("0123456789")
TURNS: Final = ("left", "right")
STRAIGHT: Final = "straight"
LIFETIME_S: Final = 30.0
"""How long a challenge may be answered: time to read it and to answer, not to have a voice synthesised by hand."""

MAXIMUM_STEPS: Final = 32

_KINDS: Final[dict[str, ChallengeKind]] = {kind: kind for kind in get_args(ChallengeKind)}
_STEPS: Final = {"digits": DIGITS, "head-turns": (*TURNS, STRAIGHT)}
_DEFAULT_COUNT: Final = {"digits": 6, "head-turns": 3}


@dataclass(frozen=True, slots=True)
class Challenge:
    """One thing to say or do, once, within a time.

    It is no secret and may travel in clear, but an answer counts only for the challenge that was issued: keep what
    :class:`Challenges` gave, and do not take it back from the one who answers.

    Args:
        identifier: 32 hexadecimal digits.
        kind: see :data:`ChallengeKind`.
        steps: in order: digits ``"0"`` to ``"9"``, or ``"left"``, ``"right"`` and ``"straight"``.
        issued_at_s: Unix time.
        expires_at_s: Unix time from which no answer counts.

    Raises:
        ChallengeError: a field that no challenge of that kind has.
    """

    identifier: str
    kind: ChallengeKind
    steps: tuple[str, ...]
    issued_at_s: float
    expires_at_s: float

    def __post_init__(self) -> None:
        if self.kind not in get_args(ChallengeKind):
            raise ChallengeError(f"a challenge is of kind {' or '.join(get_args(ChallengeKind))}, got {self.kind!r}")
        if len(self.identifier) != 32 or not set(self.identifier) <= set("0123456789abcdef"):
            raise ChallengeError("a challenge's identifier is 32 hexadecimal digits")
        if not 1 <= len(self.steps) <= MAXIMUM_STEPS or not set(self.steps) <= set(_STEPS[self.kind]):
            raise ChallengeError(f"a {self.kind} challenge has 1 to {MAXIMUM_STEPS} steps, got {self.steps[:40]}")
        if not math.isfinite(self.issued_at_s) or not self.issued_at_s < self.expires_at_s < math.inf:
            raise ChallengeError(f"a challenge expires after it is issued, got {self.issued_at_s}, {self.expires_at_s}")

    @property
    def prompt(self) -> str:
        """What to show the person.

        >>> Challenge("0" * 32, "digits", ("4", "0", "7"), 0.0, 30.0).prompt
        'say: 4 0 7'
        """
        if self.kind == "digits":
            return f"say: {' '.join(self.steps)}"
        return f"look {', then '.join(self.steps)}"

    def lateness_s(self, answered_at_s: float) -> float:
        """Seconds by which an answer misses the time it may be given in; 0 within it."""
        return max(self.issued_at_s - answered_at_s, answered_at_s - self.expires_at_s, 0.0)

    def to_bytes(self) -> bytes:
        """For sending it to the one who shows it."""
        return pack(_Record(self.identifier, self.kind, self.steps, float(self.issued_at_s), float(self.expires_at_s)))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Challenge:
        """The inverse of :meth:`to_bytes`. Raises :class:`ChallengeError` for anything else."""
        try:
            found = unpack(_Record, data)
        except WireError as error:
            raise ChallengeError(f"not a challenge: {error}") from error
        kind = _KINDS.get(found.kind)
        if kind is None:
            raise ChallengeError(f"a challenge of a kind that is not known here, {found.kind[:40]!r}; update uvsdk")
        return cls(found.identifier, kind, found.steps, found.issued_at_s, found.expires_at_s)


@dataclass(frozen=True, slots=True)
class _Record:
    """A challenge as bytes; its kind is text there, so that one of a later version is told by name."""

    identifier: str
    kind: str
    steps: tuple[str, ...]
    issued_at_s: float
    expires_at_s: float


def draw(kind: ChallengeKind, now_s: float, *, count: int | None = None, lifetime_s: float = LIFETIME_S) -> Challenge:
    """A new challenge, its steps drawn by the operating system's random numbers.

    Args:
        kind: see :data:`ChallengeKind`.
        now_s: Unix time.
        count: digits, of which no two in a row are equal (6, one in 590,490 by chance), or turns, each begun and ended
            looking straight (3, one in 8).
        lifetime_s: see :data:`LIFETIME_S`.

    Raises:
        SettingsError: a count outside 1 to 15, or no lifetime.
    """
    number = _DEFAULT_COUNT[kind] if count is None else count
    if not 1 <= number <= 15 or not 0 < lifetime_s < math.inf:
        raise SettingsError(f"a challenge has 1 to 15 digits or turns and a lifetime, got {number}, {lifetime_s} s")
    if kind == "digits":
        steps: list[str] = []
        for _ in range(number):
            steps.append(secrets.choice([digit for digit in DIGITS if steps[-1:] != [digit]]))
    else:
        steps = [STRAIGHT]
        for _ in range(number):
            steps += [secrets.choice(TURNS), STRAIGHT]
    return Challenge(secrets.token_hex(16), kind, tuple(steps), now_s, now_s + lifetime_s)


class Challenges:
    """The challenges that wait for an answer; safe to use from several threads.

    They live in memory: after a restart nobody's answer counts, which asks for nothing but a new challenge.

    Args:
        clock: gives Unix time.
        capacity: how many may wait; beyond it the oldest is withdrawn, so a flood of requests takes no memory.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time, capacity: int = 10_000) -> None:
        if capacity < 1:
            raise SettingsError(f"at least one challenge must be able to wait, got a capacity of {capacity}")
        self._clock, self._capacity = clock, capacity
        self._open: OrderedDict[str, Challenge] = OrderedDict()
        self._renew()
        in_child(self, Challenges._renew)

    __reduce_ex__ = stays_here("a challenge is answered where it was issued; make Challenges() in each process")

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def issue(self, kind: ChallengeKind, *, count: int | None = None, lifetime_s: float = LIFETIME_S) -> Challenge:
        """A new challenge that waits for its answer, see :func:`draw`."""
        now_s = self._clock()
        challenge = draw(kind, now_s, count=count, lifetime_s=lifetime_s)
        with self._lock:
            for identifier in [name for name, waiting in self._open.items() if waiting.expires_at_s <= now_s]:
                del self._open[identifier]
            while len(self._open) >= self._capacity:
                self._open.popitem(last=False)
            self._open[challenge.identifier] = challenge
        return challenge

    def redeem(self, identifier: str) -> Challenge:
        """The challenge of that identifier, which from now on nobody can answer again.

        Raises:
            ChallengeError: never issued here, answered before, or expired. Which one is not told apart from the
                first two, since a used challenge is forgotten.
        """
        with self._lock:
            challenge = self._open.pop(identifier, None)
        if challenge is None:
            raise ChallengeError("there is no such challenge, or it was answered before: ask for a new one")
        late_s = challenge.lateness_s(self._clock())
        if late_s > 0:
            raise ChallengeError(f"the challenge expired {late_s:.1f} s ago: ask for a new one, and answer at once")
        return challenge
