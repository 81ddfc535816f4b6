"""SFace's graph read as what it is: 27 convolutions, each with a batch normalisation and a PReLU, and a projection.

Batch normalisation is affine, so it is folded into the weights before it; what is left per layer are weights, a bias
and one slope per channel. Needs the ``onnx`` package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from uvsdk.arrays import Float64


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """``y = PReLU(conv(x; weight, padding k // 2) + bias)``.

    Args:
        name: the graph's name of the value before the PReLU.
        weight: float64 (out, in / group, k, k).
        bias: float64 (out,).
        slope: of the PReLU below zero, float64 (out,).
        stride: of the convolution, both ways.
        group: 1, or the number of channels: a depthwise convolution.
    """

    name: str
    weight: Float64
    bias: Float64
    slope: Float64
    stride: int
    group: int

    @property
    def depthwise(self) -> bool:
        """Whether each channel is convolved by itself."""
        return self.group > 1


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """``z = sum(weight * y) + bias`` over channels and places.

    Args:
        weight: float64 (d, channels, height, width).
        bias: float64 (d,).
    """

    weight: Float64
    bias: Float64


def fold(model: ModelProto) -> tuple[tuple[Layer, ...], Projection]:
    """The layers of SFace, whose first takes (pixel - 127.5) / 128.

    Raises:
        ValueError: the graph is another one.
    """
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type not in ("Constant", "Dropout", "Flatten")]
    kinds = [node.op_type for node in nodes]
    count = kinds.count("Conv")
    expected = ["Sub", "Mul", *["Conv", "BatchNormalization", "PRelu"] * count]
    if not count or kinds != [*expected, "BatchNormalization", "Gemm", "BatchNormalization"]:
        raise ValueError(f"expected convolutions with PReLU and one projection, got {kinds[:6]} and others")
    offset, scale = (float(constants[node.input[1]].item()) for node in nodes[:2])
    if (offset, scale) != (127.5, 0.0078125):
        raise ValueError(f"expected pixels as (pixel - 127.5) / 128, got (pixel - {offset}) * {scale}")
    layers = tuple(
        _layer(nodes[index], nodes[index + 1], nodes[index + 2], constants) for index in range(2, 2 + 3 * count, 3)
    )
    return layers, _projection(nodes[-3], nodes[-2], nodes[-1], constants, len(layers[-1].bias))


def _layer(
    convolution: NodeProto, normalisation: NodeProto, activation: NodeProto, constants: dict[str, np.ndarray]
) -> Layer:
    weight = np.asarray(constants[convolution.input[1]], np.float64)
    group = next(int(item.i) for item in convolution.attribute if item.name == "group")
    settings = {item.name: [int(number) for number in item.ints] for item in convolution.attribute}
    size, stride = weight.shape[2], settings["strides"][0]
    usual = {"dilations": [1, 1], "kernel_shape": [size] * 2, "pads": [size // 2] * 4, "strides": [stride] * 2}
    if len(convolution.input) != 2 or {name: settings[name] for name in usual} != usual:
        raise ValueError(f"{convolution.name} is not a plain convolution")
    if group not in (1, weight.shape[0]) or (group > 1 and weight.shape[1] != 1):
        raise ValueError(f"{convolution.name} is grouped, and not depthwise")
    gain, shift = _affine(normalisation, constants)
    slope = np.asarray(constants[activation.input[1]], np.float64).reshape(-1)
    return Layer(normalisation.output[0], weight * gain[:, None, None, None], shift, slope, stride, group)


def _projection(
    before: NodeProto, product: NodeProto, after: NodeProto, constants: dict[str, np.ndarray], channels: int
) -> Projection:
    flat = np.asarray(constants[product.input[1]], np.float64)
    side = round((flat.shape[1] / channels) ** 0.5)
    weight = flat.reshape(len(flat), channels, side, side)
    bias = np.asarray(constants[product.input[2]], np.float64)
    gain, shift = _affine(before, constants)
    bias = bias + np.einsum("dcij,c->d", weight, shift)
    weight = weight * gain[None, :, None, None]
    gain, shift = _affine(after, constants)
    return Projection(weight * gain[:, None, None, None], bias * gain + shift)


def _affine(normalisation: NodeProto, constants: dict[str, np.ndarray]) -> tuple[Float64, Float64]:
    """Gain and shift per channel of a batch normalisation with fixed statistics."""
    epsilon = next(item.f for item in normalisation.attribute if item.name == "epsilon")
    gamma, beta, mean, variance = (np.asarray(constants[name], np.float64) for name in normalisation.input[1:])
    gain = gamma / np.sqrt(variance + epsilon)
    return gain, beta - mean * gain
