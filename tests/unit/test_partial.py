"""A backbone of which a part is trained: what is split off, frozen, exported, kept and trained on."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from sklearn.datasets import load_digits
from torch import Tensor, nn

from uvsdk import modality
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle, manifest, shipped
from uvsdk.bundle.frozen import CROPS, FrozenPart, FrozenViews, digest, sample_digest
from uvsdk.cli import main
from uvsdk.errors import BundleError, EnrolmentError, SettingsError, UpdateRejectedError, WeightsNotFoundError
from uvsdk.federation import algorithms
from uvsdk.federation.algorithms.fedaws.payload import Task
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records import codec
from uvsdk.simulation import Engine, Frozen, Simulation, Tensors
from uvsdk.simulation.experiment import trunk_of
from uvsdk.training import backbones, weights
from uvsdk.training.backbones import Backbone, Headed, Partial
from uvsdk.training.export import PARITY, export_bundle, parity
from uvsdk.training.loop import FrozenSamples, LocalTrainer, PreparedSamples, train_once
from uvsdk.training.participation import TrainingJob

NAMES = (*backbones.names(), "digits-cnn+32", "digits-cnn+16", "ge2e+64", "faceapi-resnet+200")
# What is left of theta, counted by hand. digits-cnn: 512 * 32 + 32, and with it 32 * 16 * 9 + 32 + 2 * 32. ge2e: 256 *
# 257, and with it a layer of 4 * 256 * (256 + 256 + 2). faceapi-resnet: 256 * 128, and with it 2 * (256 * 256 * 9 +
# 256). tdnn: 384 * 128 + 128, and with it 96 * 192 + 192 + 2 * 192. campplus: 1024 * 192 + 192, and with it 1024 *
# 512 + 512 + 2 * 1024 and sixteen layers of 130 c + 128 + 128 * 96 + 64 * 129 + 32 * 65, c = 512, 544, ..., 992.
SIZES = {
    ("digits-cnn", "head"): 16_416,
    ("digits-cnn", "block"): 16_416 + 4_704,
    ("digits-cnn+16", "head"): 16 * 32,
    ("ge2e", "head"): 65_792,
    ("ge2e", "block"): 65_792 + 526_336,
    ("ge2e+64", "head"): 64 * 256,
    ("ge2e+64", "block"): 64 * 256 + 65_792 + 526_336,
    ("faceapi-resnet", "head"): 32_768,
    ("faceapi-resnet", "block"): 32_768 + 1_180_160,
    ("campplus", "head"): 196_800,
    ("campplus", "block"): 196_800 + 2_455_040,
    ("tdnn", "head"): 49_280,
    ("tdnn", "block"): 49_280 + 19_008,
}


def views(backbone: Backbone, count: int, seed: int = 0) -> Tensor:
    top = 255.0 if backbone.modality == "face" else 1.0
    values = np.random.default_rng(seed).uniform(0, top, (count, *backbone.view_shape))
    return torch.from_numpy(values.astype(np.float32))


@functools.cache
def whole_of(name: str) -> Backbone:
    return backbones.get(name).random(1)


def partial(name: str, part: str, seed: int = 1) -> Partial:
    backbone = backbones.get(name, part).random(seed)
    assert isinstance(backbone, Partial)
    return backbone


@pytest.fixture(scope="module")
def pages() -> dict[str, tuple[Array, ...]]:
    """Eight images of each of six digits."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    return {f"digit {label}": tuple(images[digits.target == label][:8]) for label in range(6)}


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return export_bundle(partial("digits-cnn", "head"))


# The backbone


@pytest.mark.parametrize("part", ["head", "block"])
@pytest.mark.parametrize("name", NAMES)
def test_the_two_halves_are_the_whole(name: str, part: str) -> None:
    whole = whole_of(name)
    before = backbones.flatten(whole)
    of_it = backbones.get(name, part)(whole).eval()
    assert isinstance(of_it, Partial)
    batch = views(whole, 2)
    with torch.no_grad():
        torch.testing.assert_close(of_it(batch), whole(batch), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(of_it.rest(of_it.stem(batch)), of_it(batch), rtol=0, atol=0)
    assert np.array_equal(backbones.flatten(whole), before), "the whole was taken apart"
    assert (of_it.name, of_it.part, of_it.dimension, of_it.modality) == (name, part, whole.dimension, whole.modality)


@pytest.mark.parametrize(("case", "size"), SIZES.items())
def test_theta_holds_the_part_alone(case: tuple[str, str], size: int) -> None:
    backbone = partial(*case)
    assert sum(parameter.size for parameter in backbones.parameters(backbone)) == size
    assert backbones.flatten(backbone).size == size
    assert list(backbone.stem.parameters()) == []
    assert np.array_equal(backbones.flatten(backbone.rest), backbones.flatten(backbone))


@pytest.mark.parametrize("part", ["head", "block"])
@pytest.mark.parametrize("name", ["digits-cnn", "tdnn", "ge2e", "ge2e+64"])
def test_training_moves_the_part_and_nothing_else(name: str, part: str) -> None:
    backbone = partial(name, part)
    stays = {key: value.clone() for key, value in backbone.state_dict().items() if key.startswith("stem.")}
    assert stays
    batch = views(backbone, 2)
    backbone.train()
    before = backbone(batch).detach()
    backbone(batch).square().sum().backward()
    assert all(value.grad is not None for value in backbone.parameters())
    with torch.no_grad():
        for value in backbone.parameters():
            value.sub_(0.1 * value.grad)  # type: ignore[operator]
    assert all(torch.equal(value, stays[key]) for key, value in backbone.state_dict().items() if key in stays)
    assert not torch.equal(backbone(batch), before)


def test_frozen_layers_are_at_inference_always() -> None:
    class Dropped(backbones.get("digits-cnn")):  # type: ignore[misc]
        def split(self, part: str) -> tuple[nn.Module, nn.Module]:
            return nn.Sequential(self.ink, nn.Dropout(0.5)), self.linear

    class Made(Partial):
        inner, name, modality, dimension, part = Dropped, "dropped", "handwriting", 32, "head"
        preprocessing, view_shape = Dropped.preprocessing, Dropped.view_shape

    backbone = Made.random(0).train()
    assert backbone.training
    assert backbone.rest.training
    batch = views(backbone, 4)
    assert torch.equal(backbone(batch), backbone(batch))


def test_a_backbone_that_declares_no_parts_says_so() -> None:
    class Whole(backbones.get("digits-cnn")):  # type: ignore[misc]
        split = Backbone.split

    with pytest.raises(SettingsError, match="as a whole only"):
        Whole.random().split("head")
    with pytest.raises(SettingsError, match="not 'tail'"):
        backbones.get("digits-cnn", "tail")
    assert backbones.get("digits-cnn", "head") is backbones.get("digits-cnn", "head")


@pytest.mark.parametrize("size", [32, 64, 128])
def test_a_head_begins_without_changing_a_cosine(size: int) -> None:
    headed = backbones.get(f"digits-cnn+{size}", "head").load(seed=3)
    plain = backbones.get("digits-cnn").load(seed=3)
    batch = views(plain, 6)
    with torch.no_grad():
        rows, expected = (nn.functional.normalize(module(batch), dim=1) for module in (headed, plain))
    torch.testing.assert_close(rows @ rows.T, expected @ expected.T, rtol=0, atol=1e-5)
    if size == 32:
        torch.testing.assert_close(rows, expected, rtol=0, atol=1e-6)  # the identity


def test_a_narrower_head_is_an_orthogonal_projection() -> None:
    one, again, other = (backbones.get("digits-cnn+16", "head").load(seed=seed) for seed in (1, 1, 2))
    rows = backbones.flatten(one).reshape(16, 32).astype(np.float64)
    np.testing.assert_allclose(rows @ rows.T, np.eye(16), atol=1e-6)
    assert np.array_equal(backbones.flatten(one), backbones.flatten(again))
    assert not np.array_equal(backbones.flatten(one), backbones.flatten(other))


def test_a_head_that_is_trained_with_all_begins_as_it_always_did() -> None:
    whole = backbones.get("digits-cnn+32").load(seed=3)
    assert isinstance(whole, Headed)
    assert not torch.equal(whole.head.weight, torch.eye(32))
    kept = backbones.get("digits-cnn+32", "head")(whole)  # what was trained goes on from where it is
    assert np.array_equal(backbones.flatten(kept), whole.head.weight.detach().numpy().ravel())


# The bundle


@pytest.mark.parametrize("part", ["head", "block"])
@pytest.mark.parametrize("name", ["digits-cnn", "tdnn", "digits-cnn+16"])
def test_what_is_frozen_is_a_constant_of_the_graph(name: str, part: str) -> None:
    backbone = partial(name, part)
    made = export_bundle(backbone)  # parity is checked inside
    assert made.manifest.train == part
    assert made.manifest.parameters == backbones.parameters(backbone)
    assert np.array_equal(made.theta, backbones.flatten(backbone))
    tensors = onnx.load_from_string(made.graphs["embedding"]).graph.initializer
    external = {tensor.name for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL}
    assert external == {parameter.name for parameter in made.manifest.parameters}
    assert any(tensor.name.startswith("stem.") for tensor in tensors)
    again = Bundle.from_bytes(made.to_bytes())
    assert (again.version, again.manifest) == (made.version, made.manifest)


def test_another_theta_equals_another_export_and_leaves_the_frozen_part_alone(bundle: Bundle) -> None:
    backbone = partial("digits-cnn", "head")
    moved = bundle.theta + np.float32(0.25)
    backbones.unflatten(backbone, moved)
    replaced = bundle.with_theta(moved)
    assert replaced.to_bytes() == export_bundle(backbone).to_bytes()
    assert digest(replaced) == digest(bundle)
    assert parity(backbone, replaced, views=views(backbone, 4).numpy()) <= PARITY
    assert digest(export_bundle(partial("digits-cnn", "head", seed=2))) != digest(bundle)
    assert digest(export_bundle(partial("digits-cnn", "block"))) != digest(bundle)
    narrower = export_bundle(partial("digits-cnn", "head"), preprocessing={"size": 9})
    assert digest(narrower) != digest(bundle)


def test_a_model_that_is_trained_as_a_whole_is_described_as_before() -> None:
    assert "train" not in manifest.encode(shipped().manifest)
    assert shipped().manifest.train == "all"
    assert shipped().version == "c7cdaac15aea0434de024d122b7b412466ad07bd1f19e34d0dece3147042ec88"
    assert manifest.decode(manifest.encode(shipped().manifest)).train == "all"


def test_a_manifest_of_an_unknown_part(bundle: Bundle) -> None:
    record = manifest.encode(bundle.manifest)
    assert record["train"] == "head"
    with pytest.raises(BundleError, match="tail"):
        manifest.decode({**record, "train": "tail"})
    with pytest.raises(BundleError, match="text"):
        manifest.decode({**record, "train": 1})


def test_old_configurations_keep_their_digest() -> None:
    config = TrainingConfig("d", "voice", "ge2e", "fedaws")
    assert "train" not in json.loads(config.to_json())
    assert TrainingConfig.from_json(config.to_json()) == config
    head = dataclasses.replace(config, train="head")
    assert json.loads(head.to_json())["train"] == "head"
    assert TrainingConfig.from_json(head.to_json()) == head
    assert head.digest() != config.digest()
    with pytest.raises(SettingsError, match="tail"):
        dataclasses.replace(config, train="tail")


# What the frozen part makes of a sample


@pytest.mark.parametrize("part", ["head", "block"])
@pytest.mark.parametrize("name", ["digits-cnn", "tdnn"])
def test_the_graph_gives_what_the_frozen_layers_give(name: str, part: str) -> None:
    backbone = partial(name, part)
    features = np.random.default_rng(0).random((230, 40) if name == "tdnn" else (8, 8), np.float32)
    made = FrozenPart(export_bundle(backbone))(features)
    source = modality.get(backbone.modality)
    with torch.no_grad():
        expected = backbone.stem(torch.from_numpy(np.array(source.views(features, backbone.preprocessing)))).numpy()
    np.testing.assert_allclose(made.inference, expected, atol=1e-5)
    assert made.crops.shape == (CROPS, *expected.shape[1:])
    assert made.crops.dtype == made.inference.dtype == np.float32


def test_crops_are_drawn_once_for_a_sample_and_a_frozen_part(
    bundle: Bundle, pages: dict[str, tuple[Array, ...]]
) -> None:
    part = FrozenPart(bundle)
    one, again, other = part(pages["digit 0"][0]), part(pages["digit 0"][0].copy()), part(pages["digit 0"][1])
    assert one.crops.tobytes() == again.crops.tobytes()
    assert len(np.unique(one.crops.reshape(CROPS, -1), axis=0)) == CROPS
    assert one.crops.tobytes() != other.crops.tobytes()
    later = FrozenPart(bundle.with_theta(bundle.theta + np.float32(1)))(pages["digit 0"][0])
    assert later.crops.tobytes() == one.crops.tobytes()
    assert part(pages["digit 0"][0], crops=0).crops.shape == (0, 512)
    assert part(pages["digit 0"][0], crops=0).inference.tobytes() == one.inference.tobytes()


def test_a_sample_is_named_by_its_numbers_dtype_and_shape() -> None:
    zeros = np.zeros((2, 8), np.float32)
    names = {sample_digest(item) for item in (zeros, zeros.reshape(8, 2), zeros.view(np.int32), zeros + 1)}
    assert len(names) == 4
    assert sample_digest(zeros) == sample_digest(np.zeros((8, 2), np.float32).T.copy())


def test_a_model_without_a_frozen_part(pages: dict[str, tuple[Array, ...]], bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="--train head"):
        FrozenPart(shipped())
    with pytest.raises(BundleError, match="features"):
        FrozenPart(bundle)(np.zeros((9, 9), np.float32))
    for inference, crops in (((0, 4), (2, 4)), ((1, 4), (2, 5))):
        with pytest.raises(BundleError, match="not of one sample"):
            FrozenViews(np.zeros(inference, np.float32), np.zeros(crops, np.float32))


# Training on it


def config(**values: object) -> TrainingConfig:
    base = {"backbone": "digits-cnn", "train": "head", "local_steps": 6, "batch_size": 8, "learning_rate": 0.05}
    return TrainingConfig("d", "handwriting", algorithm="fedaws", **(base | values))  # type: ignore[arg-type]


def job(bundle: Bundle, pages: tuple[Array, ...], settings: TrainingConfig) -> TrainingJob:
    row = np.random.default_rng(0).standard_normal(bundle.manifest.dimension)
    task = codec.pack(Task((row / np.linalg.norm(row)).astype(np.float32)))
    part = FrozenPart(bundle)
    frozen = tuple(part(page) for page in pages)
    return TrainingJob(settings, bundle.manifest, 1, bundle.theta, pages, task, {}, frozen=frozen)


class Recomputed:
    """The fixed views of samples, put through the whole backbone in every step: training without what is kept."""

    def __init__(self, samples: FrozenSamples, views: list[Float32], crops: list[Float32]) -> None:
        self.classes, self._count = samples.classes, len(samples)
        self._views, self._crops = views, crops

    def __len__(self) -> int:
        return self._count

    def views(self, batch: list[int], rng: np.random.Generator, /) -> Tensor:
        crops = [self._crops[index] for index in batch]
        return torch.from_numpy(np.stack([rows[rng.integers(len(rows))] for rows in crops]))

    def embed(self, forward, indices, /) -> Tensor:  # type: ignore[no-untyped-def]
        chosen = range(self._count) if indices is None else indices
        with torch.no_grad():
            rows = [nn.functional.normalize(forward(torch.from_numpy(self._views[index])), dim=1) for index in chosen]
            return torch.cat([nn.functional.normalize(row.mean(dim=0, keepdim=True), dim=1) for row in rows])


@pytest.mark.parametrize(("name", "part"), [("digits-cnn", "head"), ("digits-cnn", "block"), ("digits-cnn+16", "head")])
def test_training_on_what_is_kept_is_training_on_the_same_views(
    name: str, part: str, pages: dict[str, tuple[Array, ...]]
) -> None:
    """To 2e-6 of every parameter: onnxruntime and torch add in another order."""
    backbone = partial(name, part)
    made, settings = export_bundle(backbone), config(backbone=name, train=part)
    of = job(made, pages["digit 2"], settings)
    kept = LocalTrainer().train(of, np.random.default_rng(5))
    source, frozen = modality.get("handwriting"), FrozenPart(made)
    inputs = []
    for page in of.features:  # the same crops, drawn by the same generator
        seed = bytes.fromhex(digest_of_seed(frozen.digest, page))
        rng = np.random.default_rng(int.from_bytes(seed[:16], "little"))
        inputs.append(np.stack([source.crop(page, made.manifest.preprocessing, rng) for _ in range(CROPS)]))
    plain = [np.array(source.views(page, made.manifest.preprocessing)) for page in of.features]
    samples = Recomputed(FrozenSamples(of.frozen or ()), plain, inputs)
    half = algorithms.client("fedaws")
    chosen = algorithms.settings("fedaws", {})
    again = train_once(backbone, half, chosen, samples, of, np.random.default_rng(5), np.random.default_rng(0).bytes)  # type: ignore[arg-type]
    assert float(np.abs(kept.delta).max()) > 1e-3
    np.testing.assert_allclose(kept.delta, again.delta, rtol=0, atol=2e-6)
    assert kept.loss == pytest.approx(again.loss, abs=1e-5)


def digest_of_seed(part: str, page: Array) -> str:
    """The documented seed of a sample's crops: SHA-256 of both digests."""
    return hashlib.sha256(f"{part} {sample_digest(page)}".encode()).hexdigest()


def test_the_loss_falls_and_the_update_is_small(bundle: Bundle, pages: dict[str, tuple[Array, ...]]) -> None:
    first = LocalTrainer().train(job(bundle, pages["digit 2"], config(local_steps=1)), np.random.default_rng(0))
    last = LocalTrainer().train(job(bundle, pages["digit 2"], config(local_steps=30)), np.random.default_rng(0))
    assert last.loss < first.loss / 2
    assert last.delta.shape == (16_416,)


def test_one_trainer_serves_models_of_other_parts(bundle: Bundle, pages: dict[str, tuple[Array, ...]]) -> None:
    trainer, block = LocalTrainer(), export_bundle(partial("digits-cnn", "block"))
    of_head = job(bundle, pages["digit 2"], config())
    of_block = job(block, pages["digit 2"], config(train="block"))
    alone = [LocalTrainer().train(of, np.random.default_rng(0)).delta for of in (of_head, of_block)]
    mixed = [trainer.train(of, np.random.default_rng(0)).delta for of in (of_head, of_block, of_head)]
    assert mixed[0].tobytes() == mixed[2].tobytes() == alone[0].tobytes()
    assert mixed[1].tobytes() == alone[1].tobytes()


def test_jobs_that_do_not_fit(bundle: Bundle, pages: dict[str, tuple[Array, ...]]) -> None:
    of = job(bundle, pages["digit 2"], config())
    for wrong in ("all", "block"):
        with pytest.raises(BundleError, match=f"trains '{wrong}'"):
            LocalTrainer().train(dataclasses.replace(of, config=config(train=wrong)), np.random.default_rng(0))
    with pytest.raises(UpdateRejectedError, match="FrozenPart"):
        dataclasses.replace(of, frozen=None)
    with pytest.raises(EnrolmentError, match="of 7"):
        dataclasses.replace(of, frozen=(of.frozen or ())[:7])
    whole = shipped()
    with pytest.raises(UpdateRejectedError, match="nowhere else"):
        TrainingJob(config(train="all"), whole.manifest, 1, whole.theta, of.features, of.task, {}, frozen=of.frozen)


def test_a_trainer_needs_no_weights_of_frozen_layers(
    bundle: Bundle, pages: dict[str, tuple[Array, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is frozen may be anybody's: it is the graph's, and a device needs no checkpoint of it."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("weights were looked for")

    monkeypatch.setattr("uvsdk.training.weights.find", never)
    for name in ("ge2e", "faceapi-resnet"):
        module = backbones.get(name, "head").random()
        assert isinstance(module, Partial)
        described = dataclasses.replace(bundle.manifest, backbone=name, parameters=backbones.parameters(module))
        LocalTrainer()._prepared(described)


# Simulations


@pytest.mark.parametrize("batching", ["loop", "stacked", "large"])
def test_a_simulation_trains_as_devices_do(batching: str, bundle: Bundle, pages: dict[str, tuple[Array, ...]]) -> None:
    settings = config(local_steps=1, clipping="off", rounds=2, seed=3, min_clients=3)
    backbone = partial("digits-cnn", "head")
    run = Simulation(settings, backbone.rest, Frozen.of(pages, bundle), Engine(batching))
    run.run()
    assert run.theta.shape == bundle.theta.shape
    expected = Simulation(settings, partial("digits-cnn", "head").rest, Frozen.of(pages, bundle), Engine("loop"))
    expected.run()
    np.testing.assert_allclose(run.theta, expected.theta, rtol=0, atol=2e-6)
    assert float(np.abs(run.theta - bundle.theta).max()) > 1e-4


def test_tensors_through_frozen_layers(pages: dict[str, tuple[Array, ...]]) -> None:
    backbone = partial("digits-cnn", "head")
    plain = Tensors({user: torch.from_numpy(np.stack(rows))[:, None] for user, rows in pages.items()})
    settings = config(local_steps=3, rounds=3, seed=3, min_clients=3)
    whole = Simulation(settings, backbone, plain)
    with torch.no_grad():
        after = {user: backbone.stem(rows) for user, rows in plain.features.items()}
    part = Simulation(settings, partial("digits-cnn", "head").rest, Tensors(after))
    for run in (whole, part):
        run.run()
    np.testing.assert_allclose(part.theta, whole.theta, rtol=0, atol=2e-6)
    with pytest.raises(EnrolmentError, match="no sample"):
        Frozen({"a": ()})


# The commands


def test_export_and_simulate_take_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start, output = tmp_path / "head.uvb", tmp_path / "run"
    assert main(["export", "digits-cnn", "--train", "head", "--seed", "4", "-o", str(start)]) == 0
    assert "an update has 66 kB" in capsys.readouterr().out
    common = ["simulate", "--algorithm", "fedaws", "--data", "digits", "--rounds", "2", "--held-out", "0.9"]
    assert main([*common, "--train", "head", "--backbone", str(start), "--output", str(output)]) == 0
    assert "its head, 16,416 parameters" in capsys.readouterr().out
    trained = Bundle.open(output / "model.uvb")
    assert (trained.manifest.train, digest(trained)) == ("head", digest(Bundle.open(start)))
    assert not np.array_equal(trained.theta, Bundle.open(start).theta)
    assert main(["simulate", "--resume", "--rounds", "3", "--output", str(output)]) == 0
    assert json.loads((output / "config.json").read_text())["config"]["train"] == "head"
    capsys.readouterr()
    assert main([*common, "--backbone", str(start)]) == 1
    assert "say --train head" in capsys.readouterr().err


def test_a_head_over_a_model_that_was_trained_as_a_whole(tmp_path: Path) -> None:
    shipped().save(tmp_path / "all.uvb")
    module, made = trunk_of(str(tmp_path / "all.uvb"), train="head")
    assert made.manifest.train == "head"
    assert np.array_equal(made.theta, backbones.flatten(module))
    rows = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    np.testing.assert_allclose(made.embed(rows), shipped().embed(rows), atol=1e-5)


def test_a_fixed_model_has_no_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        weights.find("sface")
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")
    assert main(["export", "sface", "--train", "head", "-o", str(tmp_path / "x.uvb")]) == 1
    assert "fixed model" in capsys.readouterr().err


# Augmented views


@functools.cache
def voice() -> Bundle:
    return export_bundle(backbones.get("tdnn", "head").random())


def spoken(seed: int) -> Array:
    shape = (300, int(voice().manifest.preprocessing.get("mels", 40)))
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_augmented_crops_are_others_and_the_same_again_and_inference_is_not_augmented() -> None:
    asked = {"noise": 1.0}
    plain, part = FrozenPart(voice()), FrozenPart(voice(), augmentation=asked)
    assert plain.digest == digest(voice()) == digest(voice(), {})
    assert part.digest == digest(voice(), asked) != digest(voice(), {"noise": 0.5})
    assert part.digest != plain.digest
    once, again, clean = part(spoken(0)), FrozenPart(voice(), augmentation=asked)(spoken(0)), plain(spoken(0))
    assert np.array_equal(once.crops, again.crops)
    assert np.array_equal(once.inference, clean.inference)
    assert once.crops.shape == clean.crops.shape
    assert not np.isclose(once.crops, clean.crops).all(axis=1).any()


def test_the_frozen_part_refuses_what_its_modality_does_not_have() -> None:
    with pytest.raises(SettingsError, match="unexpected keyword"):
        FrozenPart(voice(), augmentation={"jpeg": 1.0})


def test_training_views_are_augmented_from_the_rounds_stream_and_embeddings_are_not() -> None:
    manifest_ = dataclasses.replace(voice().manifest, train="all")
    features = [spoken(1), spoken(2)]
    plain = PreparedSamples(features, manifest_)
    asked = PreparedSamples(features, manifest_, augmentation={"noise": 1.0})
    once, again = (asked.views([0, 1], np.random.default_rng(3)) for _ in range(2))
    assert torch.equal(once, again)
    assert not torch.equal(once, plain.views([0, 1], np.random.default_rng(3)))

    def forward(rows: Tensor) -> Tensor:
        return rows.mean(dim=1)

    assert torch.equal(asked.embed(forward, None), plain.embed(forward, None))


def test_a_simulation_refuses_a_population_that_is_augmented_otherwise() -> None:
    settings = TrainingConfig(
        "lab", "voice", "tdnn", "fedaws", train="head", rounds=1, seed=0, augmentation={"noise": 0.5}
    )
    features = {name: [spoken(place)] for place, name in enumerate("abc")}
    backbone = backbones.get("tdnn", "head").random()
    assert isinstance(backbone, Partial)
    with pytest.raises(SettingsError, match=r"augmentation=config\.augmentation"):
        Simulation(settings, backbone.rest, Frozen.of(features, voice()))
    augmented = Frozen.of(features, voice(), augmentation=settings.augmentation)
    assert Simulation(settings, backbone.rest, augmented).run()[0].committed
