"""Recurrent layers in 8 bits, computed from theta inside the graph. Needs the ``onnx`` package (``train`` extra).

An LSTM layer on a few windows spends its time fetching weights from memory; in 8 bits they are a quarter of the size.
The layers of an embedding graph whose input is another layer's output, so that it lies in [-1, 1], are exchanged for
onnxruntime's ``DynamicQuantizeLSTM``. The first layer stays in float: mel power spans six decades, of which 8 bits
hold two. The nodes that quantise are part of the graph and start from the external theta, so that a server replaces
theta as ever; onnxruntime computes them once, when a session is built.
"""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from uvsdk.errors import BundleError
from uvsdk.training.graphs import parse, serialise

_DOMAIN = "com.microsoft"
_LARGEST = 127.0
# A column of zeros has no scale of its own.
_SMALLEST_SCALE = 1e-12


def quantise_recurrent(graph: bytes) -> bytes:
    """The same graph with every LSTM but the first in 8 bits.

    Weights are rounded to 255 steps between plus and minus the largest of each gate's column; activations by
    onnxruntime at every step, to 256 steps over their range in the call, so that rows of one call have a (slight)
    influence on each other.

    Raises:
        BundleError: the graph has no second LSTM.
    """
    model = parse(graph, "the exported graph")
    recurrent = [node for node in model.graph.node if node.op_type == "LSTM"]
    if len(recurrent) < 2:
        raise BundleError(f"only stacked LSTM layers are quantised; this graph has {len(recurrent)}")
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "LSTM" and node.name != recurrent[0].name:
            nodes += _quantised(node, model.graph)
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return serialise(model)


def _quantised(node: NodeProto, graph: GraphProto) -> list[NodeProto]:
    """``DynamicQuantizeLSTM`` in place of an LSTM, after the nodes that make its weights."""
    if node.input[7:]:
        raise BundleError(f"{node.name} has peepholes, which are not quantised")
    hidden = next(int(attribute.i) for attribute in node.attribute if attribute.name == "hidden_size")
    added: list[NodeProto] = []
    weights, scales = [], []
    for letter, source in zip("WR", node.input[1:3], strict=True):
        name = f"{node.name}/{letter}"
        added += _rounding(source, name)
        weights.append(f"{name}/int8")
        scales += [f"{name}/scale", f"{name}/zero"]
        graph.initializer.append(numpy_helper.from_array(np.zeros((1, 4 * hidden), np.int8), f"{name}/zero"))
    # X, W, R, B, sequence_lens, initial_h, initial_c, P, then scale and zero point of W and of R.
    inputs = [node.input[0], *weights, *[*node.input[3:7], *[""] * 5][:5], *scales]
    lstm = helper.make_node("DynamicQuantizeLSTM", inputs, list(node.output), node.name, domain=_DOMAIN)
    lstm.attribute.extend(node.attribute)
    return [*added, lstm]


def _rounding(source: str, name: str) -> list[NodeProto]:
    """``source`` (1, 4 hidden, inputs) to int8 (1, inputs, 4 hidden) and the scale of each column (1, 4 hidden)."""

    def constant(suffix: str, value: float) -> NodeProto:
        tensor = numpy_helper.from_array(np.array(value, np.float32), f"{name}/{suffix}")
        return helper.make_node("Constant", [], [f"{name}/{suffix}"], value=tensor)

    def node(kind: str, inputs: list[str], output: str) -> NodeProto:
        return helper.make_node(kind, [f"{name}/{part}" for part in inputs], [f"{name}/{output}"])

    return [
        constant("largest", _LARGEST),
        constant("lowest", -_LARGEST),
        constant("least", _SMALLEST_SCALE),
        helper.make_node("Transpose", [source], [f"{name}/columns"], perm=[0, 2, 1]),
        node("Abs", ["columns"], "magnitudes"),
        helper.make_node("ReduceMax", [f"{name}/magnitudes"], [f"{name}/peaks"], axes=[1], keepdims=1),
        node("Div", ["peaks", "largest"], "steps"),
        node("Max", ["steps", "least"], "wide"),
        node("Div", ["columns", "wide"], "ratios"),
        node("Round", ["ratios"], "whole"),
        node("Clip", ["whole", "lowest", "largest"], "clipped"),
        helper.make_node("Cast", [f"{name}/clipped"], [f"{name}/int8"], to=3),
        helper.make_node("ReduceMax", [f"{name}/wide"], [f"{name}/scale"], axes=[1], keepdims=0),
    ]
