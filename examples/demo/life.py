"""After each release: the same few genuine people and impostors, over REST and offline on the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import httpx
from coordination import Coordination
from crowd import Crowd
from groups import Groups
from people import Adopt, VerifyOffline

from uvsdk import Decision

Route = Literal["REST", "offline"]
ROUTES: tuple[Route, ...] = ("REST", "offline")

CLAIMED = 6
"""People who are claimed after each release: half of them trained and half did not, as far as there are so many."""
CLIPS = 3
"""Samples that each of them is verified by, one after the other: of the kind that the thresholds are made of."""
_LEAST_CHANCE = 0.01
"""So many impostors let in, or more, may come about by the false match rate with this chance; fewer fail the run."""
_SAME = 1e-4
"""By how much the score of one clip may differ between server and device, which run the same model."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A person who is claimed, who claims to be them, and which of their clips both hand in, from 0."""

    claimed: str
    impostor: str
    clip: int


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
    def switched(self) -> list[Attempt]:
        """Attempts that were decided by this release."""
        return [item for item in self.decided if item.release == self.number]

    @property
    def stayed(self) -> int:
        """People whose device did not switch to it: the release before verifies them, on the server too."""
        return len({item.pair.claimed for item in self.decided if item.release < self.number})

    @property
    def thresholds(self) -> tuple[float, float] | None:
        """The lowest and the highest; two numbers where more is asked of those who lie outside of what was measured."""
        found = [item.threshold for item in self.switched]
        return (min(found), max(found)) if found else None

    @property
    def rates(self) -> tuple[float | None, float] | None:
        """The false match rate that was asked for, and the one that the threshold was read for."""
        found = {(item.asked_fmr, item.fmr) for item in self.switched}
        return max(found, key=lambda rates: rates[1]) if found else None

    @property
    def outside(self) -> bool:
        """Whether the release's calibration says of some attempt that it was made of other people and conditions."""
        return any(item.domain == "outside" for item in self.switched)

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
        stayed = f"; {self.stayed} stay with the release before" if self.stayed else ""
        return f"{told}: accepted {accepted} (REST · offline){stayed}{problem}"

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
    strangers in turn; where nobody is kept out, by who evaluates, and where nobody does, by the others.

    Args:
        groups: of everybody.
        consistent: names, the most consistent first.
    """
    sides = [[name for name in consistent if name in group] for group in (groups.trained, groups.evaluate)]
    half = CLAIMED // 2
    claimed = [*sides[0][:half], *sides[1][:half], *sides[0][half:]][:CLAIMED]
    found = []
    for place, name in enumerate(claimed):
        possible = groups.outside or groups.evaluate or groups.trained
        others = [other for other in possible if other != name] or [other for other in groups.joined if other != name]
        found += [Pair(name, others[(place + clip) % len(others)], clip) for clip in range(CLIPS)]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Witness:
    """Tries the same pairs after each release.

    Args:
        crowd: the devices.
        deployment: by which they know it.
        pairs: whom to try.
        clips: name -> recordings or images that the person hands in, one after the other.
        users: name -> hashed id.
    """

    crowd: Crowd
    deployment: str
    pairs: tuple[Pair, ...]
    clips: Mapping[str, Sequence[bytes]]
    users: Mapping[str, str]

    def try_all(self, server: Coordination, release: Mapping[str, Any]) -> Lived:
        """Everybody who is claimed looks for the release, and then they are tried, and whoever claims to be them."""
        self.crowd.ask_all(Adopt(self.deployment), {pair.claimed for pair in self.pairs})
        rest = [
            over_rest(server.verify(self.users[pair.claimed], probe), Attempt(pair, genuine, "REST"))
            for genuine, probes in self._probes()
            for pair, probe in probes.items()
        ]
        return Lived(release, (*rest, *self.try_offline()))

    def try_offline(self) -> tuple[Attempt, ...]:
        """On the devices alone."""
        attempts = []
        for genuine, probes in self._probes():
            answers = self.crowd.ask_each({pair.claimed: VerifyOffline(probe) for pair, probe in probes.items()})
            attempts += [on_device(answers[pair.claimed], Attempt(pair, genuine, "offline")) for pair in probes]
        return tuple(attempts)

    def _probes(self) -> Iterator[tuple[bool, dict[Pair, bytes]]]:
        """Whether they are genuine, and what is handed in: at most one of each person who is claimed."""
        for clip in range(CLIPS):
            pairs = [pair for pair in self.pairs if pair.clip == clip]
            for genuine in (True, False):
                who = {pair: self.clips[pair.claimed if genuine else pair.impostor] for pair in pairs}
                yield genuine, {pair: clips[clip] for pair, clips in who.items() if clip < len(clips)}


def on_device(answer: object, attempt: Attempt) -> Attempt:
    """``attempt`` with what a device said."""
    if not isinstance(answer, Decision):
        return replace(attempt, refusal=f"{type(answer).__name__}: {answer}")
    return replace(
        attempt,
        accepted=answer.accepted,
        score=answer.value,
        threshold=answer.threshold.score,
        release=answer.basis.release,
        asked_fmr=answer.basis.asked_fmr,
        fmr=answer.threshold.fmr,
        domain=answer.basis.placement.verdict,
    )


def over_rest(answer: httpx.Response, attempt: Attempt) -> Attempt:
    """``attempt`` with what the server said."""
    body = answer.json()
    if answer.status_code != 200:
        return replace(attempt, refusal=f"{answer.status_code} {problem(body)}")
    basis, threshold = body["basis"], body["threshold"]
    return replace(
        attempt,
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
