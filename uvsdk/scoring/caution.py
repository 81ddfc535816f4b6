"""Whether a calibration speaks for a template and a probe, and what is asked where it does not: of one comparison, and
of the best of a search alike (:mod:`uvsdk.scoring.domain`)."""

from __future__ import annotations

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import UncalibratedDomainError
from uvsdk.scoring.basis import Basis
from uvsdk.scoring.calibration import Calibration
from uvsdk.scoring.conditions import Conditions
from uvsdk.scoring.domain import Placement

_NEVER = 1.0 + 1e-6  # a cosine threshold that nothing reaches


def placed(
    calibration: Calibration | None,
    template_row: Float32,
    probe_row: Float32,
    *,
    template: Conditions,
    probe: Conditions,
    strict: bool,
) -> Placement:
    """Where a template and a probe lie, against those that a calibration was measured on.

    Args:
        calibration: whose threshold decides; ``None`` for one that nobody measured, of which nothing is known.
        template_row: float32 (d,), unit.
        probe_row: likewise.
        template: conditions of the template.
        probe: of the probe.
        strict: refuse what lies outside.

    Raises:
        UncalibratedDomainError: ``strict``, and either lies outside.
    """
    if calibration is None:
        return Placement()
    placement = calibration.place(template_row, probe_row, template=template, probe=probe)
    if strict:
        check_domain(placement, calibration.source)
    return placement


def check_domain(placement: Placement, source: str) -> None:
    """Raises :class:`UncalibratedDomainError` where template or probe lies outside of what was measured on ``source``.

    A calibration that does not say where its people lie refuses nobody.
    """
    if placement.verdict == "outside":
        raise UncalibratedDomainError(
            f"{placement.words} on {source}, so no false match rate is known for this comparison; calibrate with "
            "people and samples like these (uvsdk calibrate), or decide without strict_domain"
        )


def raised(score: float, placement: Placement) -> float:
    """A cosine threshold, higher by what strangers may have in common there; float32, as scores are.

    >>> raised(0.5, Placement("outside", cosine_rise=0.25)), raised(0.9, Placement("outside", cosine_rise=0.25))
    (0.75, 1.000001)
    """
    return score if not placement.cosine_rise else min(float(np.float32(score + placement.cosine_rise)), _NEVER)


def basis_of(calibration: Calibration, placement: Placement, *, trials: int, release: int, people: int = 0) -> Basis:
    """What a threshold rests on that was read from a calibration, but for its rates.

    Args:
        calibration: it was read from.
        placement: of template and probe.
        trials: behind it.
        release: number of the release that the model belongs to.
        people: behind it, where it is not everybody of the calibration.
    """
    return Basis(
        calibration.source,
        people or calibration.people,
        trials,
        calibration.measured_unix_s,
        release,
        placement=placement,
    )
