"""CAM++ below its head in 8-bit integers: a third of the time of its float graph, and a quarter of the size.

onnxruntime multiplies uint8 by int8 four times as fast as floats, where what lies between two products stays in codes:

- Every layer of a block lays a scale and a shift of its own over all channels before it, then ReLU. As
  ``relu(s x + b) = s max(x, -b / s) + b`` for s > 0, that is one ``max`` of codes with a code per channel; scale and
  shift move into the weights of the convolution behind it. For s < 0 the same with ``min``.
- Each channel has a step of its own, taken from the weights before and given back to those after (Nagel et al.,
  2019, section 4.1), so that all channels fill the 256 codes. What lies
  below the lowest threshold of any layer that hears a channel needs no code.
- Rounded weights move the mean of what a layer makes. With the mean of what enters it that is known, and its bias takes
  it off (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, section 4.2);
  what is left of it in the statistics over time is taken off there.
- A mask is the same for all frames of a segment: it is computed once a segment, in floats, from sums of codes.
- Time before mels, channels last: the front end's output is the input of the layers over time as it lies in memory.

How far activations reach was measured once (tests/benchmarks/voice, ``measure_ranges.py``) and ships as
``data/campplus_ranges.npz``. Needs the ``onnx`` package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from uvsdk.arrays import Array, Float32, Float64
from uvsdk.bundle.bundle import SPANS
from uvsdk.bundle.frozen import OUTPUT
from uvsdk.errors import BundleError
from uvsdk.training.graphs.campplus.ranges import (
    BLOCKS,
    BOTTLENECK,
    CHANNELS,
    MELS,
    SEGMENT,
    STATISTICS,
    STRIDES,
    Ranges,
    State,
)
from uvsdk.training.graphs.campplus.spans import span_nodes
from uvsdk.training.graphs.rounding import BLOCK, in_blocks, rounded

_MICROSOFT = "com.microsoft"
_TOP = 255.0
# A channel that hardly moves is given this part of the widest range of its tensor.
_NARROWEST = 1e-2
_VARIANCE_FLOOR = 1e-10
# A recording's frames have two codes each, of which the second has a step that many times finer.
_FINER = 16
# The part of values below a layer's threshold; chosen as in ``ranges.py``.
_CUT = 0.5


Over = Literal["statistics", "embedding", "direction"]
"""What a trained layer is laid over, see :class:`Head`."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The linear layer of a graph that is trained.

    Args:
        shapes: of its weight and, where it has one, its bias, by name in this order.
        over: what it is laid over: the ``statistics`` over time, so that it is CAM++'s own last layer; or, behind that
            one, which stays as it is, the ``embedding`` or its ``direction``.
    """

    shapes: Mapping[str, tuple[int, ...]]
    over: Over = "statistics"


def integer_graph(state: State, ranges: Ranges, dense: tuple[Float32, Float32], head: Head) -> ModelProto:
    """views float32 (n, frames, 80) -> z float32 (n, d) and, as ``frozen``, what the head is laid over.

    As ``spans`` it gives CAM++'s last layer of each half second, see :mod:`uvsdk.training.graphs.campplus.spans`.

    Args:
        state: the frozen layers below CAM++'s last one.
        ranges: of their activations.
        dense: that layer's weight, (192, 1024), and bias, (192,). Where it is what is trained, its values are those of
            ``spans``; ``z`` is made with values of its own.
        head: what is trained; the graph holds its values as zeros.

    Raises:
        BundleError: the layers are not those of CAM++.
    """
    try:
        graph = _Graph({name: np.asarray(value, np.float64) for name, value in state.items()}, ranges)
        graph.statistics(graph.stages(graph.time(graph.front())))
        graph.embedding(dense)
        graph.head(head)
        return graph.model(head, len(dense[1]))
    except KeyError as error:
        raise BundleError(f"these are not the layers of CAM++: there is no {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class _Codes:
    """A tensor of uint8 codes, channels last: ``code = gain * x + offset`` per channel."""

    name: str
    gain: Float64
    offset: Float64

    def wider(self, name: str, other: _Codes) -> _Codes:
        """These channels and then the other's, as the tensor ``name``."""
        return _Codes(name, np.append(self.gain, other.gain), np.append(self.offset, other.offset))


class _Graph:
    """Nodes and constants under construction."""

    def __init__(self, state: Mapping[str, Float64], ranges: Ranges) -> None:
        self._state = state
        self._ranges = ranges
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, Array] = {}

    # What the front end makes of the views: (n, frames, 10, 32).

    def front(self) -> _Codes:
        self._pixels()
        gain = self._positive("front.first")
        weight, bias = self._weights("0.first")
        step = float(self._constants["view_step"]) * gain[:, None, None, None]
        blocks = in_blocks(np.concatenate((step * weight, step * weight / _FINER), axis=1))
        self._convolution("first", ("view_pixels", "view_zero"), blocks, np.tile(bias * gain, BLOCK), pads=(1, 1))
        shape = self._constant("first_shape", np.array([0, 0, MELS, CHANNELS], np.int64))
        self._add("Reshape", ["first", shape], "first_codes")
        codes = _Codes("first_codes", gain, np.zeros(CHANNELS))
        for place, stride in enumerate(STRIDES):
            codes = self._residual(place, stride, codes)
        gain = self._positive("front.last")
        weight, bias = self._weights("0.last")
        weight = weight * gain[:, None, None, None] / codes.gain[:, None, None]
        mean = self._entering("front.last", codes)
        self._convolution("last", (codes.name, "none"), weight, bias * gain, mean=mean, strides=(1, 2), pads=(1, 1))
        return _Codes("last", gain, np.zeros(CHANNELS))

    def _pixels(self) -> None:
        """The views as two codes each, the second for what the first leaves of it."""
        reach = max(-self._ranges.low["views"][0], self._ranges.high["views"][0])
        step = self._constant("view_step", np.float32(reach / (_TOP // 2)))
        finer = self._constant("view_step_finer", np.float32(reach / (_TOP // 2) / _FINER))
        zero = self._constant("view_zero", np.uint8(_TOP // 2 + 1))
        column = self._constant("view_column", np.array([3], np.int64))
        blocks = self._constant("view_blocks", np.array([0, 0, MELS // BLOCK, 2 * BLOCK], np.int64))
        self._add("QuantizeLinear", ["views", step, zero], "view_codes")
        self._add("DequantizeLinear", ["view_codes", step, zero], "view_rounded")
        self._add("Sub", ["views", "view_rounded"], "view_rest")
        self._add("QuantizeLinear", ["view_rest", finer, zero], "view_rest_codes")
        self._add("Unsqueeze", ["view_codes", column], "view_first")
        self._add("Unsqueeze", ["view_rest_codes", column], "view_second")
        self._add("Concat", ["view_first", "view_second"], "view_pairs", axis=3)
        self._add("Reshape", ["view_pairs", blocks], "view_pixels")

    def _residual(self, place: int, stride: int, codes: _Codes) -> _Codes:
        """Two convolutions beside a shortcut. Both residuals of a size have the same gains: one is added to itself."""
        name, here = f"residual{place}", f"front.residuals.{place}"
        first = self._positive(f"{here}.first")
        weight, bias = self._weights(f"0.residuals.{place}.first")
        weight = weight * first[:, None, None, None] / codes.gain[:, None, None]
        source = (codes.name, "none")
        mean = self._entering(f"{here}.first", codes)
        self._convolution(f"{name}_first", source, weight, bias * first, mean=mean, strides=(1, stride), pads=(1, 1))
        between = _Codes(f"{name}_first", first, np.zeros(CHANNELS))
        pair = [f"front.residuals.{place - place % 2 + other}" for other in range(2)]
        gain = self._gains(np.zeros(CHANNELS), np.maximum(*(self._ranges.high[of] for of in pair)))
        ends = self._part(f"{name}_second", between, f"{here}.second", gain, (1, 1), (1, 1))
        if stride == 1:
            ends += [codes.name, "one", "none"]
        else:
            ends += self._part(f"{name}_beside", codes, f"{here}.shortcut", gain, (1, stride), (0, 0))
        self._add("QLinearAdd", [*ends, "one", "none"], name, domain=_MICROSOFT)
        return _Codes(name, gain, np.zeros(CHANNELS))

    def _part(
        self,
        name: str,
        source: _Codes,
        of: str,
        gain: Float64,
        strides: Sequence[int],
        pads: Sequence[int],
    ) -> list[str]:
        """A summand of a residual, whose codes are a multiple of those of the sum; its codes, step and zero."""
        low, high = (np.clip(reach[of] * gain, -_TOP, _TOP) for reach in (self._ranges.low, self._ranges.high))
        step = (max(high.max(), 0.0) - min(low.min(), 0.0)) / _TOP
        zero = round(-min(low.min(), 0.0) / step)
        weight, bias = self._weights(of.replace("front", "0"))
        weight = weight * gain[:, None, None, None] / source.gain[:, None, None] / step
        ends = [
            self._constant(f"{name}_step", np.float32(step)),
            self._constant(f"{name}_zero", np.uint8(zero)),
        ]
        self._convolution(
            name,
            (source.name, "none"),
            weight,
            bias * gain / step,
            mean=self._entering(of, source),
            strides=strides,
            pads=pads,
            zero=ends[1],
        )
        return [name, *ends]

    # Layers over time: rows of channels, (n * frames, channels).

    def time(self, codes: _Codes) -> _Codes:
        """The first convolution over time, which halves the frames."""
        flat = self._constant("mels_flat", np.array([0, 0, 1, CHANNELS * MELS // 8], np.int64))
        self._add("Reshape", [codes.name, flat], "tdnn_in")
        weight, bias = self._state["1.weight"], self._state["1.bias"]
        # torch flattens channels before mels.
        apart = weight.reshape(BOTTLENECK, CHANNELS, MELS // 8, -1) / codes.gain[:, None, None]
        weight = apart.transpose(0, 2, 1, 3).reshape(BOTTLENECK, -1, weight.shape[2])
        gain = self._positive("tdnn")
        weight = (weight * gain[:, None, None])[:, :, :, None]
        pixels = _Codes(codes.name, np.repeat(codes.gain, MELS // 8), np.zeros(CHANNELS * MELS // 8))
        mean = self._entering("tdnn", pixels).reshape(CHANNELS, -1).T.ravel()
        self._convolution("tdnn", ("tdnn_in", "none"), weight, bias * gain, mean=mean, strides=(2, 1), pads=(2, 0))
        self._places()
        rows = self._constant("rows", np.array([-1, BOTTLENECK], np.int64))
        self._add("Reshape", ["tdnn", rows], "tdnn_rows")
        return _Codes("tdnn_rows", gain, np.zeros(BOTTLENECK))

    def _places(self) -> None:
        """Which frames a frame hears, and which segment it lies in; from the number of frames."""
        constant = self._constant
        for name, value in (("zero_64", 0), ("one_64", 1), ("segment", SEGMENT), ("last_64", SEGMENT - 1)):
            constant(name, np.int64(value))
        constant("axis", np.array([1], np.int64))
        constant("whole", np.array([-1, 1], np.int64))
        self._add("Shape", ["tdnn"], "shape", start=0, end=2)
        self._add("Gather", ["shape", "zero_64"], "count")
        self._add("Gather", ["shape", "one_64"], "frames")
        self._add("Range", ["zero_64", "frames", "one_64"], "frame")
        self._add("Reshape", ["frame", "whole"], "frame_column")
        for dilation in sorted({dilation for _, dilation in BLOCKS}):
            constant(f"taps{dilation}", dilation * np.arange(3, dtype=np.int64)[None])
            self._add("Add", ["frame_column", f"taps{dilation}"], f"heard_grid{dilation}")
            constant("flat", np.array([-1], np.int64))
            self._add("Reshape", [f"heard_grid{dilation}", "flat"], f"heard{dilation}")
        # The mask of frame t of sample b is row b * segments + t // 100.
        self._add("Add", ["frames", "last_64"], "frames_up")
        self._add("Div", ["frames_up", "segment"], "segments")
        self._add("Range", ["zero_64", "segments", "one_64"], "segment_row")
        self._add("Reshape", ["segment_row", "whole"], "segment_column")
        self._add("Div", ["frame", "segment"], "segment_of")
        self._add("Equal", ["segment_column", "segment_of"], "within")
        self._add("Cast", ["within"], "sums", to=int(TensorProto.UINT8))
        self._add("Range", ["zero_64", "count", "one_64"], "sample")
        self._add("Reshape", ["sample", "whole"], "sample_column")
        self._add("Mul", ["sample_column", "segments"], "sample_begins")
        self._add("Add", ["sample_begins", "segment_of"], "mask_grid")
        self._add("Reshape", ["mask_grid", "flat"], "mask_of")
        # Sums of segments -> the mean of all frames plus that of the segment.
        self._add("Cast", ["within"], "within_float", to=int(TensorProto.FLOAT))
        self._add("ReduceSum", ["within_float", "axis"], "sizes", keepdims=1)
        self._add("Equal", ["segment_column", "segment_row"], "same")
        self._add("Cast", ["same"], "same_float", to=int(TensorProto.FLOAT))
        self._add("Div", ["same_float", "sizes"], "near")
        self._add("Cast", ["frames"], "frames_float", to=int(TensorProto.FLOAT))
        self._add("Reciprocal", ["frames_float"], "far")
        self._add("Add", ["near", "far"], "means")
        self._add("Reshape", ["frames", "flat"], "frames_1")
        constant("width", np.array([BOTTLENECK], np.int64))
        constant("batch", np.array([-1], np.int64))
        self._add("Concat", ["batch", "frames_1", "width"], "samples", axis=0)

    def stages(self, codes: _Codes) -> str:
        """The three blocks; the name of the last transition's output in floats."""
        for stage, (layers, dilation) in enumerate(BLOCKS):
            for layer in range(layers):
                codes = self._masked(f"stages.{stage}.0.{layer}", f"{3 + stage}.0.{layer}", codes, dilation)
            of = f"{3 + stage}.1"
            weight, bias = self._scaled(of, f"transition{stage}", codes)
            mean = self._entering(f"stages.{stage}.1.linear", codes, weight, bias)
            weight = self._state[f"{of}.linear.weight"][:, :, 0] * weight
            shift = self._state[f"{of}.linear.weight"][:, :, 0] @ bias
            shift = shift + self._state.get(f"{of}.linear.bias", np.zeros(len(weight)))
            source = _Codes(f"transition{stage}_max", codes.gain, codes.offset)
            if stage + 1 == len(BLOCKS):
                self._product("rows_out", source, weight, shift, mean=mean)
                return "rows_out"
            codes = self._reach(f"stage{stage}", f"stages.{stage}", stage + 1, 0, len(weight))
            self._product(codes.name, source, weight, shift, codes, mean=mean)
        raise AssertionError

    def _masked(self, measured_as: str, of: str, codes: _Codes, dilation: int) -> _Codes:
        """A layer of a block; the codes before it and, behind them, its own."""
        name = measured_as.replace(".", "_")
        scale, shift = self._scaled(of, name, codes)
        narrow = _Codes(f"{name}_narrow", self._positive(f"{measured_as}.bottleneck"), np.zeros(BOTTLENECK))
        weight, bias = self._state[f"{of}.bottleneck.weight"][:, :, 0], self._state[f"{of}.bottleneck.bias"]
        source = _Codes(f"{name}_max", codes.gain, codes.offset)
        mean = self._entering(f"{measured_as}.bottleneck", codes, scale, shift)
        self._product(narrow.name, source, weight * scale, bias + weight @ shift, narrow, mean=mean)
        self._add("Reshape", [narrow.name, "samples"], f"{name}_samples")
        self._around(name, dilation)
        local = self._state[f"{of}.local.weight"].transpose(0, 2, 1).reshape(CHANNELS, -1)
        taps = _Codes(f"{name}_taps", np.tile(narrow.gain, 3), np.zeros(3 * BOTTLENECK))
        mean = np.tile(self._entering(f"{measured_as}.local", narrow), 3)
        self._product(f"{name}_local", taps, local, np.zeros(CHANNELS), mean=mean)
        stage, layer = (int(part) for part in measured_as.split(".")[1::2])
        added = self._reach(f"{name}_added", measured_as, stage, layer + 1, CHANNELS)
        self._mask(name, of, narrow, added.gain)
        self._add("Mul", [f"{name}_local", f"{name}_mask"], f"{name}_masked")
        self._add(
            "Add",
            [f"{name}_masked", self._constant(f"{name}_offset", added.offset.astype(np.float32))],
            f"{name}_moved",
        )
        self._add("QuantizeLinear", [f"{name}_moved", "one", "none"], added.name)
        self._add("Concat", [codes.name, added.name], f"{name}_all", axis=1)
        return codes.wider(f"{name}_all", added)

    def _around(self, name: str, dilation: int) -> None:
        """Each frame between the one before and the one after it, (n * frames, 3 * 128)."""
        pads = self._constant(f"pads{dilation}", np.array([0, dilation, 0, 0, dilation, 0], np.int64))
        self._add("Pad", [f"{name}_samples", pads, "none"], f"{name}_padded")
        self._add("Gather", [f"{name}_padded", f"heard{dilation}"], f"{name}_heard", axis=1)
        wide = self._constant("three", np.array([-1, 3 * BOTTLENECK], np.int64))
        self._add("Reshape", [f"{name}_heard", wide], f"{name}_taps")

    def _mask(self, name: str, of: str, narrow: _Codes, gain: Float64) -> None:
        """The mask of each frame times the gain of the codes it makes, float (n * frames, 32)."""
        self._add("MatMulInteger", ["sums", f"{name}_samples"], f"{name}_sums")
        self._add("Cast", [f"{name}_sums"], f"{name}_sums_float", to=int(TensorProto.FLOAT))
        self._add("MatMul", ["means", f"{name}_sums_float"], f"{name}_means")
        rows = self._constant("narrow_rows", np.array([-1, BOTTLENECK], np.int64))
        self._add("Reshape", [f"{name}_means", rows], f"{name}_context")
        one, two = (self._state[f"{of}.{part}.weight"][:, :, 0] for part in ("context", "mask"))
        self._linear(f"{name}_one", f"{name}_context", one / narrow.gain, self._state[f"{of}.context.bias"])
        self._add("Relu", [f"{name}_one"], f"{name}_one_relu")
        self._linear(f"{name}_two", f"{name}_one_relu", two, self._state[f"{of}.mask.bias"])
        self._add("Sigmoid", [f"{name}_two"], f"{name}_open")
        self._add("Mul", [f"{name}_open", self._constant(f"{name}_gain", gain.astype(np.float32))], f"{name}_steps")
        self._add("Gather", [f"{name}_steps", "mask_of"], f"{name}_mask", axis=0)

    def _linear(self, name: str, source: str, weight: Float64, bias: Float64) -> None:
        """Floats that are stored as half floats; onnxruntime makes them floats once, when a session is built."""
        self._constant(f"{name}_stored", np.ascontiguousarray(weight.astype(np.float16).T))
        self._add("Cast", [f"{name}_stored"], f"{name}_weight", to=int(TensorProto.FLOAT))
        self._add("Gemm", [source, f"{name}_weight", self._constant(f"{name}_bias", bias.astype(np.float32))], name)

    def _scaled(self, of: str, name: str, codes: _Codes) -> tuple[Float64, Float64]:
        """``max`` (and ``min``) of the codes, as NAME_max; the scale and shift that are left for the weights."""
        scale, shift = self._state[f"{of}.scaled.weight"], self._state[f"{of}.scaled.bias"]
        exact = codes.gain * (-shift / scale) + codes.offset
        threshold = np.clip(np.round(exact), 0, 255)
        # What the rounded threshold leaves of a value that ReLU makes zero; a constant of the layer, not noise.
        left = scale * (threshold - codes.offset) / codes.gain + shift
        shift = shift - np.where((scale > 0) & (exact >= 255), 1.0, _CUT) * left
        floor = self._constant(f"{name}_floor", np.where(scale > 0, threshold, 0).astype(np.uint8))
        if (scale > 0).all():
            self._add("Max", [codes.name, floor], f"{name}_max")
            return scale, shift
        ceiling = self._constant(f"{name}_ceiling", np.where(scale > 0, 255, threshold).astype(np.uint8))
        self._add("Max", [codes.name, floor], f"{name}_above")
        self._add("Min", [f"{name}_above", ceiling], f"{name}_max")
        return scale, shift

    def _reach(self, name: str, of: str, stage: int, layer: int, channels: int) -> _Codes:
        """Codes of channels that block ``stage`` hears from ``layer`` on: none below what its lowest threshold cuts."""
        low, high = self._ranges.low[of], self._ranges.high[of]
        start = BOTTLENECK if stage == 0 else len(self._state[f"{2 + stage}.1.linear.weight"])
        begin = 0 if layer == 0 else start + (layer - 1) * CHANNELS
        heard = [f"{3 + stage}.0.{later}" for later in range(layer, BLOCKS[stage][0])] + [f"{3 + stage}.1"]
        scale, shift = (
            np.stack([self._state[f"{by}.scaled.{part}"][begin : begin + channels] for by in heard])
            for part in ("weight", "bias")
        )
        lowest = np.where((scale > 0).all(axis=0), (-shift / scale).min(axis=0), -np.inf)
        low = np.minimum(np.maximum(low, lowest), high)
        gain = self._gains(low, high)
        return _Codes(name, gain, -low * gain)

    def statistics(self, rows: str) -> None:
        """Mean and deviation over time, as ``frozen``; :func:`uvsdk.training.backbones.campplus` has the same."""
        self._constant("wide", np.array([STATISTICS // 2], np.int64))
        self._add("Concat", ["batch", "frames_1", "wide"], "samples_out", axis=0)
        self._add("Relu", [rows], "above")
        self._add("Reshape", ["above", "samples_out"], "out")
        self._add("ReduceMean", ["out"], "mean", axes=[1], keepdims=1)
        self._add("Sub", ["out", "mean"], "centred")
        self._add("ReduceSumSquare", ["centred"], "squares", axes=[1], keepdims=0)
        self._constant("one_float", np.float32(1))
        self._constant("floor", np.float32(_VARIANCE_FLOOR))
        self._add("Sub", ["frames_float", "one_float"], "less")
        self._add("Max", ["less", "one_float"], "others")
        self._add("Div", ["squares", "others"], "variance")
        self._add("Add", ["variance", "floor"], "variance_up")
        self._add("Sqrt", ["variance_up"], "deviation")
        self._add("Squeeze", ["mean", "axis"], "mean_flat")
        self._add("Concat", ["mean_flat", "deviation"], "statistics", axis=1)

    def embedding(self, dense: tuple[Float32, Float32]) -> None:
        """CAM++'s last layer, of half seconds."""
        weight, bias = (np.asarray(part, np.float64) for part in dense)
        nodes, constants = span_nodes(weight, bias - weight @ self._ranges.left, output=SPANS)
        self._nodes += nodes
        self._constants |= constants

    def head(self, head: Head) -> None:
        """What is trained, with zeros, over what it is laid over."""
        left = self._constant("left", self._ranges.left.astype(np.float32))
        if head.over == "statistics":
            self._add("Sub", ["statistics", left], OUTPUT)
        else:
            self._add("Gemm", ["statistics", "span_head", "span_head_bias"], OUTPUT)
        over = OUTPUT
        if head.over == "direction":
            over = "direction"
            self._add("LpNormalization", [OUTPUT], over, axis=1, p=2)
        names = [self._constant(name, np.zeros(shape, np.float32)) for name, shape in head.shapes.items()]
        self._add("Gemm", [over, *names], "z", transB=1)

    def model(self, head: Head, dimension: int) -> ModelProto:
        """The finished graph; ``dimension`` is that of CAM++'s last layer."""
        embedding, width = next(iter(head.shapes.values()))
        graph = helper.make_graph(
            self._nodes,
            "campplus",
            [helper.make_tensor_value_info("views", TensorProto.FLOAT, ["batch", "frames", MELS])],
            [
                helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", embedding]),
                helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", width]),
                helper.make_tensor_value_info(SPANS, TensorProto.FLOAT, ["batch", "spans", dimension]),
            ],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in self._constants.items()],
        )
        operations = [helper.make_opsetid("", 17), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=operations, ir_version=8, producer_name="uvsdk")

    def _entering(
        self, name: str, codes: _Codes, scale: Float64 | float = 1.0, shift: Float64 | float = 0.0
    ) -> Float64:
        """Mean of the codes, less their offset, that enter the convolution as ``scale * x + shift``; else zeros."""
        mean = self._ranges.mean.get(name)
        if mean is None:
            return np.zeros(len(codes.gain))
        return np.clip(codes.gain * (mean - shift) / scale, -codes.offset, _TOP - codes.offset)

    def _product(
        self,
        name: str,
        source: _Codes,
        weight: Float64,
        bias: Float64,
        codes: _Codes | None = None,
        *,
        mean: Float64,
    ) -> None:
        """Rows times a matrix (out, in) plus ``bias``: as ``codes``, or in floats.

        ``mean`` is that of the rows' codes less their offset, and so are :meth:`_convolution`'s, channel by channel.
        """
        gain, offset = (np.ones(len(weight)), np.zeros(len(weight))) if codes is None else (codes.gain, codes.offset)
        weight = gain[:, None] * weight / source.gain
        stored, scale = rounded(weight[:, :, None, None], pairs=True)
        stored = stored[:, :, 0, 0]
        exact = (gain * bias + offset) / scale - stored @ source.offset + (weight / scale[:, None] - stored) @ mean
        ends = [
            source.name,
            "one",
            "none",
            self._constant(f"{name}_weight", np.ascontiguousarray(stored.T.astype(np.int8))),
        ]
        ends.append(self._constant(f"{name}_scale", scale.astype(np.float32)))
        ends.append(self._constant(f"{name}_weight_zero", np.zeros(len(scale), np.int8)))
        ends.append(self._constant(f"{name}_bias", _whole(exact)))
        if codes is not None:
            ends += ["one", "none"]
        self._add("QGemm", ends, name, domain=_MICROSOFT, alpha=1.0)

    def _convolution(
        self,
        name: str,
        source: tuple[str, str],
        weight: Float64,
        bias: Float64,
        *,
        mean: Float64 | None = None,
        strides: Sequence[int] = (1, 1),
        pads: Sequence[int],
        zero: str = "none",
    ) -> None:
        """From codes whose step is one, and their zero, to such codes."""
        stored, scale = rounded(weight, pairs=True)
        if mean is not None:
            bias = bias + scale * ((weight / scale[:, None, None, None] - stored).sum(axis=(2, 3)) @ mean)
        self._constant("one", np.float32(1))
        self._constant("none", np.uint8(0))
        ends = [source[0], "one", source[1], self._constant(f"{name}_weight", stored.astype(np.int8))]
        ends.append(self._constant(f"{name}_scale", scale.astype(np.float32)))
        ends.append(self._constant(f"{name}_weight_zero", np.zeros(len(scale), np.int8)))
        ends += ["one", zero, self._constant(f"{name}_bias", _whole(bias / scale))]
        self._add(
            "QLinearConv",
            ends,
            name,
            domain=_MICROSOFT,
            channels_last=1,
            kernel_shape=list(weight.shape[2:]),
            pads=[*pads, *pads],
            strides=list(strides),
        )

    def _weights(self, of: str) -> tuple[Float64, Float64]:
        """A convolution of the front end with time before mels, and its bias."""
        return self._state[f"{of}.weight"].transpose(0, 1, 3, 2), self._state[f"{of}.bias"]

    def _positive(self, name: str) -> Float64:
        """Gains of channels behind a ReLU, whose codes begin at zero."""
        high = self._ranges.high[name]
        return self._gains(np.zeros(len(high)), high)

    def _gains(self, low: Float64, high: Float64) -> Float64:
        reach = np.maximum(high - low, 0.0)
        return np.asarray(_TOP / np.maximum(reach, max(_NARROWEST * reach.max(), 1e-6)), np.float64)

    def _constant(self, name: str, value: Array | np.generic) -> str:
        self._constants[name] = np.asarray(value)
        return name

    def _add(
        self,
        kind: str,
        inputs: list[str],
        output: str,
        *,
        domain: str = "",
        **settings: float | list[int],
    ) -> None:
        node = helper.make_node(kind, inputs, [output], output, domain=domain)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in settings.items())
        self._nodes.append(node)


def _whole(bias: Float64) -> Array:
    limit = float(np.iinfo(np.int32).max)
    return np.clip(np.round(bias), -limit, limit).astype(np.int32)
