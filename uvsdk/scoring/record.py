"""A calibration as bytes, for the member ``calibration.bin`` of a bundle and for a server's store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from uvsdk.arrays import Float32, Float64, Int64
from uvsdk.errors import BundleError, ThresholdError, WireError
from uvsdk.records.codec import pack, unpack
from uvsdk.records.later import later
from uvsdk.scoring.calibration import Calibration
from uvsdk.scoring.cohort import Cohort
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.conditions import Condition
from uvsdk.scoring.domain import Domain
from uvsdk.scoring.likelihood import LikelihoodRatio, Surroundings
from uvsdk.scoring.plausibility import check, check_impostors
from uvsdk.scoring.tail import Tail

MAGIC: Final = b"UVC1"
"""First four bytes. A file of bare scores, as older versions kept them, starts with a cosine instead."""

MAGIC_SUMS: Final = b"UVC2"
"""First four bytes of a calibration that names its people; one that does not keeps the older form, and its digest."""


@dataclass(frozen=True, slots=True)
class _Body:
    """Fields of ratio and cohort beside each other; an absent one has no rows.

    They are not nested: templates and signatures of bundles name the digest that is taken over exactly these bytes.
    """

    model_version: str
    source: str
    impostor: Float32
    fitted: bool
    centre: Float32
    directions: Float32
    top: int
    names: tuple[str, ...]
    ranges: Float64
    location: Float64
    log_scale: Float64
    limits: Float64
    line: Float64
    ratios: Float32
    trials: int
    cohort: Float32
    person: Int64
    conditions: Float32


@dataclass(frozen=True, slots=True)
class _Body2:
    """The older body, and what later versions know beside it; what is absent is an empty tuple or no row."""

    body: _Body
    people: int
    measured_unix_s: float
    above: Int64
    above_ratios: Int64
    tail: tuple[Tail, ...]
    domain: tuple[Domain, ...]
    centre: Float32 = later(lambda: np.zeros(0, np.float32))  # noqa: RUF009 - gives a dataclass field


MAGICS: Final = (MAGIC, MAGIC_SUMS)


def to_bytes(calibration: Calibration) -> bytes:
    """The inverse of :func:`from_bytes`; equal calibrations give equal bytes."""
    ratio, cohort = calibration.ratio, calibration.cohort
    seen = None if ratio is None else ratio.surroundings
    row, rows = np.zeros(0, np.float32), np.zeros((0, 0), np.float32)
    line = [0.0] * 4 if ratio is None else [ratio.slope, ratio.offset, ratio.lowest, ratio.highest]
    body = _Body(
        model_version=calibration.model_version,
        source=calibration.source,
        impostor=calibration.impostor,
        fitted=ratio is not None,
        centre=row if ratio is None else ratio.compensation.centre,
        directions=rows if ratio is None else ratio.compensation.directions,
        top=0 if ratio is None else ratio.top,
        names=() if seen is None else seen.names,
        ranges=np.zeros((4, 0)) if seen is None else np.stack([seen.low, seen.high, seen.mean, seen.spread]),
        location=np.zeros(0) if ratio is None else ratio.location,
        log_scale=np.zeros(0) if ratio is None else ratio.log_scale,
        limits=np.zeros((2, 2)) if ratio is None else ratio.limits,
        line=np.array(line),
        ratios=row if ratio is None else ratio.impostor,
        trials=0 if ratio is None else ratio.trials,
        cohort=rows if cohort is None else cohort.embeddings,
        person=np.zeros(0, np.int64) if cohort is None else cohort.person,
        conditions=rows if cohort is None else cohort.conditions,
    )
    if not _names_people(calibration):
        return MAGIC + pack(body)
    return MAGIC_SUMS + pack(
        _Body2(
            body,
            calibration.people,
            calibration.measured_unix_s,
            _counts(calibration.above),
            _counts(None if ratio is None else ratio.above),
            () if calibration.tail is None else (calibration.tail,),
            () if calibration.domain is None else (calibration.domain,),
            row if calibration.centre is None else calibration.centre,
        )
    )


def _counts(above: Int64 | None) -> Int64:
    return np.zeros(0, np.int64) if above is None else above


def _names_people(calibration: Calibration) -> bool:
    known = calibration.people or calibration.measured_unix_s
    ratios = None if calibration.ratio is None else calibration.ratio.above
    rest = (calibration.above, ratios, calibration.tail, calibration.domain, calibration.centre)
    return bool(known) or any(item is not None for item in rest)


def from_bytes(data: bytes, conditions: Sequence[Condition]) -> Calibration:
    """Read what :func:`to_bytes` made; ``conditions`` are those of the modality it was measured on.

    Raises:
        BundleError: not a calibration, cut short, altered, or with numbers that nobody measured
            (:mod:`uvsdk.scoring.plausibility`).
    """
    if not data.startswith(MAGICS):
        raise BundleError(f"not a calibration: expected the magic {MAGIC!r} or {MAGIC_SUMS!r}")
    try:
        rest = memoryview(data)[len(MAGIC) :]
        whole = unpack(_Body2, rest) if data.startswith(MAGIC_SUMS) else None
        body = unpack(_Body, rest) if whole is None else whole.body
        check_impostors(body.impostor)
        ratio = _ratio(body, conditions) if body.fitted else None
        if ratio is not None and whole is not None and len(whole.above_ratios):
            ratio = replace(ratio, above=whole.above_ratios)
        cohort = Cohort(body.cohort, body.person, body.conditions) if len(body.cohort) else None
        read = Calibration(body.impostor, body.model_version, body.source, ratio, cohort)
        if whole is not None:
            read = replace(
                read,
                people=whole.people,
                measured_unix_s=whole.measured_unix_s,
                above=whole.above if len(whole.above) else None,
                tail=whole.tail[0] if whole.tail else None,
                domain=whole.domain[0] if whole.domain else None,
                centre=whole.centre if len(whole.centre) else None,
            )
    except (WireError, ThresholdError, ValueError) as error:
        raise BundleError(f"the calibration does not read: {error}; calibrate the model again") from error
    check(read)
    return read


def calibration_bytes(calibration: Calibration) -> bytes:
    """What a store keeps: bare scores in the form that every version reads, :func:`to_bytes` of what has more."""
    if calibration.ratio is None and calibration.cohort is None and not _names_people(calibration):
        return np.ascontiguousarray(calibration.impostor, np.dtype("<f4")).tobytes()
    return to_bytes(calibration)


def read_calibration(data: bytes, *, model_version: str, source: str, conditions: Sequence[Condition]) -> Calibration:
    """The inverse of :func:`calibration_bytes`, whose model version, source and modality are known from elsewhere too.

    Raises:
        BundleError: damaged, implausible, or of another model version or source.
    """
    if not data.startswith(MAGICS):
        if len(data) % 4:
            raise BundleError("impostor scores are whole float32 values")
        scores = np.frombuffer(data, np.dtype("<f4"))
        check_impostors(scores)
        bare = Calibration(scores, model_version, source)
        check(bare)
        return bare
    calibration = from_bytes(data, conditions)
    if (calibration.model_version, calibration.source) != (model_version, source):
        raise BundleError("the calibration names another model version or source than it was kept under")
    return calibration


def _ratio(body: _Body, conditions: Sequence[Condition]) -> LikelihoodRatio:
    if body.ranges.shape != (4, len(body.names)) or body.line.shape != (4,):
        raise BundleError("a likelihood ratio has four ranges of its conditions and four numbers of its line")
    known = {condition.name: condition for condition in conditions}
    if not set(body.names) <= set(known):
        raise ValueError(f"conditions are among {', '.join(known)}, got {', '.join(body.names)}")
    slope, offset, lowest, highest = body.line.tolist()
    return LikelihoodRatio(
        compensation=Compensation(body.centre, body.directions),
        top=body.top,
        surroundings=Surroundings(tuple(known[name] for name in body.names), *body.ranges),
        location=body.location,
        log_scale=body.log_scale,
        limits=body.limits,
        slope=slope,
        offset=offset,
        lowest=lowest,
        highest=highest,
        impostor=body.ratios,
        trials=body.trials,
    )
