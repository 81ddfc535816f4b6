"""Calibration cards: found by what decides an embedding, and by nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import uvsdk
from examples.reproduce.calibration import table
from tests.unit.conftest import Numbers
from tests.unit.test_calibrating import KINDS, people
from uvsdk.bundle import Bundle, cards
from uvsdk.bundle.manifest import Manifest
from uvsdk.cli import main
from uvsdk.errors import BundleError, ThresholdError
from uvsdk.evaluation import calibrating
from uvsdk.identify import DEFAULT_FPIR, search_threshold
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


def test_the_readme_tells_of_the_cards_that_ship() -> None:
    text = (table.HERE / "README.md").read_text(encoding="utf-8")
    assert table.rewritten(text) == text, "python -m examples.reproduce.calibration.table"
    folder = Path(uvsdk.__file__).parent / "data" / "cards"
    assert text.count("impostor trials of") == len(list(folder.glob("*.bin")))


@pytest.mark.parametrize("backbone", ["voice", "face", "ge2e"])
def test_an_export_has_the_thresholds_and_the_account_of_its_card(
    backbone: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "model.uvb"
    if main(["export", backbone, "-o", str(path)]):
        pytest.skip(f"the weights cannot be had: {capsys.readouterr().err}")
    exported = Bundle.open(path)
    name = cards.key(exported.manifest)
    card = from_bytes(
        (Path(uvsdk.__file__).parent / "data" / "cards" / f"{name}.bin").read_bytes(),
        get(exported.manifest.modality).conditions,
    )
    assert exported.calibration is not None
    assert exported.calibration.account == card.account
    assert card.account in capsys.readouterr().out
    assert main(["bundle", "show", str(path)]) == 0
    assert f"measured on {card.source}; {card.account}\n" in capsys.readouterr().out
    lines = [line for line in table.cards().splitlines() if f"`{name[:8]}`" in line]
    assert len(lines) == 1
    for scale in ("llr", "cosine"):
        limits = [exported.calibration.threshold(rate, scale) for rate in (0.01, 0.001, 1e-4)]  # type: ignore[arg-type]
        kept = [card.threshold(rate, scale) for rate in (0.01, 0.001, 1e-4)]  # type: ignore[arg-type]
        assert [limit.score for limit in limits] == [limit.score for limit in kept]
        assert {limit.trials for limit in limits} == {card.trials("cosine")} == {card.trials("llr")}
        if scale == "llr":
            assert lines[0].endswith("| " + " | ".join(f"{limit.score:.3f}" for limit in limits) + " |")
    # What `identify` may say of galleries is of the same trials.
    supported = math.floor(card.trials("cosine") * DEFAULT_FPIR / 3)
    assert search_threshold(exported.calibration, supported, fpir=DEFAULT_FPIR).trials == card.trials("llr")
    words = f"there are {card.trials()} of {card.people} people: search at most {supported} people"
    with pytest.raises(ThresholdError, match=words):
        search_threshold(exported.calibration, supported + 1, fpir=DEFAULT_FPIR)
