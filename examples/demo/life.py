"""After each release: the same few genuine people and impostors, over REST and offline on the device."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import soundfile
from coordination import Coordination
from crowd import Crowd
from groups import Groups
from people import Adopt, VerifyOffline

from uvsdk import Decision

Route = Literal["REST", "offline"]
ROUTES: tuple[Route, ...] = ("REST", "offline")

PAIRS = 6
"""People who are claimed after each release: half of them trained and half did not, as far as there are so many."""
_CLIPS = 5
"""Of a phrase: verification clips in a row, since one syllable tells little of who speaks."""
_LEAST_CHANCE = 0.01
"""So many impostors let in, or more, may come about by the false match rate with this chance; fewer fail the run."""
_SAME = 1e-4
"""By how much the score of one phrase may differ between server and device, which run the same model."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A person who is claimed, and who claims to be them."""

    claimed: str
    impostor: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One verification.

    Args:
        pair: who is claimed, and by whom where it is no genuine attempt.
        genuine: whether the claimed person spoke.
        route: over which it was decided.
        accepted: what was decided; ``None`` where nothing was.
        score: what the threshold was held against.
        threshold: likewise.
        release: that it was decided by.
        asked_fmr: the false match rate that was asked for; ``None`` where the basis of the decision has none.
        fmr: that the threshold was read for.
        domain: ``inside``, ``outside`` of what was calibrated, or ``unknown``.
        refusal: why nothing was decided.
    """

    pair: Pair
    genuine: bool
    route: Route
    accepted: bool | None = None
    score: float = math.nan
    threshold: float = math.nan
    release: int = 0
    asked_fmr: float | None = None
    fmr: float = math.nan
    domain: str = "unknown"
    refusal: str = ""

    @property
    def words(self) -> str:
        """For a table."""
        if self.accepted is None:
            return self.refusal
        return f"{'accepted' if self.accepted else 'rejected'} ({self.score:.2f}, threshold {self.threshold:.2f})"


@dataclass(frozen=True, slots=True)
class Count:
    """How many of how many attempts were accepted."""

    accepted: int
    tried: int

    def __str__(self) -> str:
        return f"{self.accepted} of {self.tried}"


@dataclass(frozen=True, slots=True)
class Strangers:
    """Single samples of people who never trained, as impostors, at a release's threshold: from outside."""

    fmr: float
    trials: int


@dataclass(frozen=True, slots=True)
class Lived:
    """A release, and what verified by it.

    Args:
        release: as the server tells of it.
        attempts: over both routes.
        strangers: where the release's threshold is one number, read from the deployment's own people.
    """

    release: Mapping[str, Any]
    attempts: tuple[Attempt, ...]
    strangers: Strangers | None = None

    @property
    def number(self) -> int:
        """Of the release."""
        return int(self.release["number"])

    @property
    def cause(self) -> str:
        """Why there is this release."""
        return str(self.release["cause"])

    @property
    def evaluation(self) -> Mapping[str, Any] | None:
        """What the evaluating people told of it; ``None`` where nobody had been asked yet."""
        return next(iter(self.release["evaluation"]), None)

    def count(self, route: Route, *, genuine: bool) -> Count:
        """Of the attempts that were decided."""
        found = [item.accepted for item in self.attempts if item.route == route and item.genuine == genuine]
        return Count(sum(item is True for item in found), sum(item is not None for item in found))

    def counts(self, *, genuine: bool) -> str:
        """Over REST and offline, for a table."""
        if not self.attempts:
            return "–"
        rest, offline = (self.count(route, genuine=genuine) for route in ROUTES)
        if rest.tried == offline.tried:
            return f"{rest.accepted}·{offline.accepted}/{rest.tried}"
        return f"{rest.accepted}/{rest.tried}·{offline.accepted}/{offline.tried}"

    @property
    def decided(self) -> list[Attempt]:
        """Attempts that were decided."""
        return [item for item in self.attempts if item.accepted is not None]

    @property
    def thresholds(self) -> tuple[float, float] | None:
        """The lowest and the highest; two numbers where more is asked of those who lie outside of what was measured."""
        found = [item.threshold for item in self.decided]
        return (min(found), max(found)) if found else None

    @property
    def rates(self) -> tuple[float | None, float] | None:
        """The false match rate that was asked for, and the one that the threshold was read for."""
        found = {(item.asked_fmr, item.fmr) for item in self.decided}
        return max(found, key=lambda rates: rates[1]) if found else None

    @property
    def outside(self) -> bool:
        """Whether the release's calibration says of some attempt that it was made of other people and conditions."""
        return any(item.domain == "outside" for item in self.decided)

    @property
    def objection(self) -> str:
        """Why what happened is not what the release says of itself; empty where it is."""
        undecided = [item for item in self.attempts if item.accepted is None]
        if undecided:
            return f"{len(undecided)} attempts were not decided: {undecided[0].refusal}"
        for route in ROUTES:
            found, rates = self.count(route, genuine=False), self.rates
            if rates is not None and chance(found, rates[1]) < _LEAST_CHANCE:
                return (
                    f"{found} impostors were accepted {route}, which a false match rate of {rates[1]:g} does not allow"
                )
        apart = self.apart
        return f"{apart} attempts were decided otherwise over REST than on the device" if apart else ""

    @property
    def words(self) -> str:
        """One line: what was released, and who was let in."""
        told = f"release {self.number} ({self.cause})"
        if not self.attempts:
            return f"{told}: replaced before anybody was tried"
        problem = f"; {self.objection}" if self.objection else ""
        accepted = f"{self.counts(genuine=True)} genuine, {self.counts(genuine=False)} impostors"
        return f"{told}: accepted {accepted} (REST · offline){problem}"

    @property
    def apart(self) -> int:
        """Attempts in which server and device verified by the same release and did not come to the same."""
        sides = [{(item.pair, item.genuine): item for item in self.decided if item.route == route} for route in ROUTES]
        both = [(sides[0][key], sides[1][key]) for key in sides[0].keys() & sides[1].keys()]
        same = [pair for pair in both if pair[0].release == pair[1].release]
        return sum(a.accepted != b.accepted or abs(a.score - b.score) > _SAME for a, b in same)


def chance(count: Count, rate: float) -> float:
    """The chance that at least so many of so many impostors are let in, each with the chance ``rate``.

    >>> round(chance(Count(1, 6), 0.01), 4), round(chance(Count(2, 6), 0.01), 5), chance(Count(0, 6), 0.01)
    (0.0585, 0.00146, 1.0)
    """
    return math.fsum(
        math.comb(count.tried, k) * rate**k * (1.0 - rate) ** (count.tried - k)
        for k in range(count.accepted, count.tried + 1)
    )


def pairs(groups: Groups, consistent: Sequence[str]) -> tuple[Pair, ...]:
    """Whom to try: the people whose enrolment samples agree best, as many who trained as who did not, each claimed by
    a stranger in turn; where nobody is kept out, by who evaluates, and where nobody does, by the others.

    Args:
        groups: of everybody.
        consistent: names, the most consistent first.
    """
    sides = [[name for name in consistent if name in group] for group in (groups.trained, groups.evaluate)]
    half = PAIRS // 2
    claimed = [*sides[0][:half], *sides[1][:half], *sides[0][half:]][:PAIRS]
    found = []
    for place, name in enumerate(claimed):
        others = [other for other in (groups.outside or groups.evaluate or groups.trained) if other != name] or [
            other for other in groups.joined if other != name
        ]
        found.append(Pair(name, others[place % len(others)]))
    return tuple(found)


def phrase(samples: Sequence[Path], modality: str) -> bytes:
    """What a person hands in to be verified: one image, or a phrase of five verification clips in a row."""
    if modality != "voice":
        return samples[0].read_bytes()
    clips = [soundfile.read(path, dtype="float32", always_2d=True) for path in samples[:_CLIPS]]
    rate = clips[0][1]
    joined = np.concatenate([pcm.mean(axis=1) for pcm, clip_rate in clips if clip_rate == rate])
    spoken = io.BytesIO()
    soundfile.write(spoken, joined, rate, format="WAV", subtype="PCM_16")
    wav: bytes = spoken.getvalue()
    return wav


@dataclass(frozen=True, slots=True)
class Witness:
    """Tries the same pairs after each release.

    Args:
        crowd: the devices.
        deployment: by which they know it.
        pairs: whom to try.
        phrases: name -> what the person hands in.
        users: name -> hashed id.
    """

    crowd: Crowd
    deployment: str
    pairs: tuple[Pair, ...]
    phrases: Mapping[str, bytes]
    users: Mapping[str, str]

    def try_all(self, server: Coordination, release: Mapping[str, Any]) -> Lived:
        """Everybody who is claimed looks for the release, and then they are tried, and whoever claims to be them."""
        self.crowd.ask_all(Adopt(self.deployment), [pair.claimed for pair in self.pairs])
        rest = tuple(
            over_rest(pair, server.verify(self.users[pair.claimed], probe), genuine=genuine)
            for genuine in (True, False)
            for pair, probe in self._probes(genuine=genuine).items()
        )
        return Lived(release, rest + self.try_offline())

    def try_offline(self) -> tuple[Attempt, ...]:
        """On the devices alone."""
        attempts = list[Attempt]()
        for genuine in (True, False):
            probes = self._probes(genuine=genuine)
            answers = self.crowd.ask_each({pair.claimed: VerifyOffline(probe) for pair, probe in probes.items()})
            attempts += [on_device(pair, answers[pair.claimed], genuine=genuine) for pair in probes]
        return tuple(attempts)

    def _probes(self, *, genuine: bool) -> dict[Pair, bytes]:
        return {pair: self.phrases[pair.claimed if genuine else pair.impostor] for pair in self.pairs}


def on_device(pair: Pair, answer: object, *, genuine: bool) -> Attempt:
    """What a device said of a probe."""
    if not isinstance(answer, Decision):
        return Attempt(pair, genuine, "offline", refusal=f"{type(answer).__name__}: {answer}")
    return Attempt(
        pair,
        genuine,
        "offline",
        accepted=answer.accepted,
        score=answer.value,
        threshold=answer.threshold.score,
        release=answer.basis.release,
        asked_fmr=answer.basis.asked_fmr,
        fmr=answer.threshold.fmr,
        domain=answer.basis.placement.verdict,
    )


def over_rest(pair: Pair, answer: httpx.Response, *, genuine: bool) -> Attempt:
    """What the server said of a probe."""
    body = answer.json()
    if answer.status_code != 200:
        return Attempt(pair, genuine, "REST", refusal=f"{answer.status_code} {problem(body)}")
    basis, threshold = body["basis"], body["threshold"]
    return Attempt(
        pair,
        genuine,
        "REST",
        accepted=body["accepted"],
        score=body["llr"] if threshold["scale"] == "llr" else body["score"],
        threshold=threshold["score"],
        release=basis["release"],
        asked_fmr=basis["asked_fmr"],
        fmr=threshold["fmr"],
        domain=basis["domain"],
    )


def problem(document: Mapping[str, object]) -> str:
    """Kind and detail of a problem document, for people."""
    return str(document.get("type", "")).rsplit(":", 1)[-1] + f": {document.get('detail', '')}"
