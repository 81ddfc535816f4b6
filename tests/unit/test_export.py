"""From torch to a bundle: the same numbers, the same graph whatever theta is, and no torch needed to run it."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from tests import real_data
from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import BundleError, SettingsError, WeightsError, WeightsNotFoundError
from uvsdk.system.execution import onnxruntime
from uvsdk.training import backbones, weights
from uvsdk.training.backbones import Backbone
from uvsdk.training.export import PARITY, export_bundle, parity
from uvsdk.training.graphs.sface import Precision, sface_bundle


def exported(backbone: Backbone, *, exact: bool = False) -> Bundle:
    """``exact``: in float where the default is 8 bits, which differ from torch by more than rounding."""
    floats = {"recurrent": "float32"} if exact and "recurrent" in backbone.preprocessing else None
    try:
        return export_bundle(backbone, preprocessing=floats)
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")


def pretrained(name: str) -> Backbone:
    try:
        return backbones.get(name).load()
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")


def sface(precision: Precision = "int8") -> Bundle:
    try:
        return sface_bundle(precision=precision)
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")


def faces(count: int, size: int) -> Float32:
    """Aligned LFW faces as float32 (n, 3, size, size), RGB 0-255."""
    with np.load(real_data.file("lfw_folds1-5_aligned112.npz")) as archive:
        blobs, offsets = archive["jpeg"], archive["off"]
    images = []
    for index in range(count):
        jpeg = blobs[offsets[index] : offsets[index + 1]].tobytes()
        image = Image.open(io.BytesIO(jpeg)).convert("RGB").resize((size, size))
        images.append(np.asarray(image, np.float32).transpose(2, 0, 1))
    return np.stack(images)


def recordings(count: int) -> list[Path]:
    """The first recordings of LibriSpeech test-other."""
    folder = real_data.file("speech_librispeech")
    with (folder / "manifest.csv").open(newline="") as file:
        return [folder / row["path"] for row in csv.DictReader(file) if row["split"].startswith("eval")][:count]


@pytest.mark.parametrize("name", ["digits-cnn", "tdnn", "digits-cnn+255"])
def test_bundle_holds_what_the_backbone_is(name: str) -> None:
    backbone = backbones.get(name).random(1)
    bundle = exported(backbone)
    assert bundle.manifest.backbone == name
    assert bundle.manifest.modality == backbone.modality
    assert bundle.manifest.dimension == backbone.dimension
    assert dict(bundle.manifest.preprocessing) == dict(backbone.preprocessing)
    assert bundle.manifest.parameters == backbones.parameters(backbone)
    assert np.array_equal(bundle.theta, backbones.flatten(backbone))
    assert set(bundle.graphs) == {"embedding", *modality.get(backbone.modality).graphs}


@pytest.mark.parametrize("name", ["digits-cnn", "tdnn", "ge2e", "ge2e+255"])
def test_a_new_theta_equals_a_new_export(name: str) -> None:
    one, two = backbones.get(name).random(1), backbones.get(name).random(2)
    replaced = exported(one).with_theta(backbones.flatten(two))
    again = exported(two)
    assert replaced.to_bytes() == again.to_bytes()
    views = np.random.default_rng(0).random((4, *two.view_shape), dtype=np.float32)
    assert parity(two, exported(one, exact=True).with_theta(backbones.flatten(two)), views=views) <= PARITY


def test_theta_is_not_in_the_graph() -> None:
    backbone = pretrained("ge2e")
    assert len(exported(backbone).graphs["embedding"]) < 100_000


def test_equal_tensors_stay_apart() -> None:
    # Fresh GroupNorm layers hold equal ones and zeros, which the exporter would merge into one tensor.
    backbone = backbones.get("tdnn").random()
    theta = backbones.flatten(backbone)
    bundle = exported(backbone)
    names = [parameter.name for parameter in bundle.manifest.parameters]
    start = sum(parameter.size for parameter in bundle.manifest.parameters[: names.index("frames.4.weight")])
    theta[start : start + 96] = 3.0
    backbones.unflatten(backbone, theta)
    views = np.random.default_rng(0).random((1, 100, 40), dtype=np.float32)
    assert parity(backbone, bundle.with_theta(theta), views=views) <= PARITY


def test_export_leaves_the_backbone_as_it_was() -> None:
    backbone = backbones.get("digits-cnn").random()
    backbone.train()
    before = backbones.flatten(backbone)
    exported(backbone)
    assert backbone.training
    assert np.array_equal(before, backbones.flatten(backbone))


def test_a_graph_that_differs_is_not_let_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvsdk.training.export.parity", lambda *_, views: 2e-4)
    with pytest.raises(BundleError, match="differs from torch"):
        export_bundle(backbones.get("digits-cnn").random())


def test_preprocessing_can_be_changed_but_not_invented() -> None:
    backbone = backbones.get("digits-cnn").random()
    with pytest.raises(SettingsError, match="colour"):
        export_bundle(backbone, preprocessing={"colour": 3})
    changed = export_bundle(backbone, preprocessing={"size": 9})
    assert changed.manifest.preprocessing["size"] == 9
    assert changed.version != export_bundle(backbone).version


@pytest.mark.data
def test_parity_of_tdnn_on_real_frames() -> None:
    with np.load(real_data.file("korean_logmel40_200x100.npz")) as archive:
        key = next(name for name in archive.files if archive[name].ndim >= 3)
        frames = archive[key].reshape(-1, 200, 40)[:8].astype(np.float32)
    backbone = backbones.get("tdnn").random(1)
    assert parity(backbone, exported(backbone), views=(frames - frames.mean(axis=1, keepdims=True)) / 10) <= PARITY


@pytest.mark.data
def test_parity_of_ge2e_on_real_speech() -> None:
    paths = recordings(3)
    backbone = pretrained("ge2e")
    bundle = exported(backbone, exact=True)
    voice = modality.get("voice")
    for path in paths:
        features = voice.prepare(path, bundle).features
        assert parity(backbone, bundle, views=voice.views(features, bundle.manifest.preprocessing)) <= PARITY


@pytest.mark.data
def test_parity_of_faceapi_resnet_on_real_faces() -> None:
    views = faces(4, 150)
    backbone = pretrained("faceapi-resnet")
    assert parity(backbone, exported(backbone), views=views) <= PARITY


def test_inception_keeps_batchnorm_trainable_and_its_statistics_fixed() -> None:
    backbone = backbones.get("inception-resnet-v1").random(1)
    bundle = exported(backbone)  # parity is checked inside
    names = {parameter.name for parameter in bundle.manifest.parameters}
    assert "trunk.last_bn.weight" in names
    held = {tensor.name for tensor in onnx.load_from_string(bundle.graphs["embedding"]).graph.initializer}
    assert names <= held
    assert not any("running" in name for name in names)


@pytest.mark.data
def test_sface_equals_the_file_it_was_made_from() -> None:
    views = faces(4, 112)
    bundle = sface("float32")
    assert bundle.theta.size == 0
    assert bundle.manifest.parameters == ()
    model = onnx.load(weights.find("sface"))
    kept = [value for value in model.graph.input if value.name == "data"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    original = onnxruntime.InferenceSession(model.SerializeToString(), options)
    expected = np.concatenate([original.run(["fc1"], {"data": view[None]})[0] for view in views])
    actual = bundle.session().run(["z"], {"views": views})[0]
    assert np.abs(actual - expected).max() <= PARITY


def test_sface_of_another_file(tmp_path: Path) -> None:
    path = tmp_path / "sface.onnx"
    path.write_bytes(b"no graph")
    with pytest.raises(WeightsError, match="not an ONNX graph"):
        sface_bundle(weights=path)
    graph = export_bundle(backbones.get("digits-cnn").random()).graphs["embedding"]
    path.write_bytes(graph)
    with pytest.raises(WeightsError, match="in other files"):
        sface_bundle(weights=path)
    model = onnx.load_from_string(graph)
    del model.graph.initializer[:]
    path.write_bytes(model.SerializeToString())
    with pytest.raises(WeightsError, match="not SFace's"):
        sface_bundle(weights=path)


def test_detector_takes_images_of_any_size() -> None:
    bundle = exported(backbones.get("faceapi-resnet").random())
    detector = bundle.session("detector")
    outputs = detector.run(["cls_8"], {"input": np.zeros((1, 3, 96, 160), np.float32)})
    assert outputs[0].shape == (1, 96 * 160 // 64, 1)


def test_a_bundle_runs_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    backbone = backbones.get("digits-cnn").random(1)
    exported(backbone).save(tmp_path / "toy.uvb")
    script = f"""
import sys
sys.modules["torch"] = None
import numpy as np
from uvsdk.bundle import Bundle
bundle = Bundle.open({str(tmp_path / "toy.uvb")!r})
views = np.full((2, 1, 8, 8), 0.5, np.float32)
views[1, 0, :4] = 0.0
print(bundle.embed(views).tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    views = torch.full((2, 1, 8, 8), 0.5)
    views[1, 0, :4] = 0.0
    with torch.no_grad():
        expected = torch.nn.functional.normalize(backbone(views)).numpy()
    assert np.array(json.loads(done.stdout)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("missing", "module"), [("torch", "uvsdk.training.backbones"), ("onnx", "uvsdk.training.graphs.sface")]
)
def test_what_the_train_extra_brings_is_named_where_it_is_missing(missing: str, module: str) -> None:
    script = f"""
import importlib, sys
sys.modules[{missing!r}] = None
from uvsdk.errors import TrainingUnavailableError
try:
    importlib.import_module({module!r})
except TrainingUnavailableError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert missing in done.stdout
    assert "uvsdk[train]" in done.stdout
