"""Holds what is found against what was recorded, as strictly as this processor allows.

Where this processor's arithmetic is one of those recorded (``arithmetic.fingerprint``), everything is equal to the last
bit, but for the sums that describe how far theta moved: BLAS adds in another order where an array begins elsewhere in
memory (within :data:`SUMS`; theta itself is compared by its digest). Elsewhere digests say nothing and are left out;
what is compared is

- everything that is not a rounded number: participants, rounds, shapes, counts, names, bytes sent (within
  :data:`DIGITS`, for a number in a header is as long as its digits), kinds of error, accepted or rejected unless the
  score lies within :data:`DECISIONS` of its threshold;
- of training, how far and where to theta moved after 1, 4 and 20 rounds, and the first losses, within
  :data:`TRAINING`. Twenty rounds are few: torch, numpy and oneDNN held to AVX2 on a processor with AVX-512 gave values
  within 5e-5 of the recorded ones in every simulation;
- of decisions, scores and measurements within :data:`DECISIONS`: two of the graphs compute in 8-bit integers, whose
  sums saturate on processors without VNNI. A likelihood ratio, which changes by some 30 where a cosine changes by 1,
  within :data:`RATIOS`.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour import arithmetic
from tests.behaviour.values import DIGEST

FILE = Path(__file__).with_name("recorded.json")

TRAINING, DECISIONS, DIGITS, SUMS, RATIOS = 1e-3, 0.05, 6, 1e-12, 1.5


@cache
def recordings() -> dict[str, Any]:
    """Fingerprint -> part -> case -> what was found."""
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def is_recorded() -> bool:
    """Whether this processor computes as one of the recordings was made."""
    return arithmetic.fingerprint() in recordings()


def check(part: str, case: str, found: Any, *, spread: float) -> None:
    """Fail where ``found`` is not what was recorded of this part and case."""
    exact = is_recorded()
    kept = recordings()
    recorded = kept[arithmetic.fingerprint() if exact else next(iter(kept))][part].get(case)
    if all(case not in one[part] for one in kept.values()):
        pytest.skip(f"nothing was recorded of {case} yet: python -m tests.behaviour.record")
    assert recorded is not None, f"nothing was recorded of {case}; {_HOW}"
    lines = differences(recorded, json.loads(json.dumps(found)), spread=None if exact else spread)
    if lines:
        shown = "\n".join(lines[:20])
        pytest.fail(f"{case} behaves otherwise than recorded, in {len(lines)} places:\n{shown}\n{_HOW}", pytrace=False)


_HOW = (
    "If that is meant, record anew with OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m tests.behaviour.record, "
    "and say in the commit what changed and why."
)


def differences(recorded: Any, found: Any, *, spread: float | None, place: str = "") -> list[str]:
    """Where ``found`` differs from ``recorded``, both as JSON has them, one line each.

    Args:
        spread: by how much of its size a number may differ, or by how much where it is below 1; ``None``: by nothing.
        place: where both stand, for the words.
    """
    if isinstance(recorded, dict) and isinstance(found, dict) and recorded.keys() == found.keys():
        near = RATIOS if _is_ratio(recorded) else spread
        close = spread is not None and abs(recorded.get("above", math.inf)) <= near
        keys: Any = [key for key in recorded if not (close and key == "accepted")]
    elif isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        keys = range(len(recorded))
    else:
        within = SUMS if spread is None and place.startswith("/moved") and isinstance(recorded, float) else spread
        same = _is_same(recorded, found, within, place.rpartition("/")[2])
        return [] if same else [f"{place}: recorded {recorded!r}, found {found!r}"]
    return [
        line
        for key in keys
        for line in differences(
            recorded[key],
            found[key],
            spread=RATIOS if spread is not None and key in ("llr", "above") and _is_ratio(recorded) else spread,
            place=f"{place}/{key}",
        )
    ]


def _is_ratio(decision: Any) -> bool:
    return decision.get("llr") is not None


def _is_same(recorded: Any, found: Any, spread: float | None, name: str) -> bool:
    if spread is None or type(recorded) is not type(found):
        return type(recorded) is type(found) and bool(recorded == found)
    if isinstance(recorded, float):
        return math.isclose(recorded, found, rel_tol=min(spread, DECISIONS), abs_tol=spread)
    if isinstance(recorded, str):
        return _without_numbers(recorded) == _without_numbers(found)
    if name in ("bytes", "percent"):
        return abs(recorded - found) <= DIGITS
    return bool(recorded == found)


def _without_numbers(text: str) -> str:
    """A description without its digest, or a text for a person without what was measured."""
    before, mark, _ = text.partition(DIGEST)
    return before if mark else re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", text)
