"""The same picture again: known by its file, its size or its packing, and never confused with a new one."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from tests import modality_graphs, real_data
from uvsdk import modality
from uvsdk.arrays import UInt8
from uvsdk.errors import SettingsError
from uvsdk.modality import Capture
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.face.detector import Detection
from uvsdk.presentation import FaceRepetition, Recollection
from uvsdk.presentation.fingerprint import face_print, likeness

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
ANY = np.zeros(1, np.float32)


def chip(seed: int, size: int = 112) -> UInt8:
    """A smooth picture; another seed is another one."""
    rough = np.random.default_rng(seed).integers(0, 256, (14, 14, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(rough).resize((size, size), Image.Resampling.BICUBIC))


def captured(pixels: UInt8) -> CapturedFace:
    face = Detection(np.array([0, 0, 112, 112], np.float32), np.zeros((5, 2), np.float32), 0.9)
    return CapturedFace(Image.fromarray(pixels), face, pixels)


def jpeg(pixels: UInt8, quality: int) -> UInt8:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file).convert("RGB"))


@pytest.mark.parametrize("copy", ["same", "jpeg", "brighter", "darker"])
def test_a_copy_is_known_again(copy: str) -> None:
    pixels = chip(1)
    changed = {
        "same": pixels,
        "jpeg": jpeg(pixels, 90),
        "brighter": np.clip(pixels.astype(int) + 20, 0, 255).astype(np.uint8),
        "darker": (pixels * 0.8).astype(np.uint8),
    }[copy]
    recollection = Recollection(KEY).remember(captured(chip(2))).remember(captured(pixels))
    answer = FaceRepetition(recollection).assess(captured(changed), ANY)
    assert not answer.bona_fide
    assert answer.reasons == ("this picture was seen before: take a new one",)


def test_new_pictures_pass() -> None:
    recollection = Recollection(KEY)
    for seed in range(30):
        answer = FaceRepetition(recollection).assess(captured(chip(seed)), ANY)
        assert answer.bona_fide
        assert answer.reasons == ()
        recollection = recollection.remember(captured(chip(seed)))


def test_noise_of_the_camera_is_no_new_picture_and_another_key_is() -> None:
    pixels, rng = chip(3), np.random.default_rng(0)
    noisy = np.clip(pixels + rng.normal(size=pixels.shape) * 2, 0, 255).astype(np.uint8)
    assert likeness(face_print(pixels, KEY), face_print(noisy, KEY)) > 0.93
    # Unrelated directions: 256 bits agree by chance, +-1/16 for each standard deviation.
    assert abs(likeness(face_print(pixels, KEY), face_print(pixels, OTHER_KEY))) < 0.35


@pytest.mark.parametrize("value", [0, 128, 255])
def test_an_even_picture(value: int) -> None:
    answer = FaceRepetition(Recollection(KEY)).assess(captured(np.full((112, 112, 3), value, np.uint8)), ANY)
    assert answer.bona_fide
    assert answer.score == 2.0  # nothing was seen before: the least likeness there is


def test_faces_are_kept_encrypted_and_bounded() -> None:
    recollection, key = Recollection(KEY, capacity=3), bytes(32)
    for seed in range(5):
        recollection = recollection.remember(captured(chip(seed)))
    opened = Recollection.from_bytes(recollection.to_bytes(key), key)
    assert len(opened.faces) == 3
    assert FaceRepetition(opened).assess(captured(chip(1)), ANY).bona_fide
    assert not FaceRepetition(opened).assess(captured(chip(4)), ANY).bona_fide
    # 32 bytes a face, and nothing that a picture could be made from.
    assert len(opened.to_bytes(key)) < 3 * 32 + 700


def test_what_is_refused() -> None:
    with pytest.raises(SettingsError, match="between 0 and 1"):
        FaceRepetition(Recollection(KEY), likeness=1.0)

    class Voice:
        modality = "voice"

    with pytest.raises(SettingsError, match="looks at a captured face"):
        FaceRepetition(Recollection(KEY)).assess(Voice(), ANY)


def test_real_photos() -> None:
    """Twenty LFW photos: each is new, and the same one again is not."""
    graphs = modality_graphs.loaded("face", {})

    def taken(photo: Image.Image) -> CapturedFace:
        capture = Capture(quality="off", faces="largest")
        found = modality.get("face").prepare(photo, graphs, capture=capture).captured
        assert isinstance(found, CapturedFace)
        return found

    with tarfile.open(real_data.file("lfw_fold1_originals.tar")) as archive:
        names = sorted(name for name in archive.getnames() if name.endswith(".jpg"))[:20]
        files = [archive.extractfile(name) for name in names]
        photos = [Image.open(io.BytesIO(file.read())).convert("RGB") for file in files if file is not None]
    recollection = Recollection(KEY)
    for photo in photos:
        face = taken(photo)
        assert FaceRepetition(recollection).assess(face, ANY).bona_fide
        recollection = recollection.remember(face)
    known = FaceRepetition(recollection)
    assert not any(known.assess(taken(photo), ANY).bona_fide for photo in photos)
