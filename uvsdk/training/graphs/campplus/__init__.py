"""CAM++ below its head in 8-bit integers, which need no torch to run."""

from __future__ import annotations

from onnx import ModelProto

from uvsdk.arrays import Float32
from uvsdk.training.backbones import Affine, Backbone, Partial
from uvsdk.training.graphs import serialise
from uvsdk.training.graphs.campplus.integer import Head, Over, integer_graph
from uvsdk.training.graphs.campplus.ranges import Ranges, digest, shipped_ranges


def frozen_in_8_bits(backbone: Partial) -> bytes | None:
    """The graph of a ``campplus``, or of one with a linear head, of which the head is trained.

    views -> z, ``frozen`` and ``spans``. ``None`` where the activations of its frozen layers were never measured: for
    other weights than those on record.
    """
    ranges = shipped_ranges()
    if digest(below(backbone)[0]) != ranges.weights:
        return None
    return serialise(graph_in_8_bits(backbone, ranges))


def graph_in_8_bits(backbone: Partial, ranges: Ranges) -> ModelProto:
    """The graph with the codes that ``ranges`` give.

    What is ``frozen`` is what the trained layer hears, which is CAM++'s own last layer, or one behind it: then that
    has half floats, and devices train on the integer graph's embeddings as they verify with them.
    """
    over: Over = "statistics"
    if isinstance(backbone.stem, Backbone):
        over = "direction" if isinstance(backbone.rest, Affine) else "embedding"
    layers, dense = below(backbone)
    shapes = {name: tuple(value.shape) for name, value in backbone.rest.named_parameters(prefix="rest")}
    return integer_graph(layers, ranges, (dense["weight"], dense["bias"]), Head(shapes, over))


def below(backbone: Partial) -> tuple[dict[str, Float32], dict[str, Float32]]:
    """The tensors of the layers below CAM++'s last one, and of that one, by name."""
    stem = backbone.stem
    parts = stem.split("head") if isinstance(stem, Backbone) else (stem, backbone.rest)
    layers, last = ({name: value.detach().numpy() for name, value in part.state_dict().items()} for part in parts)
    return layers, last
