"""The LFW and LibriSpeech examples: the packed files become LFW's own layout, and who speaks what is read right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from examples.reproduce.lfw import run as faces
from examples.reproduce.lfw import unpack
from examples.reproduce.librispeech import run as voices
from tests import real_data
from tests.builders import image_file
from uvsdk.evaluation import lfw, protocols
from uvsdk.modality.face import alignment


def jpeg(shade: int) -> bytes:
    return image_file(Image.new("RGB", (112, 112), (shade, shade, shade)), "JPEG")


def packed() -> unpack.Packed:
    """Two folds of one genuine and one impostor pair each, of four images."""
    names = ("Ann/Ann_0001.jpg", "Ann/Ann_0002.jpg", "Bob_B/Bob_B_0001.jpg", "Bob_B/Bob_B_0012.jpg")
    blobs = [jpeg(20 * index) for index in range(4)]
    return unpack.Packed(
        names,
        np.frombuffer(b"".join(blobs), np.uint8),
        np.cumsum([0, *map(len, blobs)]),
        np.array([[0, 1], [0, 2], [2, 3], [3, 1]]),
        np.array([1, 0, 1, 0]),
        np.array([0, 0, 1, 1]),
    )


def test_packed_pairs_are_written_in_lfws_format(tmp_path: Path) -> None:
    path = unpack.aligned(packed(), tmp_path)
    assert path.read_text().splitlines() == [
        "2\t1", "Ann\t1\t2", "Ann\t1\tBob_B\t1", "Bob_B\t1\t12", "Bob_B\t12\tAnn\t2",
    ]  # fmt: skip
    read = lfw.read(path)
    assert read.files == ("Ann/Ann_0001", "Ann/Ann_0002", "Bob_B/Bob_B_0001", "Bob_B/Bob_B_0012")
    found = [lfw.locate(tmp_path / "aligned", name).read_bytes() for name in read.files]
    assert found == [packed().chip(index) for index in range(4)]
    assert packed().pairs_file([1]).splitlines() == ["1", "Bob_B\t1\t12", "Bob_B\t12\tAnn\t2"]


def test_a_chip_laid_on_another_template_has_its_landmarks_there() -> None:
    source, target = alignment.TEMPLATES["arcface"], alignment.TEMPLATES["dlib"]
    moved = target.fit(source.points, 150)
    landed = source.points @ moved[:, :2].T + moved[:, 2]
    # No similarity maps one mean face onto the other exactly.
    assert np.abs(landed - target.points).max() < 8


def test_the_packed_folds_are_those_of_lfw(tmp_path: Path) -> None:
    real_data.file(unpack.ALIGNED)
    official = real_data.file("protocols/lfw_pairs.txt").read_text().splitlines()
    data = unpack.load(real_data.folder())
    assert data.pairs_file(range(5)).splitlines() == ["5\t300", *official[1:3001]]
    assert data.pairs_file([0]).splitlines() == ["300", *official[1:601]]
    assert len(data.names) == 3811


def test_librispeech_speakers() -> None:
    real_data.file("speech_librispeech")
    recordings, labels = voices.load(real_data.folder())
    assert len(recordings) == 411
    people = voices.people(recordings)
    assert (len(people), sum(len(person.verify) for person in people)) == (261, 411)
    ten = voices.people([recording for recording in recordings if recording.part == voices.TEN_SPEAKERS])
    assert [len(person.verify) for person in ten] == [10] * 10
    assert all(path.is_file() for person in people for path in person.verify)
    assert labels.attributes == ("sex",)
    assert {labels.values[person.name] for person in people} == {("F",), ("M",)}


def test_a_handful_of_lfw_faces_through_the_whole_way(tmp_path: Path) -> None:
    from uvsdk.errors import WeightsNotFoundError
    from uvsdk.training.graphs.sface import sface_bundle

    real_data.file(unpack.ALIGNED)
    real_data.file(unpack.ORIGINALS)
    try:
        bundle = sface_bundle()
    except WeightsNotFoundError as error:
        pytest.skip(f"the face weights are not here: {error}")
    data = unpack.load(real_data.folder())
    unpack.originals(data, tmp_path, source=real_data.folder())
    names = [data.names[index] for index in data.pairs[:3].ravel().tolist()]
    chips = faces.chip_embedder(bundle)
    photos = protocols.bundle_embedder(bundle, capture=faces.Capture(faces="largest"))
    for place, name in enumerate(names):
        chip = tmp_path / f"{place}.jpg"
        chip.write_bytes(data.chip(data.names.index(name)))
        photo = photos(tmp_path / "originals" / name)
        assert not isinstance(photo, np.ndarray)
        # The chips were made of these photographs by another tool, and saved as JPEG.
        assert float(photo.embedding @ chips(chip)) > 0.9
