"""Trunks: shapes, theta's order, independence of the batch's other examples, and gradients everywhere."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from uvsdk.errors import UnknownNameError, UpdateRejectedError, WeightsError, WeightsNotFoundError
from uvsdk.training import backbones
from uvsdk.training.backbones import Backbone, Headed, faceapi_resnet

NAMES = backbones.names()
PRETRAINED = ("campplus", "ge2e", "faceapi-resnet", "inception-resnet-v1")


def views(backbone: Backbone | type[Backbone], count: int, seed: int = 0) -> torch.Tensor:
    top = 255.0 if backbone.modality == "face" else 1.0
    values = np.random.default_rng(seed).uniform(0, top, (count, *backbone.view_shape))
    return torch.from_numpy(values.astype(np.float32))


def without_dropout(backbone: Backbone) -> Backbone:
    backbone.train()
    for module in backbone.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()
    return backbone


def pretrained(name: str) -> Backbone:
    try:
        return backbones.get(name).load()
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")


def test_registry_names_are_the_modules() -> None:
    assert NAMES == ("campplus", "digits-cnn", "faceapi-resnet", "ge2e", "inception-resnet-v1", "tdnn")
    for name in NAMES:
        assert backbones.get(name).name == name
    with pytest.raises(UnknownNameError, match="ge2e"):
        backbones.get("resnet")


def test_any_backbone_takes_a_head() -> None:
    kind = backbones.get("digits-cnn+255")
    plain = backbones.get("digits-cnn")
    assert (kind.name, kind.dimension, kind.view_shape) == ("digits-cnn+255", 255, plain.view_shape)
    assert backbones.get("digits-cnn+255") is kind
    assert backbones.get("ge2e+127").modality == "voice"
    backbone = kind.random(3)
    trained = backbones.parameters(backbone)
    # 21,312 of the trunk and a matrix of 255 rows without bias
    assert sum(parameter.size for parameter in trained) == 21_312 + 255 * 32
    assert (trained[-1].name, trained[-1].shape) == ("head.weight", (255, 32))
    assert isinstance(backbone, Headed)
    batch = views(backbone, 2)
    with torch.no_grad():
        expected = backbone.trunk(batch) @ backbone.head.weight.T
        torch.testing.assert_close(backbone(batch), expected)
    for wrong in ("digits-cnn+", "digits-cnn+0", "digits-cnn+1+2", "+255", "resnet+255", "digits-cnn+-1"):
        with pytest.raises(UnknownNameError, match=r"ge2e\+255"):
            backbones.get(wrong)


def test_a_head_over_loaded_weights(tmp_path: Path) -> None:
    trained = backbones.get("tdnn").random(5)
    torch.save(trained.state_dict(), tmp_path / "mine.pt")
    one, two, other = (backbones.get("tdnn+127").load(weights=tmp_path / "mine.pt", seed=seed) for seed in (1, 1, 2))
    size = backbones.flatten(trained).size
    assert np.array_equal(backbones.flatten(one)[:size], backbones.flatten(trained))
    assert np.array_equal(backbones.flatten(one), backbones.flatten(two))
    assert not np.array_equal(backbones.flatten(one)[size:], backbones.flatten(other)[size:])
    assert one.sources == ("mine.pt, given by path", "head: random initialisation")


@pytest.mark.parametrize("name", NAMES)
def test_forward_shape_and_finite(name: str) -> None:
    backbone = backbones.get(name).random()
    with torch.no_grad():
        z = backbone(views(backbone, 2))
    assert z.shape == (2, backbone.dimension)
    assert z.dtype == torch.float32
    assert bool(torch.isfinite(z).all())


@pytest.mark.parametrize(
    ("name", "count"),
    # ge2e: 4 * 256 * (40 + 256 + 2) + 2 * 4 * 256 * (256 + 256 + 2) + 256 * 257. digits-cnn: 16*9+16 + 32 +
    # 32*16*9+32 + 64 + 512*32+32.
    [("ge2e", 1_423_616), ("digits-cnn", 21_312)],
)
def test_parameter_count_by_hand(name: str, count: int) -> None:
    assert sum(parameter.size for parameter in backbones.parameters(backbones.get(name).random())) == count


def test_tdnn_is_small() -> None:
    assert 100_000 <= backbones.flatten(backbones.get("tdnn").random()).size <= 1_000_000


@pytest.mark.parametrize("name", NAMES)
def test_flatten_and_unflatten_are_inverse(name: str) -> None:
    one, two = backbones.get(name).random(1), backbones.get(name).random(2)
    theta = backbones.flatten(one)
    assert theta.dtype == np.float32
    assert theta.size == sum(parameter.size for parameter in backbones.parameters(one))
    assert not np.array_equal(theta, backbones.flatten(two))
    theta.flags.writeable = False
    backbones.unflatten(two, theta)
    assert np.array_equal(theta, backbones.flatten(two))
    with torch.no_grad():
        assert torch.equal(one(views(one, 1)), two(views(two, 1)))


def test_unflatten_refuses_another_size() -> None:
    backbone = backbones.get("digits-cnn").random()
    with pytest.raises(UpdateRejectedError, match="21312"):
        backbones.unflatten(backbone, np.zeros(21_311, np.float32))


def test_canonical_order_is_that_of_named_parameters() -> None:
    backbone = backbones.get("digits-cnn").random()
    first, second = backbones.parameters(backbone)[:2]
    assert (first.name, first.shape) == ("ink.0.weight", (16, 1, 3, 3))
    assert (second.name, second.shape) == ("ink.0.bias", (16,))
    theta = backbones.flatten(backbone)
    assert theta[:144].reshape(first.shape) == pytest.approx(backbone.state_dict()["ink.0.weight"].numpy())


def test_a_seed_decides_the_initial_values_and_leaves_torch_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    one, two, other = (backbones.flatten(backbones.get("tdnn").load(seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(torch.rand(1), expected)
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_an_embedding_does_not_depend_on_the_rest_of_the_batch(name: str) -> None:
    # In training mode, where BatchNorm would fail this.
    backbone = without_dropout(backbones.get(name).random())
    batch = views(backbone, 3)
    with torch.no_grad():
        together, alone = backbone(batch)[1], backbone(batch[1:2])[0]
    assert together.numpy() == pytest.approx(alone.numpy(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_training_leaves_buffers_alone(name: str) -> None:
    backbone = without_dropout(backbones.get(name).random())
    before = {key: value.clone() for key, value in backbone.named_buffers()}
    backbone(views(backbone, 2))
    assert all(torch.equal(value, before[key]) for key, value in backbone.named_buffers())


@pytest.mark.parametrize("name", NAMES)
def test_gradient_reaches_every_parameter(name: str) -> None:
    backbone = without_dropout(backbones.get(name).random())
    direction = torch.from_numpy(np.random.default_rng(1).normal(size=backbone.dimension).astype(np.float32))
    (backbone(views(backbone, 2)) @ direction).sum().backward()
    for key, value in backbone.named_parameters():
        assert value.grad is not None, key
        assert bool(torch.isfinite(value.grad).all()), key
        assert float(value.grad.abs().max()) > 0, key


@pytest.mark.parametrize("name", ["campplus", "ge2e", "faceapi-resnet"])
def test_pretrained_weights_load(name: str) -> None:
    backbone = pretrained(name)
    assert not backbone.training
    assert "sha256" in backbone.sources[0]
    assert np.isfinite(backbones.flatten(backbone)).all()


@pytest.mark.parametrize("name", PRETRAINED)
def test_missing_weights_are_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UVSDK_CACHE", str(tmp_path))
    monkeypatch.setattr("uvsdk.training.weights._installed", lambda package: [])
    with pytest.raises(WeightsNotFoundError, match="uvsdk models fetch"):
        backbones.get(name).load()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "faceapi-resnet"])
def test_a_file_that_is_no_checkpoint(name: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(b"no checkpoint")
    with pytest.raises(WeightsError, match="not a checkpoint"):
        backbones.get(name).load(weights=path)


def test_a_checkpoint_with_code_in_it_is_refused(tmp_path: Path) -> None:
    class Intruder:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"model_state": Intruder()}, tmp_path / "weights.pt")
    with pytest.raises(WeightsError, match="not a checkpoint"):
        backbones.get("ge2e").load(weights=tmp_path / "weights.pt")
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_the_users_own(tmp_path: Path) -> None:
    trained = backbones.get("tdnn").random(5)
    torch.save(trained.state_dict(), tmp_path / "mine.pt")
    loaded = backbones.get("tdnn").load(weights=tmp_path / "mine.pt")
    assert np.array_equal(backbones.flatten(loaded), backbones.flatten(trained))
    state = trained.state_dict()
    state["linear.bias"] = torch.full((128,), float("nan"))
    torch.save(state, tmp_path / "mine.pt")
    with pytest.raises(WeightsError, match="not finite"):
        backbones.get("tdnn").load(weights=tmp_path / "mine.pt")
    del state["linear.bias"]
    torch.save(state, tmp_path / "mine.pt")
    with pytest.raises(WeightsError, match=r"linear\.bias"):
        backbones.get("tdnn").load(weights=tmp_path / "mine.pt")


def quantised(tmp_path: Path) -> tuple[Path, Path]:
    """One convolution of 1 x 1 with two outputs, its bias and its affine layer, as a TensorFlow.js weights file."""
    packing = {"dtype": "uint8", "scale": 0.5, "min": -1.0}
    listing = [
        {"name": "a/conv/filters", "shape": [1, 1, 1, 2], "dtype": "float32", "quantization": packing},
        {"name": "a/conv/bias", "shape": [2], "dtype": "float32"},
        {"name": "a/scale/weights", "shape": [2], "dtype": "float32"},
        {"name": "a/scale/biases", "shape": [2], "dtype": "float32"},
    ]
    body = np.array([4, 10], np.uint8).tobytes() + np.array([1, 2, 10, 100, 7, 8], "<f4").tobytes()
    (tmp_path / "w.bin").write_bytes(body)
    (tmp_path / "w.json").write_text(json.dumps([{"weights": listing}]))
    return tmp_path / "w.bin", tmp_path / "w.json"


def test_dequantise_and_fold_by_hand(tmp_path: Path) -> None:
    path, listing = quantised(tmp_path)
    tensors = faceapi_resnet._dequantise(path, listing)
    # 4 * 0.5 - 1 = 1, 10 * 0.5 - 1 = 4
    assert tensors["a/conv/filters"].ravel().tolist() == [1.0, 4.0]
    folded = dict(faceapi_resnet._fold(tensors, path))
    # (w F) = 10 * 1, 100 * 4; (w b + c) = 10 * 1 + 7, 100 * 2 + 8
    assert folded["a.weight"].shape == (2, 1, 1, 1)
    assert folded["a.weight"].ravel().tolist() == [10.0, 400.0]
    assert folded["a.bias"].tolist() == [17.0, 208.0]


@pytest.mark.parametrize("change", [-1, 1])
def test_a_quantised_file_of_another_length(change: int, tmp_path: Path) -> None:
    path, listing = quantised(tmp_path)
    body = path.read_bytes()
    path.write_bytes(body[:change] if change < 0 else body + b"\0")
    with pytest.raises(WeightsError, match=r"fetch both again|do not fit"):
        faceapi_resnet._dequantise(path, listing)
