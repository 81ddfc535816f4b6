"""Templates that follow their person: small steps towards accepted probes, bounded and revocable. Pure functions.

A step is taken only where all of this holds, and each rule stops another way of walking a template to somebody else:

* the probe was **accepted**, and matches at a threshold :attr:`AgeingPolicy.stricter` times stricter, or at the
  strictest that the impostor trials measure, the template in use *and* the one the enrolment made: whoever does not
  strongly match the original never moves anything, however far earlier steps went;
* the calibration **speaks for it**: neither probe nor template lies outside of what was measured, where nobody knows
  how often such a probe is another person's;
* it is **live**: presentation attack detectors looked at it and none saw an attack;
* the last step is **old enough**, so that many probes on one day count once;
* the template stays **near the original**: never below :attr:`AgeingPolicy.minimum_cosine`. Where a step would leave
  that cone the person should enrol again.

The enrolment's own template is never changed: a :class:`History` lies beside it with the last few versions, so any
step can be taken back and taking all back is forgetting the history.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import SettingsError, TemplateFormatError
from uvsdk.scoring import Calibration, Decision, Threshold
from uvsdk.templates.template import Template
from uvsdk.verify import compare

_NORM_TOLERANCE = 1e-3  # SPEC 1.7

STRONG_FMR: Final = 1e-3
"""A match at this false match rate or a lower one may be strong; trials that do not reach it move no template."""


@dataclass(frozen=True, slots=True)
class AgeingPolicy:
    """When a template follows its person, and how far.

    Args:
        stricter: by how much the false match rate of a strong match lies below the template's own, as far as the
            impostor trials can measure it; below :data:`STRONG_FMR` they always must.
        weight: how much of the new template is the probe; the rest is the one in use.
        interval_s: seconds between two steps.
        minimum_cosine: between the original and any later version; 1 would forbid every step. 0.95 is 18 degrees. Two
            templates of one person, of three other samples each, have a median of 0.95 (LibriSpeech, one reading),
            0.92 (ORL) and 0.84 (LFW, pictures of years), so a version in use stays as near as a second enrolment.
        keep: versions kept to return to, the one in use among them; the original is always kept.
        require_live: whether a presentation attack detector must have looked at the probe. Without one, a photograph
            or a recording that matches strongly moves the template towards itself: only for cameras and microphones
            that nobody can be in front of unseen.

    The defaults are cautious choices and not measurements: no data over years was at hand.
    """

    stricter: float = 10.0
    weight: float = 0.1
    interval_s: float = 86_400.0
    minimum_cosine: float = 0.95
    keep: int = 5
    require_live: bool = True

    def __post_init__(self) -> None:
        if not self.stricter >= 1.0:
            raise SettingsError(f"a strong match is at least as strict as any, got stricter={self.stricter}")
        if not 0.0 < self.weight <= 0.5:
            raise SettingsError(f"the weight of one probe lies above 0 and is at most 0.5, got {self.weight}")
        if not self.interval_s >= 0.0:
            raise SettingsError(f"the interval between two steps cannot be negative, got {self.interval_s} s")
        if not 0.0 < self.minimum_cosine <= 1.0:
            raise SettingsError(f"the bound on drift is a cosine above 0 and at most 1, got {self.minimum_cosine}")
        if self.keep < 1:
            raise SettingsError(f"at least the version in use is kept, got keep={self.keep}")


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """What became of one template since its enrolment. ``repr`` leaves the vectors out.

    Args:
        model_version: the model of all the vectors.
        original: float32 (d,), unit, as the enrolment made it.
        versions: float32 (n, d), unit rows, oldest first; the last is in use, with n = 0 the original is.
        stepped_s: float64 (n,), Unix time of each version.
        last_step_s: Unix time of the last step ever taken, whether or not it was taken back; 0 before the first.
        steps: how many were ever taken.
    """

    model_version: str
    original: Float32 = field(repr=False)
    versions: Float32 = field(repr=False)
    stepped_s: Float64
    last_step_s: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        if self.versions.shape != (len(self.stepped_s), *self.original.shape) or self.original.ndim != 1:
            raise TemplateFormatError(
                f"a history has one row a version, got {self.versions.shape} for {len(self.stepped_s)} versions of "
                f"{self.original.shape}"
            )
        norms = np.linalg.norm(np.vstack([self.original, self.versions]).astype(np.float64), axis=1)
        if not (np.abs(norms - 1.0) <= _NORM_TOLERANCE).all():  # written so that NaN fails
            raise TemplateFormatError("every version of a template has norm 1")

    @property
    def current(self) -> Float32:
        """The vector in use, float32 (d,)."""
        return np.asarray(self.versions[-1] if len(self.versions) else self.original, np.float32)


@dataclass(frozen=True, slots=True)
class Step:
    """What became of one accepted probe.

    Args:
        history: with the new version, or as it was.
        reason: why nothing changed, in words; empty where the template moved.
    """

    history: History
    reason: str = ""

    @property
    def taken(self) -> bool:
        """Whether the template moved."""
        return not self.reason


def begin(enrolled: Template) -> History:
    """The history of a template that nothing has happened to."""
    dimension = len(enrolled.embedding)
    return History(
        enrolled.model_version, enrolled.embedding, np.empty((0, dimension), np.float32), np.empty(0, np.float64)
    )


def belongs(history: History, enrolled: Template) -> bool:
    """Whether ``history`` is of exactly this enrolment; after another enrolment or model it is void."""
    return history.model_version == enrolled.model_version and np.array_equal(history.original, enrolled.embedding)


def template_of(enrolled: Template, history: History | None) -> Template:
    """The template to verify with: the version in use, or the enrolment's own where there is no history of it."""
    if history is None or not belongs(history, enrolled):
        return enrolled
    return replace(enrolled, embedding=history.current)


def step(
    enrolled: Template,
    history: History | None,
    *,
    probe: Float32,
    decision: Decision,
    strong: Threshold,
    policy: AgeingPolicy,
    now_s: float,
    calibration: Calibration | None = None,
) -> Step:
    """Move the template a little towards an accepted probe, or say why not.

    Args:
        enrolled: as the enrolment made it.
        history: its history; ``None``, or one of another enrolment, for none yet.
        probe: the embedding behind ``decision``, float32 (d,), unit.
        decision: about that probe and the template in use.
        strong: cosine threshold of a strong match, see :attr:`AgeingPolicy.stricter`.
        policy: the rules.
        now_s: Unix time.
        calibration: that ``strong`` was read from, see :func:`uvsdk.verify.compare`.

    Raises:
        SettingsError: ``strong`` is not a cosine threshold.
        ModelMismatchError, SampleError: see :func:`uvsdk.verify.compare`.
    """
    if strong.scale != "cosine":
        raise SettingsError(f"a strong match is judged by cosine similarity, got a threshold of scale {strong.scale}")
    if history is None or not belongs(history, enrolled):
        history = begin(enrolled)
    refused = _not_due(history, decision, policy, now_s) or _weak(enrolled, history, probe, strong, calibration)
    if refused:
        return Step(history, refused)
    current = history.current.astype(np.float64)
    mixed = (1.0 - policy.weight) * current + policy.weight * probe.astype(np.float64)
    # A strong match points nowhere near the opposite direction, so the mixture has a length.
    moved = np.asarray(mixed / np.linalg.norm(mixed), np.float32)
    if moved.astype(np.float64) @ history.original.astype(np.float64) < policy.minimum_cosine:
        return Step(history, "the template would drift too far from the enrolment's own; enrol again")
    return Step(
        replace(
            history,
            versions=np.vstack([history.versions, moved[None]])[-policy.keep :],
            stepped_s=np.append(history.stepped_s, now_s)[-policy.keep :],
            last_step_s=now_s,
            steps=history.steps + 1,
        )
    )


def revert(history: History, *, versions: int | None = None) -> History:
    """Take steps back: the newest ``versions`` kept ones, or all, to the original.

    What came before the oldest kept version is gone, so going behind it is going to the original. The time of the last
    step stays, so that the next one waits for its interval.

    Raises:
        SettingsError: ``versions`` below 1.
    """
    if versions is not None and versions < 1:
        raise SettingsError(f"at least one version is taken back, got {versions}")
    left = 0 if versions is None else max(len(history.versions) - versions, 0)
    return replace(history, versions=history.versions[:left], stepped_s=history.stepped_s[:left])


def _not_due(history: History, decision: Decision, policy: AgeingPolicy, now_s: float) -> str:
    if not decision.accepted:
        return "the probe was not accepted"
    if decision.basis.placement.verdict == "outside":
        return "template or probe lies outside of what was measured, so nobody knows how strong this match is"
    if policy.require_live and not decision.presentations:
        return "no presentation attack detector looked at the probe"
    waited_s = now_s - history.last_step_s
    # A clock that was set back does not open a new step.
    if history.steps and waited_s < policy.interval_s:
        return f"the last step is {max(waited_s, 0.0):.0f} s old, need {policy.interval_s:.0f} s"
    return ""


def _weak(
    enrolled: Template, history: History, probe: Float32, strong: Threshold, calibration: Calibration | None
) -> str:
    if compare(probe, template_of(enrolled, history), calibration=calibration) < strong.score:
        return "not a strong match with the template in use"
    if compare(probe, enrolled, calibration=calibration) < strong.score:
        return "not a strong match with the enrolment's own template"
    return ""
