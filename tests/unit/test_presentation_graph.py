"""A classifier in a bundle: beside the model, checked like every member, and no part of the model version."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from tests.unit.conftest import MakeBundle
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.manifest import Manifest
from uvsdk.bundle.presentation_graph import PresentationGraph
from uvsdk.cli import main
from uvsdk.errors import BundleError, SettingsError
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.face.detector import Detection
from uvsdk.presentation import FaceClassifier
from uvsdk.presentation.antispoof import crop
from uvsdk.scoring import Calibration

ANY = np.zeros(1, np.float32)


def brightness(columns: int = 1) -> bytes:
    """``y`` is the mean of ``x``, as often as there are columns."""
    shape: list[str | int | None] = ["n", 16, 16, 3]
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Unsqueeze", ["mean", "one"], ["column"]),
        helper.make_node("Concat", ["column"] * columns, ["y"], axis=1),
    ]
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(
        nodes,
        "brightness",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])],
        [one],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


GRAPH = PresentationGraph("face-brightness", brightness(), 16, 1.0, 0, 0.5, "made by hand")


@pytest.fixture
def face_bundle(identity_bundle: MakeBundle) -> Bundle:
    numbers = identity_bundle()
    return Bundle(Manifest("face", "none", 3, {}, (), ()), np.empty(0, np.float32), numbers.graphs)


def captured(photo: Image.Image, box: tuple[float, float, float, float]) -> CapturedFace:
    face = Detection(np.array(box, np.float32), np.zeros((5, 2), np.float32), 0.9)
    return CapturedFace(photo, face, np.zeros((112, 112, 3), np.uint8))


def halves(left: int = 255, right: int = 0) -> Image.Image:
    pixels = np.zeros((100, 100, 3), np.uint8)
    pixels[:, :50], pixels[:, 50:] = left, right
    return Image.fromarray(pixels)


def test_it_changes_neither_version_nor_templates(face_bundle: Bundle) -> None:
    scores = np.linspace(-0.5, 0.5, 11, dtype=np.float32)
    calibration = Calibration.from_scores(scores, model_version=face_bundle.version, source="by hand")
    calibrated = face_bundle.with_calibration(calibration)
    with_graph = calibrated.with_presentation(GRAPH)
    assert with_graph.version == face_bundle.version
    assert with_graph.calibration is not None
    assert with_graph.with_calibration(None).presentation == GRAPH
    assert with_graph.with_theta(np.empty(0, np.float32)).presentation == GRAPH
    assert with_graph.with_presentation(None).to_bytes() == calibrated.to_bytes()
    assert with_graph.with_presentation(replace(GRAPH, threshold=0.7)).version == face_bundle.version


def test_it_travels_in_the_file(face_bundle: Bundle) -> None:
    data = face_bundle.with_presentation(GRAPH).to_bytes()
    opened = Bundle.from_bytes(data)
    assert opened.presentation == GRAPH
    assert opened.to_bytes() == data
    assert Bundle.from_bytes(face_bundle.to_bytes()).presentation is None
    assert opened.session("presentation").get_inputs()[0].name == "x"
    with pytest.raises(BundleError, match="no graph 'presentation'"):
        face_bundle.session("presentation")


def altered(data: bytes, change: Callable[[dict[str, object], dict[str, bytes]], None]) -> bytes:
    with zipfile.ZipFile(BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    record = json.loads(members.pop("manifest.json"))
    change(record, members)
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("manifest.json", json.dumps(record))
        for name, body in members.items():
            archive.writestr(name, body)
    return file.getvalue()


def test_it_is_checked_like_every_member(face_bundle: Bundle) -> None:
    data = face_bundle.with_presentation(GRAPH).to_bytes()

    def another_graph(record: dict[str, object], members: dict[str, bytes]) -> None:
        members["presentation.onnx"] = members["presentation.onnx"][:-1] + b"\0"

    def no_description(record: dict[str, object], members: dict[str, bytes]) -> None:
        del record["presentation"]

    def no_graph(record: dict[str, object], members: dict[str, bytes]) -> None:
        del members["presentation.onnx"]

    for change in (another_graph, no_description, no_graph):
        with pytest.raises(BundleError):
            Bundle.from_bytes(altered(data, change))
    for key, value in (
        ("size", "16"),
        ("size", True),
        ("threshold", None),
        ("detector", 3),
        ("output", -1),
        ("size", 0),
    ):

        def wrong(record: dict[str, object], members: dict[str, bytes], key: str = key, value: object = value) -> None:
            described = record["presentation"]
            assert isinstance(described, dict)
            described[key] = value

        with pytest.raises(BundleError):
            Bundle.from_bytes(altered(data, wrong))


def test_only_faces_can_be_looked_at(identity_bundle: MakeBundle) -> None:
    with pytest.raises(BundleError, match="looks at faces, this model takes numbers"):
        identity_bundle().with_presentation(GRAPH)


@pytest.mark.parametrize(
    "change",
    [{"detector": ""}, {"size": 8}, {"enlargement": 0.0}, {"output": -1}, {"threshold": float("nan")}],
)
def test_impossible_settings_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BundleError):
        replace(GRAPH, **change)


def test_the_score_is_the_graphs(face_bundle: Bundle) -> None:
    detector = FaceClassifier.of(face_bundle.with_presentation(GRAPH))
    assert (detector.name, detector.modality) == ("face-brightness", "face")
    # A white half of 50 columns: a box over columns 5 to 45 sees nothing else.
    white = detector.assess(captured(halves(), (5, 30, 40, 40)), ANY)
    assert (white.score, white.threshold, white.bona_fide, white.reasons) == (1.0, 0.5, True, ())
    black = detector.assess(captured(halves(), (55, 30, 40, 40)), ANY)
    assert (black.score, black.bona_fide) == (0.0, False)
    assert "picture or a screen" in black.reasons[0]


def test_a_threshold_is_reached_from_below(face_bundle: Bundle) -> None:
    detector = FaceClassifier.of(face_bundle.with_presentation(replace(GRAPH, threshold=1.0)))
    assert detector.assess(captured(halves(), (5, 30, 40, 40)), ANY).bona_fide


def test_a_bundle_without_one_says_what_to_do(face_bundle: Bundle) -> None:
    with pytest.raises(SettingsError, match="uvsdk presentation add"):
        FaceClassifier.of(face_bundle)


def test_a_graph_that_does_not_fit(face_bundle: Bundle) -> None:
    changes: tuple[dict[str, Any], ...] = ({"size": 32}, {"output": 1})
    for change in changes:
        detector = FaceClassifier.of(face_bundle.with_presentation(replace(GRAPH, **change)))
        with pytest.raises(BundleError, match="does not take"):
            detector.assess(captured(halves(), (5, 30, 40, 40)), ANY)
    with pytest.raises(BundleError, match="cannot load"):
        FaceClassifier.of(face_bundle.with_presentation(replace(GRAPH, graph=b"no graph")))
    with pytest.raises(SettingsError, match="looks at a captured face"):
        FaceClassifier.of(face_bundle.with_presentation(GRAPH)).assess(Voice(), ANY)


class Voice:
    modality = "voice"


def test_the_crop_is_square_about_the_box() -> None:
    # The box's middle lies on the edge between white and black, so half of any crop is white.
    for enlargement in (1.0, 1.5):
        pixels = crop(captured(halves(), (30 - 0.5, 30, 40, 30)), enlargement=enlargement, size=16)
        assert pixels.shape == (16, 16, 3)
        assert float(pixels.mean()) == pytest.approx(0.5, abs=0.01)
        assert (pixels[:, 0] == 1).all()
        assert (pixels[:, -1] == 0).all()


@pytest.mark.parametrize("box", [(-30, -30, 60, 60), (90, 90, 40, 40), (0, 0, 0.5, 0.5), (-500, -500, 1500, 1500)])
def test_beyond_the_picture_it_is_black(box: tuple[float, float, float, float]) -> None:
    pixels: Float32 = crop(captured(halves(255, 255), box), enlargement=1.0, size=16)
    assert np.isfinite(pixels).all()
    assert 0.0 <= float(pixels.min()) <= float(pixels.max()) <= 1.0
    if box[0] == -30:
        # A quarter of the square of 60 lies in the picture, to half a pixel.
        assert float(pixels.mean()) == pytest.approx(0.25, abs=0.02)


def test_the_command_takes_it_out_again(
    face_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "face.uvb"
    face_bundle.with_presentation(GRAPH).save(path)
    assert main(["presentation", "remove", str(path)]) == 0
    assert "no presentation attack detector" in capsys.readouterr().out
    assert Bundle.open(path).presentation is None
    assert main(["presentation", "add", "--detector", "magic", str(path)]) == 1
    assert "no presentation attack detector 'magic'" in capsys.readouterr().err
