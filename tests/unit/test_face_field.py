"""What people really send as a photo of a face, through the whole path to a decision."""

from __future__ import annotations

import io
import tarfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

import uvsdk
from examples.reproduce.lfw import company
from tests import real_data
from tests.builders import image_file
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.cli import main
from uvsdk.errors import (
    EnrolmentError,
    LowQualityError,
    NoFaceError,
    SeveralFacesError,
    UndecodableSampleError,
    WeightsNotFoundError,
)
from uvsdk.modality import Capture, Limits, image
from uvsdk.modality.face.chips import CapturedFace, choose
from uvsdk.modality.face.detector import Detection
from uvsdk.scoring import Threshold
from uvsdk.templates.storage import MemoryStore

pytestmark = pytest.mark.data
LIMITS = Limits()
THRESHOLD = Threshold(score=0.35, fmr=0.01, trials=0)


@lru_cache
def _bundle() -> Bundle:
    pytest.importorskip("onnx", reason="making the bundle needs the train extra")
    from uvsdk.training.graphs.sface import sface_bundle

    try:
        return sface_bundle()
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")


@pytest.fixture(name="bundle")
def bundle_fixture() -> Bundle:
    return _bundle()


@lru_cache
def people() -> dict[str, list[bytes]]:
    """LFW photos, 250 x 250 JPEG, of six people with several."""
    found: dict[str, list[bytes]] = {}
    with tarfile.open(real_data.file("lfw_fold1_originals.tar")) as archive:
        for member in archive.getmembers():
            if member.name.endswith(".jpg"):
                file = archive.extractfile(member)
                assert file is not None
                found.setdefault(member.name.split("/")[-2], []).append(file.read())
    return {name: files for name, files in sorted(found.items()) if len(files) >= 4}


@pytest.fixture(name="photo")
def photo_fixture() -> Image.Image:
    return image.decode(next(iter(people().values()))[0], LIMITS).upright


def vector(sample: object, bundle: Bundle) -> np.ndarray:
    return embed(sample, bundle, capture=Capture(faces="largest")).embedding  # type: ignore[arg-type]


def profiled(picture: Image.Image) -> bytes:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return image_file(picture, "PNG", icc_profile=profile)


def lab(picture: Image.Image) -> Image.Image:
    to_lab = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
    converted = ImageCms.applyTransform(picture, to_lab)
    assert converted is not None
    return converted


COLOUR = {
    "png": lambda photo: image_file(photo),
    "rgba png": lambda photo: image_file(photo.convert("RGBA")),
    "premultiplied": lambda photo: photo.convert("RGBA").convert("RGBa"),
    "palette gif": lambda photo: image_file(photo.quantize(256), "GIF"),
    "cmyk jpeg": lambda photo: image_file(photo.convert("CMYK"), "JPEG", quality=95),
    "cmyk tiff": lambda photo: image_file(photo.convert("CMYK"), "TIFF"),
    "ycbcr": lambda photo: photo.convert("YCbCr"),
    "hsv": lambda photo: photo.convert("HSV"),
    "lab tiff": lambda photo: image_file(lab(photo), "TIFF"),
    "webp": lambda photo: image_file(photo, "WEBP", quality=90),
    "bmp": lambda photo: image_file(photo, "BMP"),
    "profile": profiled,
    "broken profile": lambda photo: image_file(photo, "PNG", icc_profile=b"no profile at all"),
    "uint16 array": lambda photo: np.asarray(photo).astype(np.uint16) * 257,
    "float array": lambda photo: np.asarray(photo).astype(np.float32) / 255,
    "double array": lambda photo: np.asarray(photo).astype(np.float64),
    "larger": lambda photo: image_file(photo.resize((1000, 1000), Image.Resampling.LANCZOS), "JPEG", quality=90),
    "smaller": lambda photo: photo.resize((140, 140), Image.Resampling.LANCZOS),
}
GREY = {
    "grey jpeg": lambda photo: image_file(photo.convert("L"), "JPEG", quality=95),
    "grey alpha png": lambda photo: image_file(photo.convert("LA")),
    "16-bit png": lambda photo: image_file(np.asarray(photo.convert("L")).astype(np.uint16) * 257),
    "12-bit tiff": lambda photo: image_file(np.asarray(photo.convert("L")).astype(np.uint16) * 16, "TIFF"),
    "32-bit integers": lambda photo: photo.convert("L").convert("I"),
    "floats": lambda photo: photo.convert("L").convert("F"),
}


@pytest.mark.parametrize("form", sorted(COLOUR))
def test_the_form_of_a_picture_hardly_changes_its_embedding(form: str, photo: Image.Image, bundle: Bundle) -> None:
    # Two photos of one person lie at 0.5 to 0.8, of two people at 0.0 to 0.3.
    assert vector(COLOUR[form](photo), bundle) @ vector(photo, bundle) > 0.93


@pytest.mark.parametrize("form", sorted(GREY))
def test_grey_of_any_depth_is_one_grey(form: str, photo: Image.Image, bundle: Bundle) -> None:
    assert vector(GREY[form](photo), bundle) @ vector(photo.convert("L"), bundle) > 0.98
    assert vector(GREY[form](photo), bundle) @ vector(photo, bundle) > 0.7


def test_avif_where_pillow_reads_it(photo: Image.Image, bundle: Bundle) -> None:
    Image.init()
    if "AVIF" not in Image.SAVE:
        pytest.skip("this Pillow has no AVIF")
    assert vector(image_file(photo, "AVIF", quality=90), bundle) @ vector(photo, bundle) > 0.93


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_with_any_exif_orientation(orientation: int, photo: Image.Image, bundle: Bundle) -> None:
    # ageitgey/face_recognition #381. How the picture is stored so that the tag turns it upright; 5 and 7 mirror.
    stored = {
        1: photo,
        2: photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: photo.transpose(Image.Transpose.ROTATE_180),
        4: photo.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: photo.transpose(Image.Transpose.TRANSPOSE),
        6: photo.transpose(Image.Transpose.ROTATE_90),
        7: photo.transpose(Image.Transpose.TRANSVERSE),
        8: photo.transpose(Image.Transpose.ROTATE_270),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert vector(image_file(stored, "JPEG", quality=95, exif=exif), bundle) @ vector(photo, bundle) > 0.95


@pytest.mark.parametrize("turn", [Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270])
def test_a_photo_that_lost_its_orientation(turn: Image.Transpose, bundle: Bundle) -> None:
    # exadel CompreFace #1056: found at 90 degrees, missed at 0 and 270.
    for files in list(people().values())[:3]:
        photo = image.decode(files[0], LIMITS).upright
        assert np.array_equal(vector(photo.transpose(turn), bundle), vector(photo, bundle))


@pytest.mark.parametrize("degrees", [-30, -15, 15, 30])
def test_a_head_that_leans(degrees: float, bundle: Bundle) -> None:
    # Without a second look at the face, 25 degrees leave a cosine of 0.70 on average and 0.52 for one in ten.
    kept = []
    for files in list(people().values())[:6]:
        photo = image.decode(files[0], LIMITS).upright
        kept.append(float(vector(photo.rotate(degrees, Image.Resampling.BICUBIC), bundle) @ vector(photo, bundle)))
    assert np.mean(kept) > 0.8
    assert min(kept) > 0.6


@pytest.mark.parametrize("turn", [None, Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180])
def test_a_small_face_in_a_large_photo(turn: Image.Transpose | None, photo: Image.Image, bundle: Bundle) -> None:
    # 94 pixels of 1600 are 15 of the 256 that are looked at first, and 38 of the 640 that are looked at next.
    large = Image.new("RGB", (1600, 1200), (120, 140, 160))
    large.paste(photo, (900, 500))
    sample = large if turn is None else large.transpose(turn)
    assert vector(sample, bundle) @ vector(photo, bundle) > 0.85


def test_animations_give_their_first_picture(photo: Image.Image, bundle: Bundle) -> None:
    other = Image.new("RGB", photo.size, (9, 99, 9))
    for kind, options in (("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        film = image_file(photo, kind, save_all=True, append_images=[other, other], **options)
        assert vector(film, bundle) @ vector(photo, bundle) > 0.93, kind


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_file_that_is_cut_short(kind: str, photo: Image.Image, bundle: Bundle) -> None:
    whole = image_file(photo, kind)
    for part in (0.02, 0.5, 0.9):
        with pytest.raises(UndecodableSampleError):
            vector(whole[: int(part * len(whole))], bundle)


def test_inverted_and_profiled_colours() -> None:
    # Adobe writes CMYK JPEGs inverted and says so in a marker, as Pillow does too.
    red = Image.new("RGB", (32, 32), (200, 30, 30))
    jpeg = image_file(red.convert("CMYK"), "JPEG", quality=95)
    assert b"Adobe" in jpeg[:64]
    assert np.abs(np.asarray(image.decode(jpeg, LIMITS).upright, int)[8, 8] - [200, 30, 30]).max() <= 8
    # CIE L*a*b* 53.2, 80.1, 67.2 is pure red in sRGB; Pillow stores L as 0-255 and a, b as two's complement.
    stored = Image.fromarray(np.full((4, 4, 3), [136, 80, 67], np.uint8), mode="LAB")
    assert (
        np.abs(np.asarray(image.decode(image_file(stored, "TIFF"), LIMITS).upright, int)[0, 0] - [255, 0, 0]).max()
        <= 12
    )


def test_a_photo_of_a_phone_that_needs_a_plugin() -> None:
    heic = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(64)
    try:
        import pillow_heif  # noqa: F401
    except ImportError:
        with pytest.raises(UndecodableSampleError, match="pip install pillow-heif"):
            image.decode(heic, LIMITS)


@pytest.mark.parametrize(
    "faceless",
    [
        np.zeros((250, 250, 3), np.uint8),
        np.full((250, 250), 255, np.uint8),
        np.random.default_rng(0).integers(0, 256, (250, 250, 3), np.uint8),
        np.zeros((1, 1), np.uint8),
        np.zeros((3, 900), np.uint8),
    ],
)
def test_no_face_is_never_a_match(faceless: np.ndarray, bundle: Bundle) -> None:
    # serengil/deepface #876: verify without a face said True.
    template = uvsdk.enroll(
        "a", next(iter(people().values()))[:4], model=bundle, store=MemoryStore(), capture=ANY
    ).template
    for quality in ("strict", "standard", "off"):
        with pytest.raises(NoFaceError, match="no face"):
            uvsdk.verify(faceless, template, model=bundle, threshold=THRESHOLD, capture=Capture(quality=quality))


ANY = Capture(faces="largest")


def test_one_faceless_photo_does_not_fail_the_others(bundle: Bundle) -> None:
    # timesler/facenet-pytorch #224.
    files = next(iter(people().values()))
    samples = [files[0], np.zeros((200, 200, 3), np.uint8), files[1], b"junk", files[2]]
    enrolled = uvsdk.enroll("a", samples, model=bundle, store=MemoryStore(), capture=ANY)  # type: ignore[arg-type]
    assert [report.accepted for report in enrolled.samples] == [True, False, True, False, True]
    assert "no face" in enrolled.samples[1].reason
    assert "not a picture" in enrolled.samples[3].reason
    with pytest.raises(EnrolmentError, match="no face"):
        uvsdk.enroll("a", samples[:3], model=bundle, store=MemoryStore(), capture=ANY)  # type: ignore[arg-type]


def test_the_result_depends_on_the_input(bundle: Bundle) -> None:
    # speechbrain #2294: the same result whatever the input.
    first, second, third = (files for files in list(people().values())[:3])
    vectors = [vector(files[index], bundle) for files in (first, second, third) for index in (0, 1)]
    scores = np.array(vectors) @ np.array(vectors).T
    same = [scores[0, 1], scores[2, 3], scores[4, 5]]
    others = [scores[i, j] for i in range(6) for j in range(i) if i // 2 != j // 2]
    assert min(same) > max(others)


def test_a_thousand_repetitions_are_one_number(bundle: Bundle) -> None:
    # speechbrain #1026: the same pair scored 1,000 times drifts.
    sample = next(iter(people().values()))[0]
    first = embed(sample, bundle, capture=ANY)
    views = uvsdk.modality.get("face").views(first.features, bundle.manifest.preprocessing)
    for _ in range(1000):
        assert np.array_equal(bundle.embedding(views), first.embedding)
    for _ in range(20):
        again = embed(sample, bundle, capture=ANY)
        assert np.array_equal(again.embedding, first.embedding)
        assert again.quality == first.quality


def test_company_in_the_picture(photo: Image.Image, bundle: Bundle) -> None:
    """Two faces of one size: refused, or the one nearest the middle; never the one that matches."""
    other = image.decode(list(people().values())[1][0], LIMITS).upright
    picture = Image.new("RGB", (600, 250))
    picture.paste(photo, (0, 0))
    picture.paste(other, (230, 0))
    for rule in ("single", "only"):
        with pytest.raises(SeveralFacesError, match="2 faces"):
            embed(picture, bundle, capture=Capture(faces=rule))
    taken = vector(picture, bundle)
    assert taken @ vector(other, bundle) > 0.9
    # A passer-by of half the width is no matter to `single`, and is to `only`.
    background = photo.copy()
    background.paste(other.resize((80, 80), Image.Resampling.LANCZOS), (0, 0))
    embed(background, bundle, capture=Capture(faces="single"))
    with pytest.raises(SeveralFacesError, match="2 faces "):
        embed(background, bundle, capture=Capture(faces="only"))


@pytest.mark.parametrize("ratio", [1.2, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("place", company.PLACES)
def test_a_smaller_face_held_beside_an_impostors_opens_nothing(ratio: float, place: str, bundle: Bundle) -> None:
    impostor, person = (
        embed(files[0], bundle, capture=ANY) for files in (list(people().values())[1], list(people().values())[2])
    )
    assert isinstance(impostor.captured, CapturedFace)
    assert isinstance(person.captured, CapturedFace)
    picture, _ = company.together(impostor.captured, person.captured, ratio, place)
    try:
        taken = embed(picture, bundle).embedding
    except SeveralFacesError:
        return
    assert taken @ person.embedding < 0.3
    assert taken @ impostor.embedding > 0.7


def test_a_calibration_takes_pictures_by_the_same_rule(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = [image.decode(files[0], LIMITS).upright for files in people().values()][:3]
    for place, photo in enumerate(photos):
        picture = Image.new("RGB", (600, 250))
        picture.paste(photo, (0, 0))
        picture.paste(photos[place - 1], (230, 0))
        for name, sample in (("alone", photo), ("together", picture)):
            (tmp_path / "people" / str(place)).mkdir(parents=True, exist_ok=True)
            (tmp_path / "people" / str(place) / f"{name}.png").write_bytes(image_file(sample))
    bundle.save(tmp_path / "face.uvb")
    arguments = ["calibrate", str(tmp_path / "face.uvb"), str(tmp_path / "people"), "-o", str(tmp_path / "out.uvb")]
    assert main([*arguments, "--no-copies"]) == 0
    # Three pictures of one face each: three pairs; those of two faces are refused.
    assert capsys.readouterr().out.startswith("3 impostor trials of 3 people; 3 samples could not be used\n")
    assert main([*arguments, "--no-copies", "--faces", "largest"]) == 0
    # Six pictures, two of each person: fifteen pairs, three of them genuine.
    assert capsys.readouterr().out.startswith("12 impostor trials of 3 people; 0 samples could not be used\n")


def test_a_face_too_small_says_what_to_do(photo: Image.Image, bundle: Bundle) -> None:
    picture = Image.new("RGB", (400, 400), (90, 90, 90))
    picture.paste(photo.resize((60, 60), Image.Resampling.LANCZOS), (170, 170))
    with pytest.raises(NoFaceError, match="pixels wide, need 32; go nearer"):
        embed(picture, bundle)
    tiny = embed(picture, bundle, capture=Capture(quality="off"))
    assert tiny.quality.measured["face_pixels"] < 32
    assert any("go nearer" in words for words in tiny.quality.advice)


def in_a_large_file(photo: Image.Image, width: int) -> bytes:
    """A face of about 0.375 of ``width`` in a JPEG of 3000 x 2600, which is read at half its size."""
    picture = Image.new("RGB", (3000, 2600), (90, 90, 90))
    picture.paste(photo.resize((width, width), Image.Resampling.LANCZOS), (1200, 1100))
    return image_file(picture, "JPEG", quality=95)


def test_sizes_are_those_of_what_was_handed_in(photo: Image.Image, bundle: Bundle) -> None:
    # 94 pixels of 250 are face. Read at half the size, the face of the first file would be 75 pixels wide.
    wide = embed(in_a_large_file(photo, 400), bundle).quality.measured["face_pixels"]
    assert wide == pytest.approx(embed(photo, bundle, capture=ANY).quality.measured["face_pixels"] * 400 / 250, rel=0.1)
    # At half the size this one would have 47, fewer than `strict` asks for; it is looked at again in all its pixels.
    small = in_a_large_file(photo, 250)
    got = embed(small, bundle)
    assert got.quality.measured["face_pixels"] == pytest.approx(94, rel=0.15)
    whole = embed(np.asarray(Image.open(io.BytesIO(small)).convert("RGB")), bundle)
    assert np.array_equal(got.embedding, whole.embedding)
    seen = Detection(np.array([9, 9, 20, 20], np.float32), np.zeros((5, 2), np.float32), 0.9)
    with pytest.raises(NoFaceError, match="the face is 40 pixels wide, need 64"):
        choose([seen], (3000, 2600), 64, reduction=2.0)
    assert choose([seen], (3000, 2600), 40, reduction=2.0) is seen
    with pytest.raises(NoFaceError, match="no face in a picture of 3000 x 2600"):
        embed(image_file(Image.new("RGB", (3000, 2600), (90, 90, 90)), "JPEG"), bundle)
    exif = Image.Exif()
    exif[0x0112] = 6
    with pytest.raises(NoFaceError, match="no face in a picture of 2600 x 3000"):
        embed(image_file(Image.new("RGB", (3000, 2600), (90, 90, 90)), "JPEG", exif=exif), bundle)
    pair = Image.new("RGB", (3200, 2600), (90, 90, 90))
    for left in (200, 1800):
        pair.paste(photo.resize((1200, 1200)), (left, 600))
    with pytest.raises(SeveralFacesError, match=r"\(4\d\d and 4\d\d pixels wide\)"):
        embed(image_file(pair, "JPEG", quality=95), bundle)


def test_a_poor_photo_is_refused_where_the_policy_says_so(photo: Image.Image, bundle: Bundle) -> None:
    dark = Image.fromarray((np.asarray(photo) * 0.12).astype(np.uint8))
    with pytest.raises(LowQualityError, match="brightness") as caught:
        embed(dark, bundle, capture=Capture(quality="strict", faces="largest"))
    assert caught.value.measured["brightness"] < 0.18
    advice = embed(dark, bundle, capture=Capture(quality="off", faces="largest")).quality.advice
    assert any("soft light" in words for words in advice)
