"""CAM++ below its head in 8 bits: near the float network, one sample as many, deterministic, only where measured."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from tests.benchmarks.voice import measure_ranges
from tests.real_data import file
from uvsdk.arrays import Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.errors import BundleError, WeightsNotFoundError
from uvsdk.modality.voice import frames
from uvsdk.modality.voice.speakers import difference_of_spans
from uvsdk.system.execution import onnxruntime
from uvsdk.training import backbones
from uvsdk.training.backbones import Backbone, Partial
from uvsdk.training.export import export_bundle
from uvsdk.training.graphs.campplus import graph_in_8_bits, integer, ranges

LENGTHS = (1, 2, 57, 200, 331)


def views(count: int, length: int) -> Float32:
    """Rows that change slowly over time and mels, as those of speech do."""
    rows = np.random.default_rng(length).normal(size=(count, length + 8, 88))
    smooth = np.stack([rows[:, at : at + length, at : at + 80] for at in range(9)]).sum(axis=0)
    return (smooth - smooth.mean(axis=1, keepdims=True)).astype(np.float32)


@lru_cache
def _whole() -> Backbone:
    whole = backbones.get("campplus").random(3)
    with torch.no_grad():
        # As trained weights do, and unlike those that a fresh network starts from: some of every layer lies above zero.
        whole.dense.weight.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr, operator]
    return whole


@lru_cache
def _measured() -> measure_ranges.Measures:
    return measure_ranges.measure(_whole(), [view for length in (120, 300) for view in views(4, length)])


@lru_cache
def random() -> tuple[Backbone, bytes]:
    """A random network and its graph with ranges measured on these views."""
    frozen = backbones.get("campplus", "head")(_whole())  # type: ignore[call-arg]
    assert isinstance(frozen, Partial)
    reach = _measured().ranges()
    first, second = (graph_in_8_bits(frozen, reach).SerializeToString() for _ in range(2))
    assert first == second
    return frozen.eval(), first


@lru_cache
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(random()[1])


@pytest.mark.parametrize("length", LENGTHS)
def test_what_the_head_is_laid_over_stays_near_the_float_network(length: int) -> None:
    frozen, _ = random()
    assert isinstance(frozen, Partial)
    x = views(2, length)
    with torch.no_grad():
        expected = frozen.stem(torch.from_numpy(x)).numpy()
    actual = session().run(["frozen"], {"views": x})[0]
    assert actual.shape == expected.shape == (2, integer.STATISTICS)
    cosine = (expected * actual).sum(axis=1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(actual, axis=1)
    assert cosine.min() > 0.98


@pytest.mark.parametrize("length", LENGTHS)
def test_no_sample_depends_on_another(length: int) -> None:
    x = views(3, length)
    together = session().run(["frozen"], {"views": x})[0]
    alone = [session().run(["frozen"], {"views": x[at : at + 1]})[0][0] for at in range(3)]
    assert together == pytest.approx(np.stack(alone), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
def test_spans_are_the_head_of_half_seconds(length: int) -> None:
    """By the rows over time that the graph itself makes: their mean and deviation, then the head as it was given."""
    frozen, graph = random()
    assert isinstance(frozen, Partial)
    model = onnx.load_from_string(graph)
    model.graph.output.append(onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None))
    x = views(2, length)
    rows, spans, z = onnxruntime.InferenceSession(model.SerializeToString()).run(["out", "spans", "z"], {"views": x})
    count = max(1, round(rows.shape[1] / 25))
    assert spans.shape == (2, count, 192)
    assert not z.any(), "the head that is trained is held as zeros"
    weight, bias = (value.detach().numpy() for value in frozen.rest.parameters())
    of = np.arange(rows.shape[1]) * count // rows.shape[1]
    for span in range(count):
        part = rows[:, of == span]
        deviation = part.std(axis=1, ddof=1) if part.shape[1] > 1 else np.zeros_like(part[:, 0])
        expected = np.concatenate([part.mean(axis=1), deviation], axis=1) @ weight.T + bias
        assert spans[:, span] == pytest.approx(expected, abs=2e-3 * float(np.abs(expected).max()))


def test_weights_fit_sixteen_bits_in_pairs() -> None:
    """Products of uint8 with two neighbours are added in 16 bits by processors without VNNI: 255 * 128 fits."""
    model = onnx.load_from_string(random()[1])
    seen = 0
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.INT8 or not tensor.name.endswith("_weight"):
            continue
        weight = numpy_helper.to_array(tensor).astype(np.int64)
        pairs = np.swapaxes(weight, 0, 1) if weight.ndim == 2 else weight
        first, second = pairs[:, 0::2], pairs[:, 1::2]
        if pairs.shape[1] > 1:
            assert np.where(first * second > 0, np.abs(first + second), 0).max() <= 128
        seen += 1
    # The front end and the first over time: 13; two of each layer; three transitions.
    assert seen == 13 + 2 * 52 + 3


def test_other_weights_are_not_measured() -> None:
    backbone = backbones.get("campplus", "head").random(1)
    assert export_bundle(backbone).manifest.preprocessing["frozen"] == "float32"
    with pytest.raises(BundleError, match="weights on record"):
        export_bundle(backbone, preprocessing={"frozen": "int8"})


def test_the_published_weights_in_8_bits() -> None:
    """Near the float network on spoken digits, in a bundle of at most 9 MB that trains its head."""
    try:
        backbone = backbones.get("campplus", "head").load()
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")
    speech = measure_ranges.digits(file("fsdd_8k.npz"))
    exact, quantised = (export_bundle(backbone, preprocessing={"frozen": kind}) for kind in ("float32", "int8"))
    assert len(quantised.to_bytes()) < 9e6
    assert Bundle.from_bytes(quantised.to_bytes()).version == quantised.version
    assert np.array_equal(exact.theta, quantised.theta)
    clips = [frames.prepare((np.concatenate(speaker[:8]), 16_000), quantised).features for speaker in speech]
    cosine = [exact.embedding(each) @ quantised.embedding(each) for each in (_views(clip, exact) for clip in clips)]
    assert min(cosine) > 0.985
    for clip in clips:
        one, other = (bundle.embed_with_spans(_views(clip, bundle))[1] for bundle in (exact, quantised))
        assert one is not None
        assert other is not None
        assert difference_of_spans(one) == pytest.approx(difference_of_spans(other), abs=0.1)


def test_a_head_behind_the_last_layer_hears_the_integer_graph() -> None:
    """z = W e + b of the direction e of ``frozen``, on which devices train and which is near the float network's."""
    trunk = backbones.get("campplus+centred", "head")(backbones.get("campplus+centred")(_whole()))  # type: ignore[call-arg]
    assert isinstance(trunk, Partial)
    model = graph_in_8_bits(trunk.eval(), _measured().ranges())
    weight, bias = (
        np.random.default_rng(0).normal(size=(192, 193)).astype(np.float32)[:, :192],
        np.full(192, 0.1, np.float32),
    )
    for tensor in model.graph.initializer:
        for name, value in (("rest.weight", weight), ("rest.bias", bias)):
            if tensor.name == name:
                tensor.CopyFrom(numpy_helper.from_array(value, name))
    x = views(2, 200)
    z, frozen, own = onnxruntime.InferenceSession(model.SerializeToString()).run(["z", "frozen", "spans"], {"views": x})
    direction = frozen / np.linalg.norm(frozen, axis=1, keepdims=True)
    assert z == pytest.approx(direction @ weight.T + bias, rel=1e-4, abs=1e-4)
    with torch.no_grad():
        expected = trunk.stem(torch.from_numpy(x)).numpy()
    assert frozen.shape == expected.shape == (2, 192)
    cosine = (expected * frozen).sum(axis=1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(frozen, axis=1)
    assert cosine.min() > 0.98
    plain = session().run(["spans"], {"views": x})[0]
    assert own == pytest.approx(plain, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", ["campplus+centred", "campplus+64"])
def test_published_weights_with_a_head_of_its_own_in_8_bits(name: str) -> None:
    """In a bundle of at most 9 MB; the head is trained, and what it hears is what ``campplus`` gives."""
    try:
        backbone, plain = (backbones.get(of, "head").load() for of in (name, "campplus"))
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")
    quantised, own = export_bundle(backbone), export_bundle(plain)
    assert quantised.manifest.preprocessing["frozen"] == "int8"
    assert len(quantised.to_bytes()) < 9e6
    x = views(1, 200)
    heard = quantised.session().run(["frozen"], {"views": x})[0]
    assert heard == pytest.approx(own.session().run(["z"], {"views": x})[0], rel=5e-3, abs=5e-3)
    with torch.no_grad():
        expected = backbone.rest(torch.from_numpy(heard)).numpy()
    assert quantised.session().run(["z"], {"views": x})[0] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def _views(features: Float32, bundle: Bundle) -> Float32:
    return frames.views(features, bundle.manifest.preprocessing)


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (300, (1, 300)), (301, (2, 151)), (600, (2, 300)), (700, (3, 234))]
)
def test_even_windows_cover_every_frame(count: int, shape: tuple[int, int]) -> None:
    """Of 301 frames two windows of 151, which share one; of 700 three of 234, 2 frames more than there are."""
    settings = {"mels": 80, "view_frames": 300, "view_hop_frames": 300, "windows": "even"}
    rows = np.repeat(np.arange(count, dtype=np.float32)[:, None], 80, axis=1)
    made = frames.views(rows, settings)
    assert made.shape == (*shape, 80)
    assert set(made[:, :, 0].ravel().astype(int).tolist()) == set(range(count))


def test_samples_of_different_lengths_are_embedded_alone() -> None:
    bundle = export_bundle(backbones.get("campplus", "head").random(1))
    samples = [views(1, 60), views(1, 90)]
    assert np.array_equal(bundle.embeddings(samples), np.stack([bundle.embedding(sample) for sample in samples]))


def test_frames_reach_the_first_layer_to_a_sixteenth_of_a_step() -> None:
    """Two codes of a value: the nearest step, and what it leaves in steps 16 times finer, of which half one is left."""
    model = onnx.load_from_string(random()[1])
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name in ("view_codes", "view_rest_codes"):
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    x = views(1, 120)
    codes, rest = onnxruntime.InferenceSession(model.SerializeToString()).run(
        ["view_codes", "view_rest_codes"], {"views": x}
    )
    step, finer = float(constants["view_step"]), float(constants["view_step_finer"])
    assert step == pytest.approx(16 * finer)
    heard = step * (codes.astype(float) - 128) + finer * (rest.astype(float) - 128)
    assert np.abs(heard - x).max() <= 0.5001 * finer


def test_a_known_mean_of_what_enters_takes_off_what_rounding_adds() -> None:
    """One weight of 0.3 steps of its row is stored as 0; inputs of 100 codes on average would lose 30 steps."""
    weight = np.array([[127.0, 0.3]])
    graph = integer._Graph({}, ranges.ranges_of(*_nothing(), weights="", source=""))
    source = integer._Codes("x", np.ones(2), np.zeros(2))
    made = integer._Codes("y", np.ones(1), np.zeros(1))
    graph._product("y", source, weight, np.zeros(1), made, mean=np.array([0.0, 100.0]))
    assert graph._constants["y_weight"].tolist() == [[127], [0]]
    assert graph._constants["y_bias"].tolist() == [30]


def _nothing() -> tuple[Float64, Float64]:
    channels = sum(ranges.measured().values())
    return np.zeros(channels), np.zeros(channels)


def test_means_bring_the_statistics_nearer() -> None:
    frozen, _ = random()
    assert isinstance(frozen, Partial)
    measures = _measured()
    x = [view for length in (120, 300) for view in views(4, length)]
    exact = measure_ranges.exact(frozen, x)
    without = replace(measures.ranges(), mean={})
    errors = [measure_ranges.statistics(frozen, of, x) - exact for of in (without, measures.ranges())]
    assert np.abs(errors[1].mean(axis=0)).mean() < 0.8 * np.abs(errors[0].mean(axis=0)).mean()


def test_what_is_left_on_average_is_taken_off() -> None:
    frozen, _ = random()
    assert isinstance(frozen, Partial)
    x, left = [views(1, 57)[0]], np.linspace(-1, 1, ranges.STATISTICS).astype(np.float32)
    plain, moved = (measure_ranges.statistics(frozen, _measured().ranges(left=of), x) for of in (None, left))
    assert plain - moved == pytest.approx(left[None], abs=1e-5)
