"""From pictures of a sign to a grid of ink."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests import modality_graphs
from tests.builders import image_file
from uvsdk.errors import BundleError, NoInkError, UndecodableSampleError
from uvsdk.modality import get
from uvsdk.modality.handwriting.ink import bounds

WRITING = get("handwriting")
EIGHT = {"size": 8}
GRAPHS = modality_graphs.described(EIGHT)


def grid_of(sample: object) -> np.ndarray:
    return np.asarray(WRITING.prepare(sample, GRAPHS).features)  # type: ignore[arg-type]


def drawn(paper: int, pen: int, side: int = 200) -> Image.Image:
    """A thick L somewhere on a page."""
    page = Image.new("L", (side, side), paper)
    draw = ImageDraw.Draw(page)
    draw.rectangle((60, 40, 79, 139), fill=pen)
    draw.rectangle((60, 120, 159, 139), fill=pen)
    return page


def test_a_sign_by_hand() -> None:
    # The ink spans 100 x 100 pixels, so a cell is 12.5 pixels. The stem covers x 0 to 20: one cell and 0.6 of the next;
    # the foot covers y 80 to 100: 0.6 of row 6 and all of row 7.
    grid = grid_of(drawn(255, 0))
    assert grid.shape == (8, 8)
    assert grid.dtype == np.float32
    assert grid[:6, 0] == pytest.approx(1.0)
    assert grid[:6, 1] == pytest.approx(0.6, abs=0.02)
    assert grid[:6, 2:] == pytest.approx(0.0)
    assert grid[7] == pytest.approx(1.0)
    assert grid[6, 2:] == pytest.approx(0.6, abs=0.02)


def test_paper_and_pen_do_not_matter() -> None:
    expected = grid_of(drawn(255, 0))
    for paper, pen in ((0, 255), (240, 20), (40, 220), (200, 170)):
        assert grid_of(drawn(paper, pen)) == pytest.approx(expected, abs=0.02)


def test_formats_do_not_matter() -> None:
    expected = grid_of(drawn(255, 0))
    clear = Image.new("RGBA", (200, 200), (0, 0, 0, 0))  # a canvas on a page: black strokes on nothing
    clear.paste((0, 0, 0, 255), mask=drawn(0, 255))
    for sample in (image_file(drawn(255, 0)), clear, np.asarray(drawn(255, 0)), np.asarray(drawn(255, 0)) / 255.0):
        assert grid_of(sample) == pytest.approx(expected, abs=0.01)


def test_a_grid_of_the_right_size_is_taken_as_it_is() -> None:
    digits = np.zeros((8, 8))
    digits[2:6, 3] = 16
    digits[2:6, 4] = 4
    for sample in (digits, digits.astype(np.float32) / 16, digits.astype(np.uint8)):
        assert grid_of(sample) == pytest.approx(digits / 16, abs=0.01)


def test_the_digits_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn ships the digits")
    images = datasets.load_digits().images
    for digit in images[:200]:
        assert grid_of(digit) == pytest.approx(digit / digit.max(), abs=1e-5)
        # Enlarged and framed by paper, as a photo would be; the crop to the ink changes the scale a little.
        large = Image.fromarray((255 - digit * 15).astype(np.uint8)).resize((160, 160), Image.Resampling.BICUBIC)
        page = Image.new("L", (400, 300), 255)
        page.paste(large, (90, 70))
        assert np.corrcoef(grid_of(page).ravel(), digit.ravel())[0, 1] > 0.4


def test_an_empty_page() -> None:
    noise = np.random.default_rng(0).normal(250, 2, (300, 300)).clip(0, 255).astype(np.uint8)
    for page in (
        noise,
        np.full((50, 50), 255, np.uint8),
        np.zeros((8, 8)),
        np.zeros((8, 8, 3)),
        np.full((1, 1), 7, np.uint8),
    ):
        with pytest.raises(NoInkError, match="of 255 levels, need 12"):
            WRITING.prepare(page, GRAPHS)


def test_a_thin_pen_on_a_large_page() -> None:
    page = Image.new("L", (2000, 2000), 255)
    ImageDraw.Draw(page).line((300, 300, 1500, 1700), fill=0, width=4)
    grid = grid_of(page)
    assert np.diag(grid).min() > 0.4
    assert grid[0, 7] == 0


@pytest.mark.parametrize("side", [200, 1000, 3000])
def test_the_size_of_the_ink_is_that_of_what_was_handed_in(side: int) -> None:
    # A black square of half the side; JPEGs above 2560 are read reduced, pages above 256 averaged.
    page = Image.new("L", (side, side), 255)
    page.paste(0, (side // 4, side // 4, side // 4 + side // 2, side // 4 + side // 2))
    measured = WRITING.prepare(image_file(page, "JPEG", quality=95), GRAPHS).quality.measured
    assert measured["ink_pixels"] == pytest.approx(side / 2, rel=0.03)


@pytest.mark.parametrize("sample", [np.full((8, 8), np.nan), np.zeros((0, 8)), np.zeros((8, 8, 2)), b"no picture"])
def test_what_is_no_picture(sample: object) -> None:
    with pytest.raises(UndecodableSampleError):
        WRITING.prepare(sample, GRAPHS)  # type: ignore[arg-type]


def test_views_and_crops() -> None:
    grid = grid_of(drawn(255, 0))
    assert WRITING.views(grid, EIGHT).shape == (1, 1, 8, 8)
    crop = WRITING.crop(grid, EIGHT, np.random.default_rng(0))
    assert crop.shape == (1, 8, 8)
    assert 0 <= crop.min() <= crop.max() <= 1
    with pytest.raises(BundleError):
        WRITING.views(np.zeros((28, 28), np.float32), EIGHT)
    with pytest.raises(BundleError):
        WRITING.prepare(drawn(255, 0), modality_graphs.described({"size": 0}))


def test_a_crop_moves_ink_by_the_half_of_a_cell_at_most() -> None:
    grid = np.zeros((8, 8), np.float32)
    grid[3, 3] = 1.0
    rows, columns = np.mgrid[0:8, 0:8]
    for seed in range(20):
        crop = WRITING.crop(grid, EIGHT, np.random.default_rng(seed))[0]
        assert crop.sum() == pytest.approx(1.0)
        assert abs((crop * rows).sum() - 3) <= 0.5
        assert abs((crop * columns).sum() - 3) <= 0.5


def test_bounds_of_faint_smudges() -> None:
    ink = np.zeros((10, 10), np.float32)
    ink[0, 0] = 0.1
    ink[4:6, 4:8] = 1.0
    assert bounds(ink) == (slice(4, 6), slice(4, 8))
