"""A summary as plain JSON values. Labels of people and files stay out: only counts and rates are kept.

The fields are documented in ``docs/evaluation.md``; a field is added, never given another meaning, while
:data:`SCHEMA` stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from uvsdk.evaluation.bootstrap import Interval
from uvsdk.evaluation.calibrated import Preset
from uvsdk.evaluation.conditions import Bin
from uvsdk.evaluation.groups import SMALL_GROUP, Attribute, GroupRates
from uvsdk.evaluation.rates import CONFIDENCE, Rate
from uvsdk.evaluation.summary import Summary, rate_name

SCHEMA = "uvsdk.evaluation/1"


def as_json(summary: Summary) -> dict[str, object]:
    """The record; a field that does not apply to the protocol or the bundle is ``None``."""
    outcome, point = summary.outcome, summary.working_point
    return {
        "schema": SCHEMA,
        "protocol": outcome.protocol,
        "people": summary.people,
        "people_with_genuine_trials": summary.people_with_genuine,
        "genuine_trials": summary.curve.genuine,
        "impostor_trials": summary.curve.impostor,
        "samples": outcome.samples,
        "failures_to_acquire": len(outcome.failures),
        "failures_by_reason": outcome.failures_by_reason,
        "failures_to_enrol": len(outcome.not_enrolled),
        "repeated_samples_left_out": outcome.repeated,
        "trials_without_score": outcome.left_out,
        "metrics": _intervals(summary.intervals),
        "eer_convex_hull": summary.eer_convex_hull,
        "unsupported": {rate_name(rate): {"impostor_trials_needed": n} for rate, n in summary.unsupported.items()},
        "working_point": {"threshold": _finite(point.threshold), "fmr": point.fmr, "fnmr": point.fnmr},
        "worst_decile_fnmr": summary.worst_decile_fnmr,
        "fnmr_by_person": list(summary.fnmr_by_person),
        "accuracy": _accuracy(summary),
        "likelihood_ratio": None if summary.calibrated is None else _intervals(summary.calibrated.intervals) or None,
        "bundle_thresholds": None if summary.calibrated is None else [_preset(p) for p in summary.calibrated.presets],
        "groups": {attribute.name: _attribute(attribute) for attribute in summary.attributes} or None,
        "by_quality": {name: [_bin(part) for part in bins] for name, bins in summary.qualities.items()} or None,
        "speed": {s.stage: {"median_s": s.median_s, "p95_s": s.p95_s} for s in summary.speeds} or None,
        "bootstrap": {
            "resamples": summary.resamples,
            "seed": summary.seed,
            "confidence": CONFIDENCE,
            "unit": "person",
        },
    }


def _accuracy(summary: Summary) -> dict[str, object] | None:
    found = summary.accuracy
    if found is None:
        return None
    return {
        "mean": found.mean,
        "standard_error": found.standard_error,
        "by_fold": list(found.by_fold),
        "thresholds": [_finite(threshold) for threshold in found.thresholds],
    }


def _preset(preset: Preset) -> dict[str, object]:
    threshold = preset.threshold
    return {
        "target_fmr": threshold.fmr,
        "threshold": threshold.score,
        "scale": threshold.scale,
        "fmr": _rate(preset.fmr),
        "fnmr": _rate(preset.fnmr),
    }


def _attribute(attribute: Attribute) -> dict[str, object]:
    return {
        "unknown_people": attribute.unknown_people,
        "small_below_people": SMALL_GROUP,
        "groups": [_group(group) for group in attribute.groups],
    }


def _group(group: GroupRates) -> dict[str, object]:
    return {
        "group": group.name,
        "people": group.people,
        "small": group.small,
        "fnmr": _rate(group.fnmr),
        "fnmr_difference": _interval(group.fnmr_difference),
        "fmr_within": _rate(group.fmr_within),
        "fmr_within_difference": _interval(group.fmr_within_difference),
        "fmr_across": _rate(group.fmr_across),
    }


def _bin(part: Bin) -> dict[str, object]:
    return {"low": part.low, "high": part.high, "fnmr": _rate(part.fnmr), "fmr": _rate(part.fmr)}


def _rate(rate: Rate | None) -> dict[str, object] | None:
    if rate is None:
        return None
    return {
        "value": rate.value,
        "low": rate.low,
        "high": rate.high,
        "errors": rate.errors,
        "trials": rate.trials,
        "people": rate.people,
    }


def _intervals(found: Mapping[str, Interval]) -> dict[str, object]:
    return {name: _interval(interval) for name, interval in found.items()}


def _interval(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}


def _finite(threshold: float) -> float | None:
    """JSON has no infinity; null says that no score reaches the threshold."""
    return threshold if math.isfinite(threshold) else None
