"""Calibration cards: found by what decides an embedding, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import uvsdk
from tests.unit.conftest import Numbers
from tests.unit.test_calibrating import KINDS, people
from uvsdk.bundle import Bundle, cards
from uvsdk.bundle.manifest import Manifest
from uvsdk.errors import BundleError
from uvsdk.evaluation import calibrating
from uvsdk.modality import get
from uvsdk.scoring.record import from_bytes, to_bytes

MANIFEST = Manifest("numbers", "identity", 3, MappingProxyType({"size": 3}), (), ("weights sha256 ab",))


@pytest.fixture
def card(numbers: Numbers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, bytes]:
    """A folder that stands for the package, with one card in it."""
    fitted = calibrating.fit(people(30), model_version="m", source="thirty people made of numbers")
    name, body = cards.make(fitted.calibration, MANIFEST)
    (tmp_path / "data" / "cards").mkdir(parents=True)
    (tmp_path / "data" / "cards" / name).write_bytes(body)
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    return tmp_path / "data" / "cards" / name, body


def bundle_of(manifest: Manifest) -> Bundle:
    return Bundle(manifest, np.empty(0, np.float32), {"embedding": b"not looked at"})


def test_a_card_fits_its_weights_and_preprocessing_alone(card: tuple[Path, bytes]) -> None:
    bundle = bundle_of(MANIFEST)
    found = cards.with_card(bundle)
    assert found.version == bundle.version
    assert found.calibration is not None
    assert found.calibration.model_version == bundle.version
    assert found.calibration.scale == "llr"
    assert found.calibration.cohort is None
    for other in (
        replace(MANIFEST, sources=("weights sha256 cd",)),
        replace(MANIFEST, preprocessing=MappingProxyType({"size": 4})),
        replace(MANIFEST, backbone="other"),
        replace(MANIFEST, dimension=4),
    ):
        assert cards.find(bundle_of(other)) is None
        assert cards.with_card(bundle_of(other)).calibration is None


def test_what_was_measured_on_ones_own_people_stays(card: tuple[Path, bytes]) -> None:
    bundle = cards.with_card(bundle_of(MANIFEST))
    assert bundle.calibration is not None
    own = bundle.with_calibration(replace(bundle.calibration, source="our own people"))
    assert cards.with_card(own) is own


def test_a_card_holds_nobody(card: tuple[Path, bytes]) -> None:
    # Thirty people with three recordings in three ways: none of these rows may be in the bytes.
    seen = people(30)
    assert not any(row.tobytes() in card[1] for row in seen.embeddings)
    again = from_bytes(card[1], KINDS)
    assert len(again.impostor) <= cards.KEPT
    assert again.ratio is not None
    assert len(again.ratio.impostor) <= cards.KEPT


def test_damaged_or_renamed_cards_are_refused(card: tuple[Path, bytes]) -> None:
    path, body = card
    path.write_bytes(body[:-3])
    with pytest.raises(BundleError, match="calibration does not read"):
        cards.find(bundle_of(MANIFEST))
    path.write_bytes(to_bytes(replace(from_bytes(body, KINDS), model_version="card:another")))
    with pytest.raises(BundleError, match="not the one of that name"):
        cards.find(bundle_of(MANIFEST))


def test_only_ratios_without_a_cohort_make_a_card() -> None:
    seen = people(30)
    judged = calibrating.fit(seen, model_version="m", source="", as_norm=True, keep_cohort=True).calibration
    for calibration in (judged, replace(judged, ratio=None)):
        with pytest.raises(ValueError, match="needs no cohort"):
            cards.make(calibration, MANIFEST)


def test_the_cards_that_ship_read() -> None:
    folder = Path(uvsdk.__file__).parent / "data" / "cards"
    known = [*get("voice").conditions, *get("face").conditions]
    paths = sorted(folder.glob("*.bin"))
    assert paths
    for path in paths:
        found = from_bytes(path.read_bytes(), known)
        assert found.model_version == f"card:{path.stem}"
        assert found.ratio is not None
        assert found.cohort is None
        assert found.threshold(0.01, "llr").trials >= 10_000
