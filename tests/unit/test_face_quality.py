"""What is measured in a face: by hand on made chips, and on real ones made worse."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFilter

from tests import real_data
from uvsdk.errors import LowQualityError
from uvsdk.modality.face import alignment, detector, quality

TEMPLATE = alignment.TEMPLATES["arcface"]


def seen(landmarks: np.ndarray | None = None, score: float = 0.93, width: float = 94.0) -> detector.Detection:
    """A face as the detector gives it; on the template where nothing else is said."""
    points = TEMPLATE.points if landmarks is None else landmarks
    return detector.Detection(np.array([0, 0, width, width], np.float32), points.astype(np.float32), score)


def measured(chip: np.ndarray, face: detector.Detection | None = None) -> dict[str, float]:
    return quality.measure(face or seen(), chip.astype(np.uint8), template=TEMPLATE)


@pytest.fixture(scope="module", name="chips")
def chips_fixture() -> list[np.ndarray]:
    """Aligned faces of 40 LFW photos and 20 ORL portraits."""
    with np.load(real_data.file("lfw_folds1-5_aligned112.npz")) as archive:
        blobs, ends = archive["jpeg"], archive["off"]
    lfw = [
        np.asarray(Image.open(io.BytesIO(blobs[ends[index] : ends[index + 1]].tobytes())).convert("RGB"))
        for index in range(0, len(ends) - 1, 96)
    ]
    with np.load(real_data.file("orl_faces.npz")) as archive:
        portraits, points = archive["images"][::20], archive["landmarks5"][::20]
    orl = [
        alignment.warp(Image.fromarray(portrait).convert("RGB"), TEMPLATE.fit(five, 112), 112)
        for portrait, five in zip(portraits, points, strict=True)
    ]
    return lfw + orl


def test_light_by_hand() -> None:
    # Rows 18 to 106 and columns 14 to 98 count; in the upper half of those rows everything is white.
    chip = np.zeros((112, 112, 3))
    chip[:62] = 255
    found = measured(chip)
    assert found["brightness"] == pytest.approx(44 / 88, abs=1e-6)
    assert found["contrast"] == pytest.approx(0.5, abs=1e-6)
    assert found["overexposed_fraction"] == pytest.approx(0.5)
    assert found["underexposed_fraction"] == pytest.approx(0.5)
    # BT.601: pure green is 0.587 bright.
    green = np.zeros((112, 112, 3))
    green[:, :, 1] = 255
    assert measured(green)["brightness"] == pytest.approx(0.587, abs=1e-6)


def test_pose_by_hand() -> None:
    # Eyes 40 apart and level, mouth 40 below, nose in the middle of the eyes and 0.558 of the way down.
    straight = np.array([[30, 40], [70, 40], [50, 40 + 0.558 * 40], [40, 80], [60, 80]])
    chip = np.full((112, 112, 3), 99)
    found = measured(chip, seen(straight))
    assert (found["yaw"], found["pitch"], found["roll_degrees"]) == pytest.approx((0, 0, 0), abs=1e-6)
    turned = straight.copy()
    turned[2] += (10, -8)  # a quarter of the eyes' distance to the right, a fifth of the face's height up
    found = measured(chip, seen(turned))
    assert (found["yaw"], found["pitch"]) == pytest.approx((0.25, 0.2), abs=1e-6)
    # The whole face turned clockwise by 30 degrees (y points down) changes the lean alone.
    cos, sin = np.cos(np.pi / 6), np.sin(np.pi / 6)
    leaning = measured(chip, seen(turned @ np.array([[cos, sin], [-sin, cos]])))
    assert leaning["roll_degrees"] == pytest.approx(30, abs=1e-4)
    assert (leaning["yaw"], leaning["pitch"]) == pytest.approx((0.25, 0.2), abs=1e-5)


def test_sharpness_by_hand() -> None:
    # Stripes of one pixel: a mean over 9 of them moves by 1/9 of a step from pixel to pixel, so 8/9 is taken away.
    chip = np.zeros((112, 112, 3))
    chip[::2, ::2] = 255
    chip[1::2, 1::2] = 255
    assert measured(chip)["sharpness"] == pytest.approx(8 / 9, abs=1e-6)
    # A ramp is its own mean: nothing is taken away.
    ramp = np.repeat((np.arange(112)[:, None] + np.arange(112))[:, :, None], 3, axis=2)
    assert measured(ramp)["sharpness"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("level", [0, 1, 128, 255])
def test_a_chip_of_one_colour_is_measured_without_a_warning(level: int) -> None:
    found = measured(np.full((112, 112, 3), level), seen(np.zeros((5, 2))))
    assert found["sharpness"] == 0
    assert found["occlusion"] == 1
    assert all(np.isfinite(value) for value in found.values())
    with pytest.raises(LowQualityError, match=r"sharpness 0, need at least 0\.15"):
        quality.judge(found, "standard")
    assert quality.judge(found, "off").advice


@given(seed=st.integers(0, 999), gain=st.floats(0.3, 1.0), side=st.sampled_from([112, 150, 160]))
@settings(max_examples=20, deadline=None)
def test_every_value_is_finite_and_within_its_range(seed: int, gain: float, side: int) -> None:
    rng = np.random.default_rng(seed)
    chip = (rng.integers(0, 256, (side, side, 3)) * gain).astype(np.uint8)
    template = {112: "arcface", 150: "dlib", 160: "facenet"}[side]
    found = quality.measure(seen(rng.normal(size=(5, 2)) * 30), chip, template=alignment.TEMPLATES[template])
    assert set(found) == {item.name for item in quality.REQUIREMENTS}
    assert all(np.isfinite(value) for value in found.values())
    for name in ("sharpness", "brightness", "overexposed_fraction", "underexposed_fraction", "occlusion"):
        assert 0 <= found[name] <= 1


@pytest.mark.data
def test_real_photos_pass_the_standard(chips: list[np.ndarray]) -> None:
    strict = 0
    for chip in chips:
        found = measured(chip)
        quality.judge(found, "standard")
        try:
            quality.judge(found, "strict")
        except LowQualityError:
            strict += 1
    assert strict <= len(chips) // 20


def _bar(chip: np.ndarray, top: int, bottom: int, colour: tuple[int, int, int]) -> Image.Image:
    covered = Image.fromarray(chip)
    ImageDraw.Draw(covered).rectangle([12, top, 100, bottom], fill=colour)
    return covered


WORSE = {
    "blurred": ("sharpness", lambda chip: Image.fromarray(chip).filter(ImageFilter.GaussianBlur(3))),
    "dark": ("brightness", lambda chip: Image.fromarray((chip * 0.2).astype(np.uint8))),
    "overexposed": (
        "overexposed_fraction",
        lambda chip: Image.fromarray(np.clip(chip.astype(float) * 4 + 60, 0, 255).astype(np.uint8)),
    ),
    "eyes covered": ("occlusion", lambda chip: _bar(chip, 40, 64, (0, 0, 0))),
    "mask": ("occlusion", lambda chip: _bar(chip, 66, 111, (150, 180, 210))),
    "hand over the mouth": ("occlusion", lambda chip: _bar(chip, 80, 104, (180, 140, 120))),
}


@pytest.mark.data
@pytest.mark.parametrize("how", sorted(WORSE))
def test_worse_photos_fail_strictly_and_say_why(how: str, chips: list[np.ndarray]) -> None:
    name, make = WORSE[how]
    words = next(item.words for item in quality.REQUIREMENTS if item.name == name)
    refused = 0
    for chip in chips:
        try:
            quality.judge(measured(np.asarray(make(chip))), "strict")
        except LowQualityError as error:
            refused += words in str(error)
    assert refused >= 0.95 * len(chips)


def test_what_only_the_face_tells() -> None:
    chip = np.random.default_rng(0).integers(60, 200, (112, 112, 3)).astype(np.uint8)
    profile = TEMPLATE.points.copy()
    profile[2, 0] = profile[1, 0] + 5
    for face, words in (
        (seen(width=40.0), "width of the face"),
        (seen(score=0.7), "certainty of a face"),
        (seen(profile), "turn to the side"),
    ):
        found = measured(chip, face)
        assert any(words in advice for advice in quality.judge(found, "standard").advice)
        with pytest.raises(LowQualityError, match=words):
            quality.judge(found, "strict")
