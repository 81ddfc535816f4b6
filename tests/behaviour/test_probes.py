"""Twenty probes of each modality are decided as was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.behaviour import comparison, probes
from uvsdk.errors import WeightsError


@pytest.mark.parametrize("case", list(probes.CASES))
def test_decisions_are_as_recorded(case: str, tmp_path: Path) -> None:
    try:
        found = probes.decided(case, tmp_path)
    except WeightsError as error:
        pytest.skip(f"the model cannot be had: {error}")
    comparison.check("probes", case, found, spread=comparison.DECISIONS)
