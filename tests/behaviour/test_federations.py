"""Every method between three devices and a server gives the model, the state and the messages that were recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.behaviour import comparison, federations
from tests.integration.forked import Crew
from uvsdk.federation import algorithms


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    found = Crew(tmp_path_factory.mktemp("crew") / "log")
    yield found
    found.dismiss()


@pytest.mark.parametrize("name", algorithms.names())
def test_a_federation_is_as_recorded(name: str, tmp_path: Path, crew: Crew) -> None:
    comparison.check("federations", name, federations.federated(name, tmp_path, crew), spread=comparison.TRAINING)
