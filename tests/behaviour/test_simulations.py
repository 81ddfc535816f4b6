"""Every method simulated for twenty rounds gives the model and the state that were recorded."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.behaviour import comparison, simulations
from uvsdk.federation import algorithms


@pytest.mark.parametrize("case", [*algorithms.names(), *simulations.VARIANTS])
def test_a_simulation_is_as_recorded(case: str) -> None:
    comparison.check("simulations", case, simulations.simulated(case), spread=comparison.TRAINING)


def test_this_arithmetic_is_recorded() -> None:
    if not comparison.is_recorded():
        pytest.skip("this processor, or a library, rounds otherwise than those recorded: compared within a spread only")
