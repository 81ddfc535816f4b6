"""SFace in 8-bit integers: a third of the time of its float graph, and a quarter of the size.

onnxruntime multiplies uint8 by int8 four times as fast as floats, but has no integer PReLU, and going to floats for it
would cost more than the convolutions. Three identities avoid that:

- ``PReLU(x) = max(x, a x)`` for a slope a <= 1, and ``max`` of uint8 codes is an integer operation. ``a x`` is either
  the same convolution with its scales times ``a``, or a 1x1 depthwise convolution of x.
- ``PReLU_a(x) = -a PReLU_{1/a}(-x)``: a slope above 1 becomes one below by turning signs in the weights around it.
- ``PReLU(s x) = s PReLU(x)`` for s > 0: each channel gets a scale of its own, taken from the weights before and given
  back to those after (Nagel et al., "Data-Free Quantization Through Weight Equalization", 2019), so that all channels
  fill the 256 codes of their tensor.

Post-training quantisation needs to know how far activations reach. That was measured once (tests/benchmarks/face,
``measure_ranges.py``) and ships as ``data/sface_ranges.npz``: the lowest and highest value of every channel.
Needs the ``onnx`` package.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from uvsdk.arrays import Array, Float64, Int64
from uvsdk.errors import WeightsError
from uvsdk.training.graphs.rounding import BLOCK, in_blocks, rounded
from uvsdk.training.graphs.sface.layers import Layer, Projection

# Where `a x` is convolved by itself: there it costs little more than the 1x1 convolution, and x needs no codes for
# values that the PReLU shrinks, which are most of what is lost. The distance to the float embedding (1 - cosine, LFW)
# falls from 2.9e-3 to 2.4e-3; doing it everywhere gains another 0.1e-3 and costs a fifth of the time.
_CONVOLVED_TWICE = 7
# The code of zero, tried in turn: few codes below zero where the PReLU leaves little there.
_ZEROS = tuple(range(8, 200, 8))
# A channel that never moved is given this part of its layer's widest range.
_NARROWEST = 1e-3
# Convolutions of the fewest channels spend their time between pixels: neighbours are taken together up to this width.
_PACKED_CHANNELS = 1024
_PIXEL_ZERO = 128
_SIDE = 112


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """How far each layer's values reach before the PReLU, per channel.

    Args:
        low: float64 (channels,) per layer, in the graph's order.
        high: the same.
        weights: SHA-256 of the weights they belong to.
        source: on which images they were measured.
    """

    low: tuple[Float64, ...]
    high: tuple[Float64, ...]
    weights: str
    source: str


def shipped_ranges(layers: Sequence[Layer]) -> Ranges:
    """The ranges that come with the package, split as ``layers`` need them.

    Raises:
        WeightsError: the layers are not those that were measured.
    """
    path = importlib.resources.files("uvsdk") / "data" / "sface_ranges.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        low, high = (np.asarray(archive[name], np.float64) for name in ("low", "high"))
        weights, source = str(archive["weights"]), str(archive["source"])
    sizes = [len(layer.bias) for layer in layers]
    if sum(sizes) != len(low):
        raise WeightsError(f"activation ranges are known for {len(low)} channels, this SFace has {sum(sizes)}")
    ends = np.cumsum(sizes)[:-1]
    return Ranges(tuple(np.split(low, ends)), tuple(np.split(high, ends)), weights, source)


def integer_graph(layers: Sequence[Layer], projection: Projection, ranges: Ranges) -> ModelProto:
    """views float32 (n, 3, 112, 112) RGB 0-255 -> z float32 (n, d), all but the last step in integers.

    Weights are int8 with a scale per channel, in which neighbours of one sign add up to at most 128: processors without
    VNNI add the products of two neighbours in 16 bits, and 255 * 128 fits.
    """
    graph = _Graph()
    graph.input_pixels()
    codes, gains = "pixels", np.full(layers[0].weight.shape[1], 128.0)
    side = _SIDE
    for index, layer in enumerate(layers):
        after = layers[index + 1].weight if index + 1 < len(layers) else projection.weight
        twice = index < _CONVOLVED_TWICE or layer.depthwise
        channels = _channels(layer, ranges.low[index], ranges.high[index], _importance(after), twice)
        side = -(-side // layer.stride)
        codes = graph.layer(index, layer, channels, codes, gains, side)
        gains = channels.gain / channels.turn
    graph.project(projection, codes, gains)
    return graph.model(len(projection.bias))


@dataclass(frozen=True, slots=True, eq=False)
class _Channels:
    """How a layer's values become codes: ``code = zero + gain * turned x``; what is left is ``turn * PReLU``.

    Args:
        zero: the code of 0.
        gain: codes per unit, per channel.
        slope: of the turned PReLU, at most 1.
        turn: 1, or minus the slope where the layer's own is above 1.
        twice: whether ``slope * x`` is convolved by itself.
    """

    zero: int
    gain: Float64
    slope: Float64
    turn: Float64
    twice: bool


def _importance(after: Float64) -> Float64:
    """The energy of each channel's weights in the layer after, (channels,)."""
    energy = np.square(after).sum(axis=(2, 3))
    # A depthwise convolution (out, 1, k, k) has a channel per output, others (out, in, k, k) one per input.
    return np.asarray(energy[:, 0] if after.shape[1] == 1 else energy.sum(axis=0), np.float64)


def _channels(layer: Layer, low: Float64, high: Float64, importance: Float64, twice: bool) -> _Channels:
    turned = layer.slope > 1.0
    slope = np.where(turned, 1.0 / np.where(turned, layer.slope, 1.0), layer.slope)
    turn = np.where(turned, -layer.slope, 1.0)
    low, high = np.where(turned, -high, low), np.where(turned, -low, high)
    # max(x, a x): a negative slope reaches upward; a positive one reaches less far down than x does.
    highest = np.maximum(high, np.where(slope < 0, slope * low, 0.0))
    lowest = np.where(slope > 0, slope * low, 0.0) if twice else low
    least = _NARROWEST * float(np.maximum(highest, -lowest).max())
    lowest, highest = np.minimum(lowest, -least), np.maximum(highest, least)
    steps = {zero: np.maximum(highest / (255 - zero), -lowest / zero) for zero in _ZEROS}
    errors = {zero: float((importance * turn**2 * step**2).sum()) for zero, step in steps.items()}
    zero = min(errors, key=errors.__getitem__)
    return _Channels(zero, 1.0 / steps[zero], slope, turn, twice)


class _Graph:
    """Collects nodes and constants. Tensors between layers are uint8 (n, height, width, channels), scale 1."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.zero = ""

    def constant(self, name: str, value: Array | np.generic) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def input_pixels(self) -> None:
        """Pixels as codes, exactly, and the block's pixels side by side in the channels."""
        self.constant("one", np.float32(1))
        self.constant("none", np.uint8(0))
        self.zero = self.constant("pixel_zero", np.uint8(_PIXEL_ZERO))
        self.constant("blocks", np.array([0, _SIDE, _SIDE // BLOCK, 3 * BLOCK], np.int64))
        self.nodes.append(helper.make_node("QuantizeLinear", ["views", "one", "none"], ["planes"]))
        self.nodes.append(helper.make_node("Transpose", ["planes"], ["interleaved"], perm=[0, 2, 3, 1]))
        self.nodes.append(helper.make_node("Reshape", ["interleaved", "blocks"], ["pixels"]))

    def layer(self, index: int, layer: Layer, channels: _Channels, codes: str, gains: Float64, side: int) -> str:
        """One layer from the codes before it, whose ``gains`` are codes per unit; returns the name of its codes."""
        name = f"layer{index}"
        weight = layer.weight / (gains[:, None, None, None] if layer.depthwise else gains[None, :, None, None])
        bias = layer.bias
        if index == 0:
            # Codes are pixel - 128, the layer was trained on pixel - 127.5.
            bias = bias + 0.5 * weight.sum(axis=(1, 2, 3))
        signed = (np.where(channels.turn < 0, -1.0, 1.0) * channels.gain)[:, None, None, None]
        weight, bias = weight * signed, bias * signed[:, 0, 0, 0]
        slope = channels.slope
        if index == 0:
            weight, bias, slope = in_blocks(weight), np.tile(bias, BLOCK), np.tile(slope, BLOCK)
        zero = self.constant(f"{name}_zero", np.uint8(channels.zero))
        stored, scale = rounded(weight, pairs=not layer.depthwise)
        offset = np.round(bias / scale)
        convolve = (codes, self.zero, zero, layer.stride, layer.group)
        self._convolution(f"{name}_x", convolve, stored, scale, offset)
        sign, size = np.where(slope < 0, -1, 1), np.maximum(np.abs(slope), 1e-9)
        if channels.twice:
            turned = stored * sign[:, None, None, None]
            self._convolution(f"{name}_ax", convolve, turned, scale * size, offset * sign)
            self._maximum(f"{name}_x", name)
        else:
            self._slope(name, zero, side, sign, size)
        self.zero = zero
        if channels.twice and index > 0:
            return f"{name}_y"
        return self._reshaped(f"{name}_y", side, side, len(layer.bias))

    def project(self, projection: Projection, codes: str, gains: Float64) -> None:
        """``z`` from the last codes; their order is height, width, channel."""
        weight = (
            (projection.weight / gains[None, :, None, None]).transpose(0, 2, 3, 1).reshape(len(projection.bias), -1)
        )
        stored, scale = rounded(weight[:, :, None, None], pairs=True)
        self.constant("z_weight", np.ascontiguousarray(stored[:, :, 0, 0].T.astype(np.int8)))
        self.constant("z_scale", scale.astype(np.float32))
        self.constant("z_zero", np.zeros(len(scale), np.int8))
        self.constant("z_bias", np.round(projection.bias / scale).astype(np.int32))
        self.nodes.append(helper.make_node("Flatten", [codes], ["flat"], axis=1))
        ends = ["flat", "one", self.zero, "z_weight", "z_scale", "z_zero", "z_bias"]
        self.nodes.append(helper.make_node("QGemm", ends, ["z"], domain="com.microsoft", alpha=1.0))

    def model(self, dimension: int) -> ModelProto:
        """The finished graph."""
        graph: GraphProto = helper.make_graph(
            self.nodes,
            "sface",
            [_value("views", ["batch", 3, _SIDE, _SIDE])],
            [_value("z", ["batch", dimension])],
            self.constants,
        )
        operations = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=operations, ir_version=8, producer_name="uvsdk")

    def _convolution(
        self, name: str, convolve: tuple[str, str, str, int, int], weight: Float64, scale: Float64, offset: Float64
    ) -> None:
        codes, zero_in, zero_out, stride, group = convolve
        size = weight.shape[2]
        ends = [codes, "one", zero_in, self.constant(f"{name}_weight", weight.astype(np.int8))]
        ends.append(self.constant(f"{name}_scale", scale.astype(np.float32)))
        ends.append(self.constant(f"{name}_weight_zero", np.zeros(len(scale), np.int8)))
        limit = np.iinfo(np.int32).max
        ends += ["one", zero_out, self.constant(f"{name}_bias", np.clip(offset, -limit, limit).astype(np.int32))]
        self.nodes.append(
            helper.make_node(
                "QLinearConv",
                ends,
                [name],
                domain="com.microsoft",
                channels_last=1,
                kernel_shape=[size, size],
                pads=[size // 2] * 4,
                strides=[stride, stride],
                group=group,
            )
        )

    def _slope(self, name: str, zero: str, side: int, sign: Int64, size: Float64) -> None:
        """``a x`` as a 1x1 convolution over neighbouring pixels taken together."""
        most = max(1, _PACKED_CHANNELS // len(sign))
        together = max(count for count in range(1, side + 1) if side % count == 0 and count <= most)
        sign, size = np.tile(sign, together), np.tile(size, together)
        packed = self._reshaped(f"{name}_x", side, side // together, len(sign))
        weight = np.asarray(64.0 * sign, np.float64)[:, None, None, None]
        self._convolution(f"{name}_ax", (packed, zero, zero, 1, len(sign)), weight, size / 64, np.zeros(len(sign)))
        self._maximum(packed, name)

    def _maximum(self, codes: str, name: str) -> None:
        self.nodes.append(helper.make_node("Max", [codes, f"{name}_ax"], [f"{name}_y"]))

    def _reshaped(self, codes: str, height: int, width: int, channels: int) -> str:
        """The same bytes under another shape."""
        shape = f"shape_{height}_{width}_{channels}"
        if shape not in {constant.name for constant in self.constants}:
            self.constant(shape, np.array([0, height, width, channels], np.int64))
        self.nodes.append(helper.make_node("Reshape", [codes, shape], [f"{codes}_viewed"]))
        return f"{codes}_viewed"


def _value(name: str, shape: list[str | int]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
