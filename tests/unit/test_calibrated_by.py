"""Whose calibration a release has, by the records of every release so far."""

from __future__ import annotations

from dataclasses import replace

from uvsdk.release.record import Evaluation, Release, calibrated_by

MEASURED = Evaluation(1, "moments", 12, 72, 0.01, 0.0, 0.02, 0.4, 0.1, 0.05, 0.15, 0.2, 1000.0)
FOUNDING = Release("clinic", 1, "m", "b1", "c1", 0, 0, "fedaws", "d", "founding", (), 0.0)
OWN = replace(FOUNDING, number=2, bundle="b2", calibration="c2", replaces=1, cause="calibration")
GATE = replace(OWN, number=3, model_version="n", bundle="b3", calibration="c3", cause="gate", evaluation=(MEASURED,))
PROMOTED = replace(OWN, number=4, model_version="o", bundle="b4", calibration="c4", cause="operator")


def test_by_the_first_release_that_had_it() -> None:
    every = (FOUNDING, OWN, GATE, PROMOTED)
    assert [calibrated_by(item.calibration, every) for item in every] == [
        "founding",
        "operator",
        "evaluation",
        "operator",
    ]
    # Going back to it changes nothing, under whatever cause.
    for former in every:
        back = replace(former, number=5, replaces=4, cause="roll-back", evaluation=former.evaluation)
        assert calibrated_by(former.calibration, (*every, back)) == calibrated_by(former.calibration, every)
    # The model that the deployment began with, promoted by hand with what it brought along.
    assert calibrated_by("c1", (*every, replace(FOUNDING, number=5, replaces=4, cause="operator"))) == "founding"
    # A candidate that an operator promotes with what an evaluation measured of it.
    measured = replace(PROMOTED, calibration="c5", evaluation=(MEASURED,))
    assert calibrated_by("c5", (*every, measured)) == "evaluation"


def test_nobodys() -> None:
    assert calibrated_by("", (replace(FOUNDING, calibration=""),)) == "nobody"
    assert calibrated_by("unknown", (FOUNDING,)) == "nobody"
