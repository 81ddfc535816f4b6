"""Networks that are published as one ONNX file: bundles of small files made to their shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="making a bundle needs the train extra")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from uvsdk import modality  # noqa: E402
from uvsdk.cli import main  # noqa: E402
from uvsdk.errors import BundleError, UnknownNameError, WeightsError, WeightsNotFoundError  # noqa: E402
from uvsdk.training.catalogue import CATALOGUE, Network  # noqa: E402
from uvsdk.training.graphs.network import adapted, network_bundle  # noqa: E402

FACES = CATALOGUE["auraface"].network
VOICES = CATALOGUE["wespeaker-resnet34"].network
assert FACES is not None
assert VOICES is not None
RNG = np.random.default_rng(0)
TO_512 = RNG.normal(size=(3, 512)).astype(np.float32)
TO_256 = RNG.normal(size=(80, 256)).astype(np.float32)


def made(
    shape: list[int | str], axes: list[int], weights: np.ndarray, *, old: bool = False, normalises: bool = False
) -> bytes:
    """The mean over some axes, then a matrix. ``old``: the weights stand among the inputs too, as MXNet writes them."""
    first = "feats"
    nodes = []
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array(axes, np.int64), "axes")]
    if normalises:
        constants += [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in GREY.items()]
        nodes += [helper.make_node("Sub", [first, "grey"], ["s"]), helper.make_node("Mul", ["s", "scale"], ["m"])]
    nodes.append(helper.make_node("ReduceMean", ["m" if normalises else first, "axes"], ["mean"], keepdims=0))
    nodes.append(helper.make_node("MatMul", ["mean", "w"], ["embs"]))
    inputs = [helper.make_tensor_value_info(first, TensorProto.FLOAT, shape)]
    if old:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, weights.shape))
    outputs = [helper.make_tensor_value_info("embs", TensorProto.FLOAT, [shape[0], weights.shape[1]])]
    graph = helper.make_graph(nodes, "made", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    body: bytes = model.SerializeToString()
    return body


GREY = {"grey": 127.5, "scale": 1 / 127.5}
SOUND = made(["B", "T", 80], [1], TO_256)


def bundle_of(name: str, body: bytes, folder: Path):  # type: ignore[no-untyped-def]
    file = folder / "made.onnx"
    file.write_bytes(body)
    try:
        return network_bundle(name, weights=file)
    except WeightsNotFoundError as error:
        pytest.skip(f"the detectors cannot be had: {error}")


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("normalises", [False, True])
def test_pixels_come_to_minus_one_to_one_once(old: bool, normalises: bool, tmp_path: Path) -> None:
    # As AuraFace's file: a batch of one, which a bundle frees.
    bundle = bundle_of("auraface", made([1, 3, 112, 112], [2, 3], TO_512, old=old, normalises=normalises), tmp_path)
    chips = np.random.default_rng(1).integers(0, 256, (3, 112, 112, 3)).astype(np.uint8)
    settings = bundle.manifest.preprocessing
    views = np.concatenate([modality.get("face").views(chip, settings) for chip in chips])
    expected = unit(((chips.astype(float) - 127.5) / 127.5).mean(axis=(1, 2)) @ TO_512)
    assert bundle.embed(views) == pytest.approx(expected, abs=1e-4)
    assert (bundle.manifest.backbone, bundle.manifest.dimension) == ("auraface", 512)
    assert "given by path" in bundle.manifest.sources[0]


def test_a_voice_network_hears_frames_of_any_number(tmp_path: Path) -> None:
    bundle = bundle_of("wespeaker-resnet34", SOUND, tmp_path)
    for frames in (100, 300):
        rows = np.random.default_rng(2).normal(size=(2, frames, 80)).astype(np.float32)
        assert bundle.embed(rows) == pytest.approx(unit(rows.mean(axis=1) @ TO_256), abs=1e-4)
    # From a recording to its embedding, by the settings of the catalogue.
    sound = (np.random.default_rng(3).normal(size=(2 * 16_000,)) * 0.1).astype(np.float32)
    from uvsdk.modality.voice import frames as voice

    framing = voice.Framing.read(bundle.manifest.preprocessing)
    assert (framing.taper, framing.amplitude) == ("hamming", 32_768.0)
    rows = voice.scale(voice.fbank.fbank(sound, sample_rate=16_000, window=400, hop=160, mels=80), framing)
    assert rows.mean(axis=0) == pytest.approx(np.zeros(80), abs=1e-4)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"no graph", "not an ONNX graph"),
        (made([1, 3, 160, 160], [2, 3], TO_512), r"expected float32 \(n, 3, 112, 112\)"),
        (made([1, 3, 112, 112], [2, 3], TO_256[:3]), r"output embs .* expected float32 \(n, 512\)"),
    ],
)
def test_another_graph_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        adapted(body, FACES, "made.onnx")


def test_a_graph_of_two_outputs_is_refused() -> None:
    model = onnx.load_from_string(SOUND)
    model.graph.output.append(model.graph.output[0])
    with pytest.raises(WeightsError, match="1 inputs and 2 outputs"):
        adapted(model.SerializeToString(), VOICES, "made.onnx")


def test_export_writes_such_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "made.onnx"
    file.write_bytes(SOUND)
    target = str(tmp_path / "voice.uvb")
    assert main(["export", "wespeaker-resnet34", "--weights", str(file), "-o", target]) == 0
    assert "voice/wespeaker-resnet34" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ge2e", "redimnet2-b3", "nobody"])
def test_what_is_no_network_by_itself(name: str) -> None:
    with pytest.raises(UnknownNameError, match="auraface, wespeaker-resnet34"):
        network_bundle(name)


def test_every_network_of_the_catalogue_says_what_it_takes() -> None:
    for entry in CATALOGUE.values():
        if entry.url is not None:
            assert entry.expects
            assert entry.claim
            # A branch's name may come to mean another file; the checksum would then refuse it.
            assert entry.url.startswith("https://")
        if isinstance(entry.network, Network):
            assert str(entry.network.dimension) in entry.expects


def test_settings_that_make_no_sense() -> None:
    from uvsdk.modality.voice.frames import Framing

    for wrong in ({"taper": "hamming"}, {"amplitude": 2.0}, {"bank": "kaldi", "scale": "log", "amplitude": 0.0}):
        with pytest.raises(BundleError):
            Framing.read(wrong)
