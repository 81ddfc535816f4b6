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
    assert f"{100 * found['fedaws', 'eer_strangers']:.1f} %" in " ".join(texts(committed))
    for name in ("intervals", "values", "trained"):
        assert len(places(drawn, name)) >= 2 * len(publish.TITLES)
        np.testing.assert_allclose(places(committed, name), places(drawn, name), atol=0.5, err_msg=AGAIN)


def test_the_marks_lie_at_the_values() -> None:
    pytest.importorskip("matplotlib", reason="drawing needs the evaluate extra")
    found = dict(publish.figures(record.read(publish.RESULTS)))
    before = places(publish.picture(found), "values")
    found["fedaws", "eer_strangers"] += 0.01
    after = places(publish.picture(found), "values")
    assert np.count_nonzero(before != after) == 1  # the horizontal place of one mark


def of_a_side(*, seeds: bool = False, fnmr: float | None = None) -> dict[str, object]:
    return {
        "eer": 0.1,
        "eer_interval": [0.05, 0.2],
        "eer_of_seeds": [0.12, 0.1, 0.11] if seeds else [],
        "fnmr_at_fmr_1e-2": fnmr,
        "genuine_trials": 505,
        "impostor_trials": 9595,
        "failures_to_acquire": 43,
    }


def of_a_release(number: int, cause: str, **changed: object) -> dict[str, object]:
    tried = {"accepted": number, "tried": 6}
    return {
        "number": number,
        "cause": cause,
        "round": 20 * (number - 1),
        "thresholds": [0.5, 0.75],
        "asked_fmr": 0.01,
        "fmr": 0.01,
        "outside": False,
        "stayed": number % 2,
        "fnmr_of_evaluators": 0.4,
        "evaluators": 9,
        "genuine_rest": tried,
        "genuine_offline": tried,
        "impostors_rest": {"accepted": 0, "tried": 6},
        "impostors_offline": {"accepted": 0, "tried": 6},
        "strangers": {"fmr": 0.012, "trials": 5000},
        "objection": "",
        **changed,
    }


METHODS = ("positive_only", "fixed", "fedaws")
REPORT = {
    "seed": 20,
    "seconds": 210.0,
    "processor_seconds": 400.0,
    "groups": {"trained": 8, "evaluate": 9, "outside": 3},
    "rows": {
        name: {
            "trained": of_a_side(seeds=name in METHODS),
            "strangers": of_a_side(seeds=name in METHODS),
            "single": {side: of_a_side(fnmr=0.25) for side in publish.SIDES},
            "mean_offdiagonal_cosine": 0.123456,
            "rounds": 24,
        }
        for name in publish.TITLES
    },
    "releases": [
        of_a_release(1, "founding", fnmr_of_evaluators=None, evaluators=None, strangers=None, outside=True),
        of_a_release(2, "gate"),
    ],
    "checks": [{"what": "a", "outcome": "b", "as_expected": expected} for expected in (True, False, True)],
}


def test_a_report_becomes_rows() -> None:
    rows = publish.rows(REPORT, "people")
    # Of each of five models and either side an error rate with its interval, and two ends of the seeds of three; of
    # single clips FNMR as well, and no seeds; one cosine of each model; of a release 19 figures, of the founding one
    # 15; and what is told of all.
    of_all = 2 + 1 + 3 + 2 * 2 * 3 + 2
    assert len(rows) == 2 * (5 * 3 + 3 * 2) + 2 * 5 * 4 + 5 + 19 + 15 + of_all
    assert Row("fixed", "people", 20, "eer_seeds_high_strangers", 0.12, "rate") in rows
    assert Row("fedaws", "people", 20, "eer_high_95_trained", 0.2, "rate") in rows
    assert Row("before", "people", 20, "mean_offdiagonal_cosine", 0.1235, "cosine") in rows
    assert Row("release 2: gate", "people", 20, "genuine_rest_accepted", 2, "count") in rows
    assert Row("release 2: gate", "people", 20, "strangers_fmr", 0.012, "rate") in rows
    assert Row("all", "people", 20, "checks_as_expected", 2, "count") in rows
    committed = {
        (row.method, row.metric, row.unit)
        for row in record.read(publish.RESULTS)
        if row.setting == publish.VOICES and not row.method.startswith("release ")
    }
    assert {(row.method, row.metric, row.unit) for row in rows if not row.method.startswith("release ")} == committed


def test_releases_are_told_in_their_order() -> None:
    report = {**REPORT, "releases": [of_a_release(number, "gate") for number in (10, 9)]}
    shown = publish.markdown(publish.figures(publish.rows(report, publish.VOICES)))
    lines = [line for line in shown.splitlines() if re.match(r"\| \d+, gate", line)]
    assert [line.split(",")[0] for line in lines] == ["| 9", "| 10"]
    assert (
        lines[0] == "| 9, gate (1 stay) | 160 | 1 %, 1 % | 0.50 – 0.75 | 40.0 % of 9 | 9/6 · 9/6 | 0/6 · 0/6 | 1.2 % |"
    )
