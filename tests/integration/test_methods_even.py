"""Every other method of the registry over the wire (the rest: ``test_methods_odd.py``); see ``method_run.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

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


@pytest.mark.parametrize("name", algorithms.names()[::2])
def test_a_method_over_the_wire(name: str, tmp_path: Path, crew: Crew) -> None:
    with training(Case(name), tmp_path, crew) as run:
        check_rounds(run)
        check_model(run)
        check_what_was_sent(run)
        check_verification(run)
        check_operators_view(run)
