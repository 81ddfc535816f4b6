"""SFace in integers: the identities it rests on by hand, a small network of the same make, and the real one."""

from __future__ import annotations

import importlib.resources
import io
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests import real_data
from uvsdk.errors import SettingsError, WeightsError, WeightsNotFoundError

onnx = pytest.importorskip("onnx", reason="making a bundle needs the train extra")

from uvsdk.bundle import Bundle  # noqa: E402
from uvsdk.system.execution import onnxruntime  # noqa: E402
from uvsdk.training import weights  # noqa: E402
from uvsdk.training.graphs.rounding import in_blocks, rounded  # noqa: E402
from uvsdk.training.graphs.sface import Precision, float_graph, integer, sface_bundle  # noqa: E402
from uvsdk.training.graphs.sface.layers import Layer, Projection, fold  # noqa: E402


@lru_cache
def bundle(precision: Precision) -> Bundle:
    try:
        return sface_bundle(precision=precision)
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")


def faces(step: int) -> np.ndarray:
    """Every ``step``-th aligned LFW face, float32 (n, 3, 112, 112)."""
    with np.load(real_data.file("lfw_folds1-5_aligned112.npz")) as archive:
        blobs, ends = archive["jpeg"], archive["off"]
    chips = [
        np.asarray(Image.open(io.BytesIO(blobs[ends[index] : ends[index + 1]].tobytes())).convert("RGB"))
        for index in range(0, len(ends) - 1, step)
    ]
    return np.stack(chips).transpose(0, 3, 1, 2).astype(np.float32)


def prelu(x: np.ndarray, slope: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, slope * x)


@given(seed=st.integers(0, 9999), twice=st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_channels_codes_hold_its_prelu(seed: int, twice: bool) -> None:
    """decode(max(code(x), code(a x))) is the PReLU to half a step, for slopes below 0, within (0, 1) and above 1."""
    rng = np.random.default_rng(seed)
    slope = rng.uniform(-1, 2, 8)
    low, high = -rng.uniform(0.1, 5, 8), rng.uniform(0.1, 5, 8)
    layer = Layer("x", np.zeros((8, 1, 3, 3)), np.zeros(8), slope, 1, 8)
    channels = integer._channels(layer, low, high, np.ones(8), twice)
    x = rng.uniform(low, high, (200, 8))
    turned = np.where(channels.turn < 0, -x, x) * channels.gain
    codes = [np.clip(np.round(value) + channels.zero, 0, 255) for value in (turned, channels.slope * turned)]
    if not twice:  # a x is made of the codes of x
        codes[1] = np.clip(np.round((codes[0] - channels.zero) * channels.slope) + channels.zero, 0, 255)
    got = (np.maximum(*codes) - channels.zero) / channels.gain * channels.turn
    # One rounding of x, and one of a x where that is made of the rounded x (|a| <= 1 after turning).
    steps = 0.5 if twice else 1.0
    # A slope below -1 is not turned: what it stretches, it stretches a code's error by.
    assert np.abs(got - prelu(x, slope)).max() <= (steps + 1e-9) * np.max(np.abs(channels.turn) / channels.gain)
    assert channels.slope.max() <= 1


def test_weights_fit_sixteen_bits_in_pairs() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(16, 10, 1, 1))
    stored, scale = rounded(weight, pairs=True)
    first, second = stored[:, 0::2], stored[:, 1::2]
    together = np.where(first * second > 0, np.abs(first + second), 0)
    assert together.max() <= 128
    assert np.abs(stored).max() <= 127
    assert np.abs(stored * scale[:, None, None, None] - weight).max() <= scale.max() / 2 + 1e-12
    alone, _ = rounded(weight, pairs=False)
    assert np.abs(alone).max() == 127


def test_rows_in_blocks_are_the_same_convolution() -> None:
    rng = np.random.default_rng(1)
    weight, picture = rng.normal(size=(2, 3, 3, 3)), rng.normal(size=(3, 6, 8))

    def convolved(kernel: np.ndarray, x: np.ndarray) -> np.ndarray:
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
        rows, columns = x.shape[1:]
        patches = [padded[:, dy : dy + rows, dx : dx + columns] for dy in range(3) for dx in range(3)]
        return np.einsum("ock,kcyx->oyx", kernel.reshape(len(kernel), -1, 9), np.stack(patches))

    # Two blocks of four pixels a row: (6, 2, 4 * 3) and back from (6, 2, 4 * 2).
    blocks = picture.transpose(1, 2, 0).reshape(6, 2, 12).transpose(2, 0, 1)
    made = convolved(in_blocks(weight), blocks).transpose(1, 2, 0).reshape(6, 8, 2).transpose(2, 0, 1)
    assert made == pytest.approx(convolved(weight, picture))


def test_a_small_network_of_the_same_make() -> None:
    """Two layers and a projection of a 112 x 112 picture: codes against floats."""
    rng = np.random.default_rng(2)
    layers = (
        Layer("a", rng.normal(size=(4, 3, 3, 3)) * 0.3, rng.normal(size=4), np.array([-0.3, 0.2, 0.9, 1.2]), 1, 1),
        Layer("b", rng.normal(size=(4, 1, 3, 3)) * 0.3, rng.normal(size=4), np.array([0.1, 1.1, -0.5, 0.0]), 2, 4),
    )
    projection = Projection(rng.normal(size=(5, 4, 56, 56)) / 100, rng.normal(size=5))
    views = rng.integers(0, 256, (3, 3, 112, 112)).astype(np.float32)
    first = _convolve((views.astype(float) - 127.5) / 128, layers[0])
    second = _convolve(prelu(first, layers[0].slope[:, None, None]), layers[1])
    last = prelu(second, layers[1].slope[:, None, None])
    expected = np.einsum("nchw,dchw->nd", last, projection.weight) + projection.bias
    ranges = integer.Ranges(
        (first.min(axis=(0, 2, 3)), second.min(axis=(0, 2, 3))),
        (first.max(axis=(0, 2, 3)), second.max(axis=(0, 2, 3))),
        "",
        "",
    )
    graph = integer.integer_graph(layers, projection, ranges)
    onnx.checker.check_model(graph)
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    got = session.run(["z"], {"views": views})[0]
    assert got.shape == (3, 5)
    assert np.abs(got - expected).max() <= 0.02 * np.abs(expected - projection.bias).max()


def _convolve(x: np.ndarray, layer: Layer) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    side, stride = x.shape[2], layer.stride
    patches = np.stack(
        [padded[:, :, dy : dy + side : stride, dx : dx + side : stride] for dy in range(3) for dx in range(3)]
    )
    kernel = layer.weight.reshape(len(layer.bias), -1, 9)
    form = "ck,kncyx->ncyx" if layer.depthwise else "ock,kncyx->noyx"
    return np.einsum(form, kernel[:, 0] if layer.depthwise else kernel, patches) + layer.bias[:, None, None]


def test_the_shipped_ranges_are_of_the_file_on_record() -> None:
    path = importlib.resources.files("uvsdk") / "data" / "sface_ranges.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        low, high = archive["low"], archive["high"]
        assert str(archive["weights"]) == weights.CATALOGUE["sface"].sha256
        assert "LFW" in str(archive["source"])
    assert low.dtype == np.float32
    assert low.shape == high.shape == (10_944,)
    assert np.isfinite(low).all()
    assert (low <= high).all()
    with pytest.raises(WeightsError, match="this SFace has 0"):
        integer.shipped_ranges([])


@pytest.mark.data
def test_it_is_sface() -> None:
    views = faces(150)
    exact, fast = bundle("float32").embed(views), bundle("int8").embed(views)
    cosines = (exact * fast).sum(axis=1)
    assert cosines.mean() > 0.996
    assert cosines.min() > 0.99
    # What decides are scores between faces.
    assert np.abs(exact @ exact.T - fast @ fast.T).max() < 0.05


@pytest.mark.data
def test_views_do_not_depend_on_their_batch() -> None:
    views = faces(800)
    together = bundle("int8").embed(views)
    assert np.array_equal(together, np.concatenate([bundle("int8").embed(view[None]) for view in views]))


def test_the_bundle_is_a_function_of_the_weights() -> None:
    first, second = bundle("int8"), sface_bundle()
    assert first.to_bytes() == second.to_bytes()
    assert bundle("float32").version != first.version
    assert len(first.graphs["embedding"]) < len(bundle("float32").graphs["embedding"]) / 3
    with pytest.raises(SettingsError, match="int8 or float32"):
        sface_bundle(precision="int4")  # type: ignore[arg-type]


def test_weights_that_were_never_measured(tmp_path: Path) -> None:
    try:
        path = weights.find("sface")
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")
    model = onnx.load(path)
    model.doc_string = "retrained"
    other = tmp_path / "sface.onnx"
    other.write_bytes(model.SerializeToString())
    with pytest.raises(WeightsError, match="never measured"):
        sface_bundle(weights=other)
    assert sface_bundle(weights=other, precision="float32").manifest.dimension == 128


def test_another_graph_is_told_apart(tmp_path: Path) -> None:
    try:
        model = onnx.load_from_string(float_graph(weights.find("sface")))
    except WeightsNotFoundError as error:
        pytest.skip(f"weights are not here: {error}")
    layers, projection = fold(model)
    assert len(layers) == 27
    assert projection.weight.shape == (128, 1024, 7, 7)
    offset = next(tensor for tensor in model.graph.initializer if tensor.name == model.graph.node[0].input[1])
    offset.CopyFrom(onnx.numpy_helper.from_array(np.array([128.0], np.float32), offset.name))
    with pytest.raises(ValueError, match=r"expected pixels as \(pixel - 127.5\)"):
        fold(model)
    del model.graph.node[4]
    with pytest.raises(ValueError, match="expected convolutions"):
        fold(model)
