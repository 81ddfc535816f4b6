"""What the documents say of the demonstration, and the picture, are made of ``examples/demo/results.csv``."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from examples.demo import publish
from examples.reproduce import record
from examples.reproduce.record import Row

SVG = "{http://www.w3.org/2000/svg}"
AGAIN = "run: python -m examples.demo.publish"


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def places(picture: str, name: str) -> np.ndarray:
    """All coordinates of what is drawn under ``name``."""
    found: list[float] = []
    for group in ElementTree.fromstring(picture).iter(f"{SVG}g"):
        if group.get("id") != name:
            continue
        for element in group.iter():
            numbers = [element.get("d", ""), element.get("x", ""), element.get("y", "")]
            found += [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", " ".join(numbers))]
    return np.array(found)


def test_the_documents_have_the_figures_of_the_results() -> None:
    for document, text in publish.documents(publish.figures(record.read(publish.RESULTS))).items():
        assert document.read_text(encoding="utf-8") == text, AGAIN


def test_the_picture_has_the_data_of_the_results() -> None:
    """Its texts and its marks; bytes differ between versions of matplotlib."""
    pytest.importorskip("matplotlib", reason="drawing needs the evaluate extra")
    committed = publish.PICTURE.read_text(encoding="utf-8")
    assert len(committed.encode()) < 60_000
    found = publish.figures(record.read(publish.RESULTS))
    drawn = publish.picture(found)
    assert texts(committed) == texts(drawn), AGAIN
    assert f"{100 * found['fedaws', 'eer']:.1f} %" in " ".join(texts(committed))
    for name in ("intervals", "values"):
        assert len(places(drawn, name)) >= 2 * len(publish.TITLES)
        np.testing.assert_allclose(places(committed, name), places(drawn, name), atol=0.5, err_msg=AGAIN)


def test_the_marks_lie_at_the_values() -> None:
    pytest.importorskip("matplotlib", reason="drawing needs the evaluate extra")
    found = dict(publish.figures(record.read(publish.RESULTS)))
    before = places(publish.picture(found), "values")
    found["fedaws", "eer"] += 0.01
    after = places(publish.picture(found), "values")
    assert np.count_nonzero(before != after) == 1  # the horizontal place of one mark


def test_a_report_becomes_rows() -> None:
    methods = {
        name: {
            "eer": 0.1,
            "eer_interval": [0.05, 0.2],
            "eer_of_seeds": [] if name == "before" else [0.12, 0.1, 0.11],
            "fnmr_at_fmr_1e-2": None if name == "before" else 0.25,
            "mean_offdiagonal_cosine": 0.123456,
            "rounds": 24,
            "genuine_trials": 505,
            "impostor_trials": 9595,
            "failures_to_acquire": 43,
        }
        for name in publish.TITLES
    }
    checks = [{"what": "a", "outcome": "b", "as_expected": expected} for expected in (True, False, True)]
    rows = publish.rows({"seed": 20, "seconds": 210.0, "rows": methods, "checks": checks}, "people")
    assert len(rows) == 4 * 5 - 1 + 3 * 2 + 7
    assert Row("fixed", "people", 20, "eer_seeds_high", 0.12, "rate") in rows
    assert Row("fedaws", "people", 20, "eer_high_95", 0.2, "rate") in rows
    assert Row("before", "people", 20, "mean_offdiagonal_cosine", 0.1235, "cosine") in rows
    assert Row("all", "people", 20, "checks_as_expected", 2, "count") in rows
    committed = {
        (row.method, row.metric, row.unit) for row in record.read(publish.RESULTS) if row.setting == publish.VOICES
    }
    assert {(row.method, row.metric, row.unit) for row in rows} | {("before", "fnmr_at_fmr_1e-2", "rate")} == committed
