"""What is done to face chips with Pillow, against torchvision's transforms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torchvision.transforms.v2 import functional

from uvsdk.modality.face import augmentation


def chip() -> Image.Image:
    """Smooth, as faces are, with an edge."""
    rows, columns = np.mgrid[0:112, 0:112] / 111
    colours = np.stack([rows, columns, (rows + columns) / 2], axis=2) * 200 + 20
    colours[40:60, 30:80] += 30
    return Image.fromarray(colours.astype(np.uint8))


def tensor(face: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(face)).permute(2, 0, 1)


def farthest(face: Image.Image, theirs: torch.Tensor) -> int:
    return int(np.abs(np.asarray(face, np.int64) - theirs.permute(1, 2, 0).numpy().astype(np.int64)).max())


@pytest.mark.parametrize("factor", [0.6, 1.4])
def test_colours_are_those_of_torchvision(factor: float) -> None:
    face = chip()
    for kind, theirs in (
        (ImageEnhance.Brightness, functional.adjust_brightness),
        (ImageEnhance.Contrast, functional.adjust_contrast),
        (ImageEnhance.Color, functional.adjust_saturation),
    ):
        assert farthest(kind(face).enhance(factor), theirs(tensor(face), factor)) <= 2, kind


def test_a_crop_is_that_of_torchvision() -> None:
    rng, same = np.random.default_rng(5), np.random.default_rng(5)
    side = 112 * 0.75
    left, top = same.uniform(0.0, 112 - side, 2)
    expected = functional.resized_crop(tensor(chip()), round(top), round(left), 84, 84, [112, 112], antialias=True)
    # Ours begins between pixels: half a pixel of a slope of about two levels a pixel, more at the edge.
    got = np.asarray(augmentation.cropped(chip(), 0.25, rng=rng), np.float64)
    assert np.abs(got - expected.permute(1, 2, 0).numpy()).mean() < 1.5


def test_blur_is_that_of_torchvision() -> None:
    got = chip().filter(ImageFilter.GaussianBlur(1.5))
    assert farthest(got, functional.gaussian_blur(tensor(chip()), [13, 13], [1.5, 1.5])) <= 3


@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")
@pytest.mark.parametrize("quality", [20, 60])
def test_jpeg_is_that_of_torchvision(quality: int) -> None:
    theirs = functional.jpeg(tensor(chip()), quality)
    got = augmentation.as_jpeg(chip(), quality)
    assert np.abs(np.asarray(got, np.float64) - theirs.permute(1, 2, 0).numpy()).mean() < 1.0
