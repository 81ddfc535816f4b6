"""Cells of conditions, and how reports and measurements count by them."""

from __future__ import annotations

import numpy as np
import pytest

from uvsdk import modality
from uvsdk.release import grid
from uvsdk.release.conclusion import conclude
from uvsdk.release.measurement import measure
from uvsdk.release.report import report_on
from uvsdk.release.sums import ModelSums
from uvsdk.scoring.cells import Division, cells_of, names
from uvsdk.scoring.moments import unit
from uvsdk_server.evaluating import summary_of


def test_every_sample_lies_in_one_cell_of_each_division_that_was_measured() -> None:
    divisions = modality.get("voice").cells
    assert cells_of({"speech_s": 1.0, "snr_db": 15.0, "bandwidth_hz": 8000.0}, divisions) == (0, 3, 5)
    assert cells_of({"snr_db": 3.0}, divisions) == (2,)
    assert cells_of({"snr_db": float("nan")}, divisions) == ()


@pytest.mark.parametrize("name", modality.names())
def test_what_divides_is_measured(name: str) -> None:
    reader = modality.get(name)
    known = {condition.name for condition in reader.conditions} | set(reader.reported) | {"yaw"}
    assert {division.name for division in reader.cells} <= known
    assert len(names(reader.cells)) == sum(len(division.bounds) + 1 for division in reader.cells)


@pytest.mark.parametrize("bounds", [(), (2.0, 1.0), (1.0, 1.0)])
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Division("snr_db", bounds)


def test_a_measurement_tells_the_rate_of_each_cell() -> None:
    rng = np.random.default_rng(3)
    reports = []
    for person in range(12):
        rows = unit(3 * rng.normal(size=24) + rng.normal(size=(12, 24)))
        rows[:2] = unit(rng.normal(size=(2, 24)))  # what was taken under bad conditions resembles nobody
        cells = [(0,), (0,), *[(1,)] * 9, ()]
        reports.append(
            (
                person,
                report_on(
                    rows.astype(np.float32),
                    model_version="m",
                    impostors="moments",
                    evaluates=True,
                    strangers=np.zeros((0, 24), np.float32),
                    cells=3,
                    cells_of=cells,
                ),
            )
        )
    sums = ModelSums.of(reports, model_version="m", impostors="moments")
    found = measure(sums, fmr=0.01, source="an example", now=1.0)
    assert found.cells[0] > 0.8
    assert found.cells[1] < 0.2
    assert np.isnan(found.cells[2])
    assert found.cell_people.tolist() == [12, 12, 0]
    assert reports[0][1].genuine[1].sum() == grid.SHARE


def test_an_evaluation_shows_the_cells_that_somebody_told_of() -> None:
    rng = np.random.default_rng(4)
    reports = []
    for person in range(12):
        rows = unit(3 * rng.normal(size=24) + rng.normal(size=(6, 24))).astype(np.float32)
        report = report_on(
            rows,
            model_version="m",
            impostors="moments",
            evaluates=True,
            strangers=np.zeros((0, 24), np.float32),
            cells=2,
            cells_of=[(1,)] * 6,
        )
        reports.append((person, report))
    sums = ModelSums.of(reports, model_version="m", impostors="moments")
    found = conclude(sums, sums, evaluation_id=1, collapse=float("nan"), source="an example", now=1.0)
    shown = summary_of(found, ("speech_s below 2", "speech_s from 2"))["cells"]
    assert list(shown) == ["speech_s from 2"]
    assert shown["speech_s from 2"] == {"fnmr": found.candidate.evaluation.fnmr, "people": 12}  # type: ignore[union-attr]
