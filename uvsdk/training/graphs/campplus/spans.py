"""The spans of a recording beside its embedding: half seconds of the last rows over time, each taken through the head.

By them two people who speak one after the other are told from one (:mod:`uvsdk.modality.voice.speakers`). The rows are
there already, so the spans cost next to nothing. Needs the ``onnx`` package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from onnx import NodeProto, TensorProto, helper

from uvsdk.arrays import Array, Float64

SPAN: Final = 25
"""Rows over time in a span: half a second."""
VARIANCE_FLOOR: Final = 1e-10


def span_nodes(weight: Float64, bias: Float64, *, output: str) -> tuple[list[NodeProto], Mapping[str, Array]]:
    """Nodes and constants for a graph that holds ``out``, float (n, T, 512), and of whole numbers ``frames``, T, and
    ``frame``, 0 to T - 1.

    ``output`` is float32 (n, k, d) for the k = max(1, round(T / 25)) spans of T / k rows: the head, laid over the mean
    and the deviation of each.

    Args:
        weight: the head's, (d, 1024). A copy of its own, so that training does not move what is told by the spans.
        bias: (d,).
        output: its name.
    """
    constants = {
        "span": np.int64(SPAN),
        "span_half": np.int64(SPAN // 2),
        "span_one": np.int64(1),
        "span_zero": np.int64(0),
        "span_whole": np.array([-1, 1], np.int64),
        "span_axis": np.array([1], np.int64),
        "span_one_float": np.float32(1),
        "span_nothing": np.float32(0),
        "span_floor": np.float32(VARIANCE_FLOOR),
        # Stored as half floats; onnxruntime makes them floats once, when a session is built.
        "span_head_stored": np.ascontiguousarray(weight.astype(np.float16).T),
        "span_head_bias": bias.astype(np.float32),
    }
    nodes: list[NodeProto] = []

    def add(kind: str, inputs: list[str], name: str, **settings: int) -> None:
        node = helper.make_node(kind, inputs, [name], name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in settings.items())
        nodes.append(node)

    # Which span each row lies in: t * k / T, rounded down.
    add("Add", ["frames", "span_half"], "span_rounding")
    add("Div", ["span_rounding", "span"], "span_some")
    add("Max", ["span_some", "span_one"], "span_count")
    add("Mul", ["frame", "span_count"], "span_scaled")
    add("Div", ["span_scaled", "frames"], "span_of")
    add("Range", ["span_zero", "span_count", "span_one"], "span_row")
    add("Reshape", ["span_row", "span_whole"], "span_column")
    add("Equal", ["span_column", "span_of"], "span_within")
    add("Cast", ["span_within"], "span_member", to=int(TensorProto.FLOAT))
    add("ReduceSum", ["span_member", "span_axis"], "span_sizes", keepdims=1)
    add("Div", ["span_member", "span_sizes"], "span_shares")
    add("MatMul", ["span_shares", "out"], "span_mean")
    add("Mul", ["out", "out"], "span_square")
    add("MatMul", ["span_shares", "span_square"], "span_mean_square")
    add("Mul", ["span_mean", "span_mean"], "span_square_mean")
    add("Sub", ["span_mean_square", "span_square_mean"], "span_spread")
    # Rounding may leave less than nothing.
    add("Max", ["span_spread", "span_nothing"], "span_biased")
    add("Sub", ["span_sizes", "span_one_float"], "span_less")
    add("Max", ["span_less", "span_one_float"], "span_others")
    add("Div", ["span_sizes", "span_others"], "span_unbias")
    add("Mul", ["span_biased", "span_unbias"], "span_variance")
    add("Add", ["span_variance", "span_floor"], "span_variance_up")
    add("Sqrt", ["span_variance_up"], "span_deviation")
    add("Concat", ["span_mean", "span_deviation"], "span_statistics", axis=2)
    add("Cast", ["span_head_stored"], "span_head", to=int(TensorProto.FLOAT))
    add("MatMul", ["span_statistics", "span_head"], "span_headed")
    add("Add", ["span_headed", "span_head_bias"], output)
    return nodes, {name: np.asarray(value) for name, value in constants.items()}
