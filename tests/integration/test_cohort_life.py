"""A deployment whose method tells no vector of a person: what verifies there is calibrated by the operator's cohort."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.integration import evaluation_fleet, harness
from tests.integration.evaluation_fleet import Fleet, Towards, cohort_file, seeing, signs
from uvsdk.bundle import shipped
from uvsdk.federation.algorithms.fedmetric.payload import Payload
from uvsdk.federation.round import Method
from uvsdk.records.codec import pack
from uvsdk_device import Runtime
from uvsdk_device.releases import read_standing

PEOPLE = 16


def test_a_cohort_leads_fedmetric_to_a_release_and_a_calibrated_verification(tmp_path: Path) -> None:
    """The steps of docs/releases.md, by sixteen real devices of which eight only evaluate."""
    config = replace(evaluation_fleet.EVALUATED, algorithm="fedmetric", evaluation_share=0.999)
    assert (config.evaluation, Method.of(config).impostors) == ("auto", "cohort")
    file = cohort_file(tmp_path)
    nothing = pack(Payload(np.empty(0, np.float32), 0.0))  # what a device with too few samples publishes
    settings = {"start_after_users": str(PEOPLE)}
    model = shipped().with_theta(seeing(6))
    with harness.serving(tmp_path, model=model, config=config, settings=settings) as server:
        assert server.ask("POST", "/v1/evaluations").status_code == 409  # nobody to compare with yet
        assert harness.command("cohort", "--data", str(server.data), "add", str(file)) == 0
        fleet = Fleet(server, tmp_path, Towards(seeing(32), nothing), count=PEOPLE)
        fleet.join()
        fleet.participate()
        first, last = server.ask("GET", "/v1/evaluations").json()["evaluations"][::-1]
        assert (first["impostors"], first["arrived"], first["outcome"]) == ("cohort", PEOPLE, "calibrated")
        assert (last["arrived"], last["outcome"]) == (PEOPLE, "released"), last["reasons"]
        causes = [item["cause"] for item in server.ask("GET", "/v1/releases").json()["releases"]][::-1]
        assert causes == ["founding", "calibration", "gate"]
        # The device has followed, and decides by what was measured there: 16 templates against 100 strangers' samples.
        newest = read_standing(fleet.stores[0], "handwriting").adopted[0].release
        assert newest.number == 3
        runtime = Runtime(fleet.stores[0], retry=None)
        genuine = runtime.verify("person 0", signs(0, count=6)[5])
        stranger = runtime.verify("person 0", signs(300, count=1)[0])
        assert (genuine.accepted, stranger.accepted) == (True, False)
        assert genuine.basis is not None
        assert (genuine.basis.people, genuine.basis.trials, genuine.basis.release) == (PEOPLE, 100 * PEOPLE, 3)
