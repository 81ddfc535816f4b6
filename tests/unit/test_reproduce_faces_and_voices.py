"""The LFW and LibriSpeech examples: the packed files become LFW's own layout, and who speaks what is read right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from examples.reproduce.lfw import company, table, unpack
from examples.reproduce.lfw import run as faces
from examples.reproduce.lfw.worse import WORSE
from examples.reproduce.librispeech import run as voices
from tests import real_data
from tests.builders import image_file
from uvsdk.evaluation import lfw, protocols
from uvsdk.modality.face import alignment
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.face.detector import Detection


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


def test_masks_and_spectacles_are_drawn_on_the_face_by_hand() -> None:
    # Eyes at (80, 100) and (120, 100): 40 pixels apart, the middle at (100, 100).
    landmarks = np.array([[80, 100], [120, 100], [100, 122], [85, 145], [115, 145]], np.float32)
    face = Detection(np.array([60, 60, 80, 110], np.float32), landmarks, 0.93)
    photo = Image.new("RGB", (200, 220), (90, 90, 90))
    drawn = {name: np.asarray(change(photo, face, np.random.default_rng(0))) for name, change in WORSE.items()}
    plain = np.asarray(photo)
    for name in ("surgical mask, plain", "surgical mask, pleated"):
        # The mask begins 0.28 eye distances below the eyes, at 111, and ends 1.85 below, at 174.
        rows, columns = np.nonzero((drawn[name] != plain).any(axis=2))
        assert (rows.min(), rows.max()) == (pytest.approx(111, abs=1), pytest.approx(174, abs=1))
        assert columns.min() >= 100 - 1.1 * 40 - 1
        assert drawn[name][145, 100].tolist() != [90, 90, 90]
    # Dark lenses hide the eyes, clear ones show them.
    assert drawn["sunglasses"][100, 80].tolist() == [18, 18, 20]
    assert drawn["spectacles"][100, 80].tolist() == [90, 90, 90]
    assert (drawn["spectacles"] != plain).any()
    assert drawn["as they are"].tolist() == plain.tolist()
    # 255 (90 / 255)^2 = 31.8, and noise about it of 6 levels.
    low = drawn["low light (gamma 2, noise of 6 levels)"].astype(float)
    assert low.mean() == pytest.approx(31.8, abs=0.5)
    assert low.std() == pytest.approx(6.0, abs=0.3)
    # A face of 80 pixels comes to 32: 200 x 220 pixels come to 80 x 88.
    assert drawn["face of 32 pixels"].shape == (88, 80, 3)


def test_two_people_are_set_where_they_are_said_to_be() -> None:
    landmarks = np.zeros((5, 2), np.float32)
    captured = [
        CapturedFace(
            Image.new("RGB", (200, 200), colour),
            Detection(np.array([60, 60, 80, 80], np.float32), landmarks, 0.9),
            np.zeros((112, 112, 3), np.uint8),
        )
        for colour in ((200, 0, 0), (0, 0, 200))
    ]
    for place in company.PLACES:
        picture, (large, small) = company.together(*captured, 2.0, place)
        pixels = np.asarray(picture)
        # Pieces of 160 and 80 pixels touch, so centres are 120 apart; the middle of 550 is 275.
        assert small[0] - large[0] == pytest.approx(120)
        assert (large[0], small[0]) == {
            "side by side": (215.0, 335.0),
            "smaller in the middle": (155.0, 275.0),
            "larger in the middle": (275.0, 395.0),
        }[place]
        assert pixels[int(large[1]), int(large[0])].tolist() == [200, 0, 0]
        assert pixels[int(small[1]), int(small[0])].tolist() == [0, 0, 200]


def test_the_tables_of_faces_are_those_of_the_csv_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in table.HERE.glob("*"):
        if path.suffix in (".md", ".csv"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(table, "HERE", tmp_path)
    table.main()
    assert (tmp_path / "README.md").read_text() == (Path(faces.__file__).parent / "README.md").read_text()
