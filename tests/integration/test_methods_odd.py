"""The rest of the methods over the wire (see ``test_methods_even.py``), and SCAFFOLD."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.integration.harness import kind
from tests.integration.method_run import (
    Case,
    Crew,
    check_model,
    check_operators_view,
    check_rounds,
    check_verification,
    check_what_was_sent,
    training,
)
from uvsdk.federation import algorithms


@pytest.mark.parametrize("name", algorithms.names()[1::2])
def test_a_method_over_the_wire(name: str, tmp_path: Path, crew: Crew) -> None:
    with training(Case(name), tmp_path, crew) as run:
        check_rounds(run)
        check_model(run)
        check_what_was_sent(run)
        check_verification(run)
        check_operators_view(run)


def test_control_variates_over_the_wire(tmp_path: Path, crew: Crew) -> None:
    """SCAFFOLD and FedProx beside a method; the lost device's c_i is that of the round before."""
    with training(Case("fedaws", {"control_variates": True, "proximal": 0.01}), tmp_path, crew) as run:
        check_rounds(run)
        check_model(run)
        version = run.trained().version
        answer = run.server.ask("GET", f"/v1/models/{version}/control")
        assert len(answer.content) == 4 * run.model.manifest.size
        assert np.frombuffer(answer.content, "<f4").any()
        old = run.server.ask("GET", f"/v1/models/{run.model.version}/control")
        assert (old.status_code, kind(old)) == (404, "no-control")
