"""Verification: a score by hand, a decision without a truth value, and an error for everything unusable."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import uvsdk
from tests.builders import image_file
from tests.unit.conftest import MakeBundle
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle, shipped
from uvsdk.errors import ModelMismatchError, SampleError, ThresholdError
from uvsdk.scoring import Decision, Threshold
from uvsdk.templates.storage import MemoryStore
from uvsdk.templates.template import Template
from uvsdk.verify import compare, verify

HALF = Threshold(0.5, 0.01, 1000)


def template_of(bundle: Bundle, threshold: Threshold | None = HALF) -> Template:
    return Template(np.array([1, 0, 0], np.float32), bundle.version, "numbers", 3, threshold)


def test_the_score_is_a_cosine(identity_bundle: MakeBundle) -> None:
    # (3, 4, 0) normalised is (0.6, 0.8, 0); its cosine with (1, 0, 0) is 0.6.
    bundle = identity_bundle()
    decision = verify(b"3 4 0", template_of(bundle), model=bundle)
    assert decision.score == pytest.approx(0.6)
    assert decision.accepted
    assert decision.threshold == HALF
    assert decision.model_version == bundle.version
    assert decision.quality.measured == {"length": 5.0}
    assert set(decision.timings_s) == {"decode", "detect", "features", "model", "decision"}
    assert all(seconds >= 0 for seconds in decision.timings_s.values())
    # (4, 3, 0) against a threshold of exactly its score, 0.8 in float32, is accepted; one step above is not.
    score = verify(b"4 3 0", template_of(bundle), model=bundle).score
    at, above = Threshold(score, 0.01, 1), Threshold(float(np.nextafter(score, 1)), 0.01, 1)
    assert verify(b"4 3 0", template_of(bundle), model=bundle, threshold=at).accepted
    assert not verify(b"4 3 0", template_of(bundle), model=bundle, threshold=above).accepted


def test_reject_is_a_result(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle()
    decision = verify(b"-1 0 0", template_of(bundle), model=bundle)
    assert decision.score == -1.0
    assert not decision.accepted


def test_a_decision_has_no_truth_value(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle()

    def naive(probe: bytes) -> str:
        return "welcome" if verify(probe, template_of(bundle), model=bundle) else "go away"

    for probe in (b"1 0 0", b"-1 0 0"):
        with pytest.raises(TypeError, match=r"use \.accepted"):
            naive(probe)


def test_a_threshold_given_wins_over_the_template(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle()
    strict = Threshold(0.9, 0.001, 5000, model_version=bundle.version)
    assert verify(b"3 4 0", template_of(bundle), model=bundle, threshold=strict).threshold == strict


def test_another_model_is_noticed_before_decoding(identity_bundle: MakeBundle) -> None:
    bundle, other = identity_bundle(), identity_bundle(name="other")
    with pytest.raises(ModelMismatchError, match="enrol again") as caught:
        verify(b"", template_of(other), model=bundle)  # an empty sample would raise NoInkError if it were read
    assert bundle.version[:12] in str(caught.value)


def test_no_threshold_says_how_to_get_one_before_decoding(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle()
    with pytest.raises(ThresholdError, match=r"Calibrate the bundle .* or pass fmr="):
        verify(b"", template_of(bundle, None), model=bundle)


def test_a_threshold_of_another_model_is_refused(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle()
    with pytest.raises(ThresholdError, match="calibrate this model"):
        verify(b"1 0 0", template_of(bundle), model=bundle, threshold=Threshold(0.5, 0.1, 9, model_version="other"))


def test_an_unusable_probe_is_an_error(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle()
    with pytest.raises(SampleError, match="the page is empty"):
        verify(b"", template_of(bundle), model=bundle)


def test_model_by_path(tmp_path: Path, identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle()
    bundle.save(tmp_path / "model.uvb")
    assert verify(b"1 0 0", template_of(bundle), model=tmp_path / "model.uvb").score == 1.0


@pytest.mark.parametrize(
    "embedding",
    [[0.6, 0.6, 0.6], [0, 0, 0], [np.nan, 0, 0], [np.inf, 0, 0], [1.01, 0, 0]],
    ids=str,
)
def test_compare_refuses_what_is_not_of_unit_norm(embedding: list[float], identity_bundle: MakeBundle) -> None:
    with pytest.raises(SampleError, match="norm 1"):
        compare(np.array(embedding, np.float32), template_of(identity_bundle()))


@pytest.mark.parametrize("shape", [(2,), (4,), (1, 3), (0,)], ids=str)
def test_compare_refuses_another_shape(shape: tuple[int, ...], identity_bundle: MakeBundle) -> None:
    with pytest.raises(ModelMismatchError):
        compare(np.ones(shape, np.float32), template_of(identity_bundle()))


def test_compare_stays_in_the_range_of_a_cosine() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        vector: Float32 = rng.normal(size=50).astype(np.float32)
        vector /= np.linalg.norm(vector)
        assert compare(vector, Template(vector, "m", "voice", 3)) <= 1.0


# The rest goes through the shipped model and a real modality: every degenerate input is an error that says so.


def page(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A vertical stroke of ink on paper, a little different for every seed."""
    rng = np.random.default_rng(seed)
    paper = np.full((32, 32), 255, np.uint8)
    for row in range(4, 28):
        column = 14 + int(rng.integers(0, 3)) + row // 10
        paper[row, column : column + 4] = 0
    return paper


def enrolled(bundle: Bundle) -> Template:
    store = MemoryStore()
    return uvsdk.enroll("ana", [page(1), page(2), page(3)], model=bundle, store=store).template


def test_forms_of_one_sample_score_alike(tmp_path: Path) -> None:
    bundle = shipped()
    template = enrolled(bundle)
    path = tmp_path / "page.png"
    path.write_bytes(image_file(page(4)))
    forms = (page(4), image_file(page(4)), path, str(path), io.BytesIO(image_file(page(4))), Image.fromarray(page(4)))
    decisions: list[Decision] = [verify(form, template, model=bundle, threshold=HALF) for form in forms]
    assert len({decision.score for decision in decisions}) == 1


DEGENERATE: dict[str, object] = {
    "nothing": b"",
    "a zero byte": b"\0",
    "text": b"this is not a picture",
    "half a picture": image_file(page(4))[:60],
    "an empty page": np.full((32, 32), 255, np.uint8),
    "no file": "no-such-file.png",
    "a folder": ".",
    "an array without pixels": np.zeros((0, 0), np.uint8),
    "a vector": np.zeros(64, np.uint8),
    "five dimensions": np.zeros((1, 1, 1, 8, 8), np.uint8),
    "text where bytes belong": io.StringIO("text"),
    "an empty file": io.BytesIO(b""),
}


@pytest.mark.parametrize("name", sorted(DEGENERATE))
def test_every_degenerate_probe_is_a_sample_error(name: str) -> None:
    bundle = shipped()
    with pytest.raises(SampleError) as caught:
        verify(DEGENERATE[name], enrolled(bundle), model=bundle, threshold=HALF)  # type: ignore[arg-type]
    assert str(caught.value)
