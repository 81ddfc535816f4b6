"""TensorFlow.js graph models as ONNX: every operation against numpy, one whole model against TensorFlow.js itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from uvsdk.arrays import Array, Float32
from uvsdk.errors import UnknownNameError, WeightsError
from uvsdk.system.execution import onnxruntime

tfjs = pytest.importorskip("uvsdk.training.graphs.tfjs", reason="making a graph needs the train extra")

Node = dict[str, Any]


def words(*items: str) -> list[str]:
    return [base64.b64encode(item.encode()).decode() for item in items]


def node(name: str, op: str, *inputs: str, **attributes: Any) -> Node:
    return {"name": name, "op": op, "input": list(inputs), "attr": attributes}


def window(*sides: int) -> dict[str, Any]:
    return {"list": {"i": [str(side) for side in (1, *sides, 1)]}}


def picture_op(padding: str, stride: int = 1, fused: Sequence[str] = (), size: int | None = None) -> dict[str, Any]:
    attributes: dict[str, Any] = {"padding": {"s": words(padding)[0]}, "data_format": {"s": words("NHWC")[0]}}
    attributes |= {"strides": window(stride, stride), "dilations": window(1, 1)}
    attributes |= {"fused_ops": {"list": {"s": words(*fused)}}}
    return attributes | ({"ksize": window(size, size)} if size else {})


def model(nodes: list[Node], constants: Mapping[str, Array], sides: Sequence[int], width: int) -> tuple[bytes, bytes]:
    weights, body = [], b""
    for name, value in constants.items():
        kind = {"f": "float32", "i": "int32"}[value.dtype.kind]
        weights.append({"name": name, "shape": list(value.shape), "dtype": kind})
        body += value.astype({"float32": "<f4", "int32": "<i4"}[kind]).tobytes()
    dims = [{"size": str(side)} for side in (-1, *sides)]
    const: list[Node] = [node(name, "Const") for name in constants]
    record = {
        "modelTopology": {"node": [*const, node("given", "Placeholder"), *nodes]},
        "signature": {
            "inputs": {"given": {"tensorShape": {"dim": dims}}},
            "outputs": {"last": {"name": "last:0", "tensorShape": {"dim": [{"size": "-1"}, {"size": str(width)}]}}},
        },
        "weightsManifest": [{"paths": ["x.bin"], "weights": weights}],
    }
    return json.dumps(record).encode(), body


def run(graph: bytes, x: Float32) -> Float32:
    return np.asarray(onnxruntime.InferenceSession(graph).run(["y"], {"x": x})[0], np.float32)


def convolution(x: Float32, kernel: Float32, stride: int, padding: str) -> Float32:
    """(n, h, w, in) with (kh, kw, in, out), as TensorFlow defines it."""
    size = kernel.shape[0]
    if padding == "SAME":
        total = [max((-(-side // stride) - 1) * stride + size - side, 0) for side in x.shape[1:3]]
        x = np.pad(x, ((0, 0), *((t // 2, t - t // 2) for t in total), (0, 0)))
    rows = (x.shape[1] - size) // stride + 1
    columns = (x.shape[2] - size) // stride + 1
    out = np.empty((len(x), rows, columns, kernel.shape[3]), np.float32)
    for i in range(rows):
        for j in range(columns):
            patch = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
            out[:, i, j] = np.tensordot(patch, kernel, 3)
    return out


def pooled(x: Float32) -> Float32:
    n, h, w, c = x.shape
    return np.asarray(x[:, : h // 2 * 2, : w // 2 * 2].reshape(n, h // 2, 2, w // 2, 2, c).max(axis=(2, 4)), np.float32)


@pytest.mark.parametrize(("padding", "stride"), [("VALID", 1), ("SAME", 1), ("SAME", 2), ("VALID", 2)])
def test_a_small_classifier_is_what_numpy_makes_of_it(padding: str, stride: int) -> None:
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(3, 3, 3, 4)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    scale = rng.normal(size=4).astype(np.float32)
    x = rng.random((2, 10, 8, 3)).astype(np.float32) * 4
    before = np.minimum(np.maximum(convolution(x, kernel, stride, padding) + bias, 0), 6)
    expected = pooled(before * scale + bias).reshape(2, -1)
    dense = rng.normal(size=(expected.shape[1], 5)).astype(np.float32)
    expected = np.maximum(expected @ dense, 0)
    expected = np.exp(expected - expected.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    constants: dict[str, Array] = {"kernel": kernel, "bias": bias, "scale": scale, "shift": bias.copy(), "dense": dense}
    constants["flat"] = np.array([-1, len(dense)], np.int32)
    nodes = [
        node("conv", "_FusedConv2D", "given", "kernel", "bias", **picture_op(padding, stride, ("BiasAdd", "Relu6"))),
        node("mul", "Mul", "conv", "scale"),
        node("add", "AddV2", "mul", "shift"),
        node("pool", "MaxPool", "add", **picture_op("VALID", 2, size=2)),
        node("flatten", "Reshape", "pool", "flat"),
        node("dense1", "_FusedMatMul", "flatten", "dense", fused_ops={"list": {"s": words("Relu")}}),
        node("soft", "Softmax", "dense1"),
        node("last", "Identity", "soft"),
    ]
    graph = tfjs.to_onnx(*model(nodes, constants, x.shape[1:], 5), source="small")
    assert np.allclose(run(graph, x), expected, atol=1e-5)
    # Any number of views at a time, and each for itself.
    assert np.allclose(run(graph, x[1:]), expected[1:], atol=1e-5)


@pytest.mark.parametrize(
    ("packing", "stored"),
    [
        ({"dtype": "float16", "original_dtype": "float32"}, np.array([0.5, -2.0, 1.0], "<f2")),
        ({"dtype": "uint8", "scale": 0.5, "min": -2.0}, np.array([5, 0, 6], np.uint8)),
        ({"dtype": "uint16", "scale": 0.5, "min": -2.0}, np.array([5, 0, 6], "<u2")),
    ],
)
def test_packed_weights(packing: dict[str, Any], stored: Array) -> None:
    # 0.5 * (5, 0, 6) - 2 is (0.5, -2, 1) as well.
    record = [{"weights": [{"name": "w", "shape": [3], "dtype": "float32", "quantization": packing}]}]
    assert tfjs._constants(record, stored.tobytes(), "x")["w"].tolist() == [0.5, -2.0, 1.0]


def identity() -> tuple[bytes, bytes]:
    flat = {"flat": np.array([-1, 12], np.int32)}
    return model([node("last", "Reshape", "given", "flat")], flat, (2, 2, 3), 12)


def test_flattening_keeps_tensorflows_order() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3)
    assert run(tfjs.to_onnx(*identity(), source="x"), x).ravel().tolist() == list(range(12))


@pytest.mark.parametrize(
    "nodes",
    [
        [node("last", "Conv3D", "given")],
        [node("last", "Softmax", "given")],
        [node("last", "Reshape", "given", "shape")],
        [node("last", "_FusedMatMul", "given", "w", transpose_b={"b": True})],
        [node("last", "_FusedConv2D", "given", "k", **picture_op("VALID", fused=("Elu",)))],
        [node("last", "_FusedConv2D", "given", "k", **{**picture_op("VALID"), "strides": {"list": {"i": ["2"] * 4}}})],
        [node("last", "_FusedConv2D", "given", "k", **{**picture_op("VALID"), "data_format": {"s": words("NCHW")[0]}})],
        [node("last", "_FusedConv2D", "given", "k", **picture_op("EXPLICIT"))],
        [node("other", "Placeholder"), node("last", "Identity", "given")],
        [node("missing", "Const"), node("last", "Identity", "given")],
        [node("last", "Relu")],
        [],
    ],
)
def test_what_is_not_translated_is_refused(nodes: list[Node]) -> None:
    constants: dict[str, Array] = {
        "shape": np.array([2, 6], np.int32),
        "w": np.zeros((12, 2), np.float32),
        "k": np.zeros((1, 1, 3, 1), np.float32),
    }
    with pytest.raises(WeightsError):
        tfjs.to_onnx(*model(nodes, constants, (2, 2, 3), 1), source="x")


@pytest.mark.parametrize("topology", [b"", b"{}", b"[]", b"null", b'{"weightsManifest": 3}', b"\xff\xfe"])
def test_what_is_no_graph_model_is_refused(topology: bytes) -> None:
    with pytest.raises(WeightsError, match="not a TensorFlow"):
        tfjs.to_onnx(topology, b"", source="x")


def test_weights_of_another_length_are_refused() -> None:
    topology, body = identity()
    for broken in (body[:-4], body + b"\0\0\0\0", b""):
        with pytest.raises(WeightsError, match="x"):
            tfjs.to_onnx(topology, broken, source="x")


def test_antispoof_is_what_tensorflow_js_makes_of_it() -> None:
    from uvsdk.training.graphs.antispoof import presentation_graph

    try:
        found = presentation_graph()
    except WeightsError as error:
        pytest.skip(f"the classifier cannot be had: {error}")
    x = np.random.default_rng(7).random((4, 128, 128, 3), np.float32)
    # tests/vectors/tfjs/run.js, TensorFlow.js 4.22.0 on Node 20, plain CPU backend.
    expected = [0.8392994999885559, 0.8025201559066772, 0.8486402034759521, 0.8244699239730835]
    assert run(found.graph, x).ravel() == pytest.approx(expected, abs=2e-6)
    assert presentation_graph() == found


def test_an_unknown_classifier() -> None:
    from uvsdk.training.graphs.antispoof import presentation_graph

    with pytest.raises(UnknownNameError, match="no presentation attack detector 'magic'; there are antispoof"):
        presentation_graph("magic")
