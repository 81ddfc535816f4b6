"""Taking a mean out of both sides of a comparison: what it must leave as it is, for any rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.arrays import Float32, Float64
from uvsdk.release.report import report_on
from uvsdk.scoring import Calibration
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.moments import unit
from uvsdk.scoring.personal import genuine_scores
from uvsdk.scoring.record import from_bytes, to_bytes
from uvsdk.templates.gallery import Gallery
from uvsdk.templates.template import Template
from uvsdk.verify import compare

SCORES = np.linspace(-0.9, 0.5, 100, dtype=np.float32)
SEEDS = st.integers(0, 10_000)


def drawn(seed: int, count: int = 7, dimension: int = 6) -> tuple[Float32, Float32]:
    """Unit rows, and a mean of unit rows."""
    rng = np.random.default_rng(seed)
    rows = unit(rng.normal(size=(count, dimension)) + rng.normal(size=dimension)).astype(np.float32)
    return rows, unit(rng.normal(size=(9, dimension)) + 1.0).mean(axis=0).astype(np.float32)


def calibration(centre: Float32 | None) -> Calibration:
    return Calibration(SCORES, "m", "an example", centre=centre)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_nothing_taken_out_is_nothing_changed(seed: int) -> None:
    rows, _ = drawn(seed)
    nothing = np.zeros(rows.shape[1], np.float32)
    assert calibration(nothing).compared(rows) == pytest.approx(rows.astype(np.float64), abs=1e-6)
    assert genuine_scores(rows, Compensation.centring(nothing)) == pytest.approx(genuine_scores(rows), abs=1e-6)
    template = Template(rows[0], "m", "handwriting", 3)
    whole = compare(rows[1], template)
    assert compare(rows[1], template, calibration=calibration(nothing)) == pytest.approx(whole, abs=1e-6)
    assert compare(rows[1], template, calibration=calibration(None)) == whole


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_a_rotation_of_everything_changes_no_score(seed: int) -> None:
    rows, centre = drawn(seed)
    turn: Float64 = np.linalg.qr(np.random.default_rng(seed).normal(size=(6, 6)))[0]
    products = [
        calibration(mean).compared(each) @ calibration(mean).compared(each).T
        for mean, each in ((centre, rows), ((centre @ turn).astype(np.float32), (rows @ turn).astype(np.float32)))
    ]
    assert products[0] == pytest.approx(products[1], abs=1e-4)


@given(SEEDS, st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_a_search_finds_whom_every_comparison_finds(seed: int, top: int) -> None:
    rows, centre = drawn(seed)
    centred = calibration(centre)
    people = {str(index): Template(row, "m", "handwriting", 3) for index, row in enumerate(rows[:6])}
    found = Gallery(people).search(rows[6], top, centring=centred.centring).candidates
    scores = {name: compare(rows[6], template, calibration=centred) for name, template in people.items()}
    expected = sorted(scores, key=lambda name: -scores[name])[:top]
    assert [item.user_id for item in found] == expected
    assert [item.score for item in found] == pytest.approx([scores[name] for name in expected], abs=1e-12)


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_a_record_gives_back_the_very_scores(seed: int) -> None:
    rows, centre = drawn(seed)
    centred = replace(calibration(centre), people=60)
    read = from_bytes(to_bytes(centred), ())
    assert read.digest == centred.digest
    assert np.array_equal(read.compared(rows), centred.compared(rows))
    assert from_bytes(to_bytes(replace(centred, centre=None)), ()).centre is None


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_a_report_without_a_mean_is_one_of_rows_that_lost_it(seed: int) -> None:
    """Sums and impostors of rows that were centred before; templates are means of rows as they are, centred."""
    rows, centre = drawn(seed, count=4)
    centring = Compensation.centring(centre)
    nobody = np.zeros((0, 6), np.float32)
    told = report_on(
        rows, model_version="m", impostors="moments", evaluates=True, strangers=nobody, centring=centring
    ).moments[0]
    mean = unit(rows.mean(axis=0, dtype=np.float64)).astype(np.float32)
    assert told.template / 2**20 == pytest.approx(centring.apply(mean), abs=1e-5)
    assert told.mean / 2**20 == pytest.approx(centring.apply(rows).mean(axis=0), abs=1e-5)
