"""From photos to chips: the geometry by hand, and real faces in every mode, size and orientation."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests import modality_graphs, real_data
from tests.builders import image_file
from uvsdk.errors import BundleError, NoFaceError, SeveralFacesError, UndecodableSampleError
from uvsdk.modality import Limits, get, image
from uvsdk.modality.face import alignment, detector
from uvsdk.modality.face.chips import choose

FACE = get("face")
ARCFACE = {"template": "arcface", "size": 112}
DLIB = {"template": "dlib", "size": 150}


@pytest.fixture(scope="module")
def photos() -> list[bytes]:
    """Forty LFW photos, 250 x 250 JPEG."""
    with tarfile.open(real_data.file("lfw_fold1_originals.tar")) as archive:
        members = [member for member in archive.getmembers() if member.name.endswith(".jpg")][::20]
        files = [archive.extractfile(member) for member in members]
        return [file.read() for file in files if file is not None]


@pytest.fixture(scope="module")
def portraits() -> np.ndarray:
    """One ORL portrait of each of 40 people, uint8 (40, 112, 92)."""
    with np.load(real_data.file("orl_faces.npz")) as archive:
        return np.asarray(archive["images"][::10])


@pytest.fixture(scope="module")
def photo(photos: list[bytes]) -> Image.Image:
    """One with a single face."""
    graphs = modality_graphs.loaded("face", ARCFACE)
    for data in photos:
        opened = image.decode(data, Limits()).upright
        if len(detector.find(opened, graphs.session("detector"))) == 1:
            return opened
    raise AssertionError("no LFW photo with one face")


def chip_of(sample: object, preprocessing: dict[str, str | int | float] = ARCFACE) -> np.ndarray:  # type: ignore[assignment]
    graphs = modality_graphs.loaded("face", preprocessing)
    return np.asarray(FACE.prepare(sample, graphs).features, float)  # type: ignore[arg-type]


# Geometry


@given(
    turn=st.floats(-3.1, 3.1),
    scale=st.floats(0.05, 20),
    shift=st.tuples(st.floats(-500, 500), st.floats(-500, 500)),
    seed=st.integers(0, 999),
)
@settings(max_examples=50, deadline=None)
def test_a_similarity_is_found_again(turn: float, scale: float, shift: tuple[float, float], seed: int) -> None:
    source = np.random.default_rng(seed).normal(size=(5, 2)) * 10
    matrix = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    found = alignment.similarity(source, source @ matrix.T + shift)
    assert found == pytest.approx(np.column_stack([matrix, shift]), abs=1e-6 * max(1.0, scale) * 100)


def test_a_similarity_is_the_least_squares_one_and_never_mirrors() -> None:
    rng = np.random.default_rng(1)
    source, target = rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    found = alignment.similarity(source, target)
    # Linear least squares in (a, b, tx, ty) for x' = a x - b y + tx, y' = b x + a y + ty.
    x, y, one, zero = source[:, 0], source[:, 1], np.ones(5), np.zeros(5)
    system = np.concatenate([np.stack([x, -y, one, zero], 1), np.stack([y, x, zero, one], 1)])
    a, b, tx, ty = np.linalg.lstsq(system, target.T.ravel(), rcond=None)[0]
    assert found == pytest.approx(np.array([[a, -b, tx], [b, a, ty]]))
    mirrored = alignment.similarity(source, source * [-1, 1])
    assert np.linalg.det(mirrored[:, :2]) > 0


def test_landmarks_that_coincide() -> None:
    with pytest.raises(NoFaceError, match="coincide"):
        alignment.similarity(np.ones((5, 2)), np.random.default_rng(0).normal(size=(5, 2)))


@pytest.mark.parametrize("name", sorted(alignment.TEMPLATES))
def test_landmarks_on_the_template_need_no_move(name: str) -> None:
    template = alignment.TEMPLATES[name]
    # In the unstretched picture that the template's points come from, the map only stretches.
    landmarks = (template.points + 0.5) / [template.stretch, 1.0] - 0.5
    fitted = template.fit(landmarks, template.size)
    placed = landmarks @ fitted[:, :2].T + fitted[:, 2]
    assert placed == pytest.approx(template.points)
    doubled = template.fit(landmarks, 2 * template.size)
    assert landmarks @ doubled[:, :2].T + doubled[:, 2] == pytest.approx((template.points + 0.5) * 2 - 0.5)


def test_dlib_template_by_hand() -> None:
    # x of the right eye: (.121737 + .187122 + .265825 + .334606 + .260918 + .182743) / 6 = .225492;
    # with a padding of 0.25 on a chip of 150: (.225492 + .25) / 1.5 * 150 = 47.549.
    points = alignment.TEMPLATES["dlib"].points
    assert points[0, 0] == pytest.approx(47.549, abs=1e-3)
    assert points[2].tolist() == pytest.approx([74.0127, 76.5625])


def test_the_identity_copies_and_a_shift_moves() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    picture = Image.fromarray(pixels)
    still = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert np.array_equal(alignment.warp(picture, still, 20), pixels)
    moved = alignment.warp(picture, np.array([[1.0, 0.0, 3.0], [0.0, 1.0, 5.0]]), 20)
    assert np.array_equal(moved[5:, 3:], pixels[:-5, :-3])
    assert moved[:5].max() == 0


def test_a_strong_reduction_averages() -> None:
    # Stripes of one pixel: bilinear sampling alone would give black, white or anything; their mean is 127.5.
    stripes = np.zeros((400, 400, 3), np.uint8)
    stripes[:, ::2] = 255
    chip = alignment.warp(Image.fromarray(stripes), np.array([[0.1, 0.0, 0.0], [0.0, 0.1, 0.0]]), 40)
    assert np.abs(chip[1:-1, 1:-1].astype(int) - 128).max() <= 1
    # A white square from 100 to 200 comes to lie at 10 to 20, its edges where (x + 0.5) / 10 - 0.5 puts them.
    square = np.zeros((400, 400, 3), np.uint8)
    square[100:200, 100:200] = 255
    moved = np.array([[0.1, 0.0, -0.45], [0.0, 0.1, -0.45]])
    chip = alignment.warp(Image.fromarray(square), moved, 40)[:, :, 0]
    assert chip[10:20, 10:20].min() == 255
    assert chip.sum() == 255 * 100


def test_suppression_keeps_the_best_of_each_heap() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 2.9], [50, 50, 1, 1]], np.float32)
    # Overlaps with the first: 0.5 and 0.29, around the threshold of 0.3.
    kept = detector.suppress(boxes, np.array([0.9, 0.8, 0.7, 0.6], np.float32))
    assert kept.tolist() == [0, 2, 3]
    assert detector.suppress(np.zeros((0, 4), np.float32), np.zeros(0, np.float32)).tolist() == []


def test_the_views_of_one_face_are_averaged_by_confidence() -> None:
    # One stride of 32 on a picture of 64 x 32: two cells, both confident (sqrt(1 * 1) and sqrt(0.25 * 1)), whose boxes
    # are 32 wide and 4 apart, so that they overlap by 28 / 36. Weights 2/3 and 1/3.
    quiet = {
        f"{head}_{stride}": np.zeros((1, 64 * 32 // stride**2, width), np.float32)
        for head, width in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10))
        for stride in (8, 16, 32)
    }
    quiet["cls_32"][0, :, 0] = (1.0, 0.25)
    quiet["obj_32"][0, :, 0] = 1.0
    quiet["bbox_32"][0, :, 0] = (0.5, 0.5 + 4 / 32 - 1)
    quiet["bbox_32"][0, :, 1] = 0.5
    quiet["kps_32"][0, 1, 0::2] = -1.0 + 6 / 32
    (face,) = detector._decode(quiet, 64, 32, 0.4)
    assert face.score == pytest.approx(1.0)
    assert face.box.tolist() == pytest.approx([4 / 3, 0, 32, 32], abs=1e-4)
    assert face.landmarks[:, 0].tolist() == pytest.approx([2.0] * 5, abs=1e-4)
    assert face.landmarks[:, 1].tolist() == pytest.approx([0.0] * 5, abs=1e-4)


def detection(width: float, left: float = 0, top: float = 0) -> detector.Detection:
    return detector.Detection(np.array([left, top, width, width], np.float32), np.zeros((5, 2), np.float32), 0.9)


def test_which_face_is_meant() -> None:
    picture = (100, 80)
    with pytest.raises(NoFaceError, match="no face in a picture of 100 x 80"):
        choose([], picture, 32)
    with pytest.raises(NoFaceError, match="20 pixels wide, need 32"):
        choose([detection(20)], picture, 32)
    with pytest.raises(SeveralFacesError, match=r"2 faces of similar size \(60 and 40 pixels"):
        choose([detection(60), detection(40)], picture, 32)
    passer_by = [detection(60), detection(30)]
    assert choose(passer_by, picture, 32) is passer_by[0]
    assert choose(passer_by, picture, 32, "largest") is passer_by[0]
    with pytest.raises(SeveralFacesError, match=r"2 faces \(60 and 30 pixels"):
        choose(passer_by, picture, 32, "only")
    # The middle of 100 x 80 is (49.5, 39.5): of equals, the nearer one; a far smaller one there does not count.
    corner, middle, small = detection(60), detection(40, left=30, top=20), detection(30, left=35, top=25)
    assert choose([corner, middle, small], picture, 32, "largest") is middle
    assert choose([corner, small], picture, 32, "largest") is corner


def test_who_stands_beside_a_person_in_the_middle() -> None:
    # The middle of 400 x 200 is (199.5, 99.5). The largest, 100 wide, has its centre there or `off` pixels beside it.
    picture = (400, 200)

    def two(width: float, at: float, off: float = 0.0) -> list[detector.Detection]:
        first, second = detection(100, left=149.5 + off, top=49.5), detection(width, left=at - width / 2, top=50)
        return [first, second]

    beside = two(85, at=360)
    assert choose(beside, picture, 32) is beside[0]
    with pytest.raises(SeveralFacesError):  # 0.86 of the width: no longer clear who is meant
        choose(two(86, at=360), picture, 32)
    with pytest.raises(SeveralFacesError):  # less than half a width farther from the middle
        choose(two(85, at=199.5 + 48, off=0.0), picture, 32)
    with pytest.raises(SeveralFacesError):  # the middle lies beside the largest face: two people side by side
        choose(two(85, at=310, off=-51.0), picture, 32)


@given(
    widths=st.lists(st.floats(35, 150), min_size=1, max_size=5),
    places=st.lists(st.tuples(st.floats(-20, 380), st.floats(-20, 180)), min_size=5, max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_the_default_takes_the_largest_face_or_none(widths: list[float], places: list[tuple[float, float]]) -> None:
    """So a face smaller than an impostor's own never opens a door, wherever it is held."""
    faces = [detection(w, *place) for w, place in zip(sorted(widths, reverse=True), places, strict=False)]
    try:
        assert choose(faces, (400, 200), 32) is faces[0]
    except SeveralFacesError:
        assert any(face.pixels >= 0.6 * faces[0].pixels for face in faces[1:])


def test_a_window_turns_about_its_face() -> None:
    # Scale 2 and a quarter turn anticlockwise about (10, 20) into a window of 9: the centre comes to (4, 4), and what
    # was to its right, at (11, 20), comes to lie above it, 2 pixels up (y points down).
    seen = detector._turn((10.0, 20.0), 2.0, 90.0, 9)
    assert seen[:, :2] @ (10, 20) + seen[:, 2] == pytest.approx([4, 4])
    assert seen[:, :2] @ (11, 20) + seen[:, 2] == pytest.approx([4, 2])


def test_lean_and_centre_by_hand() -> None:
    eyes = np.array([[10, 10], [20, 20], [0, 0], [0, 0], [0, 0]], np.float32)
    face = detector.Detection(np.array([10, 20, 30, 40], np.float32), eyes, 0.9)
    assert face.roll_degrees == pytest.approx(45)
    assert face.centre.tolist() == [25, 40]


# Real faces


def test_almost_every_real_face_is_found(photos: list[bytes], portraits: np.ndarray) -> None:
    graphs = modality_graphs.loaded("face", ARCFACE)
    for portrait in portraits:
        prepared = FACE.prepare(portrait, graphs)
        assert prepared.features.shape == (112, 112, 3)
        assert prepared.features.dtype == np.uint8
        assert prepared.quality.measured["face_pixels"] < 92
    refused = 0
    for data in photos:
        try:
            FACE.prepare(data, graphs)
        except SeveralFacesError:  # LFW shows people in company
            refused += 1
    assert refused <= len(photos) // 20


def test_chips_lie_on_the_template(photo: Image.Image) -> None:
    session = modality_graphs.loaded("face", DLIB).session("detector")
    chip = Image.fromarray(chip_of(photo, DLIB).astype(np.uint8))
    found = detector.find(chip, session)[0]
    assert np.abs(found.landmarks - alignment.TEMPLATES["dlib"].points).mean() < 4


@pytest.mark.parametrize("orientation", [3, 5, 6, 8])
def test_orientation_changes_nothing(photo: Image.Image, orientation: int) -> None:
    undo = {
        3: Image.Transpose.ROTATE_180,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(chip_of(image_file(photo.transpose(undo[orientation]), "PNG", exif=exif)), chip_of(photo))


@pytest.mark.parametrize("mode", ["L", "LA", "P", "PA", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_every_mode_gives_the_same_chip(photo: Image.Image, mode: str) -> None:
    grey = photo.convert("L")
    expected = chip_of(grey)
    if mode == "I;16":
        other = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    else:
        other = (grey if mode in ("L", "LA", "P", "I", "F") else grey.convert("P" if mode == "PA" else "RGB")).convert(
            mode
        )
    assert np.abs(chip_of(other) - expected).mean() < 2


def test_size_and_compression_change_little(photo: Image.Image) -> None:
    expected = chip_of(photo)
    for scale in (0.5, 2.0, 5.0):
        side = round(250 * scale)
        got = chip_of(image_file(photo.resize((side, side), Image.Resampling.LANCZOS), "JPEG", quality=92))
        # The landmarks move by a pixel or two of the chip; another person's chip differs by some 40 levels.
        assert np.abs(got - expected).mean() < 14, scale


def test_views_and_crops(photo: Image.Image) -> None:
    graphs = modality_graphs.loaded("face", ARCFACE)
    chip = FACE.prepare(photo, graphs).features
    views = FACE.views(chip, ARCFACE)
    assert views.shape == (1, 3, 112, 112)
    assert views.dtype == np.float32
    assert np.array_equal(views[0].transpose(1, 2, 0), chip)
    rng = np.random.default_rng(0)
    crops = [FACE.crop(chip, ARCFACE, rng) for _ in range(8)]
    assert all(crop.shape == (3, 112, 112) and crop.min() >= 0 and crop.max() <= 255 for crop in crops)
    mirrored = [np.corrcoef(crop.ravel(), views[0, :, :, ::-1].ravel())[0, 1] > 0.999 for crop in crops]
    assert 0 < sum(mirrored) < 8
    with pytest.raises(BundleError, match="made for another model"):
        FACE.views(chip, DLIB)


def test_no_face_small_faces_and_two(photo: Image.Image) -> None:
    graphs = modality_graphs.loaded("face", ARCFACE)
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    for faceless in (
        noise,
        np.full((200, 300), 128, np.uint8),
        np.zeros((1, 1), np.uint8),
        np.zeros((1, 500), np.uint8),
    ):
        with pytest.raises(NoFaceError, match="no face"):
            FACE.prepare(faceless, graphs)
    small = Image.new("RGB", (400, 400), (90, 90, 90))
    small.paste(photo.resize((60, 60), Image.Resampling.LANCZOS), (170, 170))
    with pytest.raises(NoFaceError, match="pixels wide, need 32"):
        FACE.prepare(small, graphs)
    couple = Image.new("RGB", (500, 250))
    couple.paste(photo, (0, 0))
    couple.paste(photo, (250, 0))
    with pytest.raises(SeveralFacesError, match="2 faces"):
        FACE.prepare(couple, graphs)
    with pytest.raises(UndecodableSampleError):
        FACE.prepare(b"no picture", graphs)


@pytest.mark.parametrize("wrong", [{"template": "oval"}, {"size": 4}, {"size": "large"}])
def test_a_manifest_that_makes_no_sense(wrong: dict[str, str | int]) -> None:
    with pytest.raises(BundleError):
        FACE.prepare(np.zeros((50, 50), np.uint8), modality_graphs.described({**ARCFACE, **wrong}))
