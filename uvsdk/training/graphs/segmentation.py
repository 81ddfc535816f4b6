"""Segmentation 3.0 of pyannote: who speaks when, up to three people, two of them at once, as an ONNX graph.

Sources: Bredin, "pyannote.audio 2.1 speaker diarization pipeline: principle, benchmark, and recipe", Interspeech 2023,
with the classes of Plaquet and Bredin, "Powerset multi-class cross entropy loss for neural speaker diarization",
Interspeech 2023, arXiv 2310.13025, over the filters of Ravanelli and Bengio, "Speaker Recognition from Raw Waveform
with SincNet", SLT 2018, arXiv 1808.00158. The graph is made of the published tensors: 40 pairs of band-pass filters
whose cutoffs were learnt, two convolutions, four recurrent layers in both directions, two linear layers and a
classifier.

In ``int8`` the weights of the recurrent layers are rounded to 255 steps of each column, and onnxruntime multiplies in
8 bits. Needs torch to read the checkpoint, and the ``onnx`` package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from uvsdk.arrays import Array, Float64
from uvsdk.bundle import Bundle
from uvsdk.errors import UnknownNameError
from uvsdk.modality.voice.overlap import CLASSES, INPUT, NAME, OUTPUT
from uvsdk.training import weights as catalogue
from uvsdk.training.graphs import serialise

WEIGHTS: Final = "segmentation"
"""Their name in the catalogue."""
PRECISIONS: Final = ("int8", "float32")

_RATE = 16_000
_FILTERS, _TAPS, _STRIDE = 40, 251, 10
_LOWEST_HZ, _NARROWEST_HZ = 50.0, 50.0
_CHANNELS, _WIDTH, _POOL = 60, 5, 3
_HIDDEN, _LAYERS, _LINEAR = 128, 4, 128
_EPSILON = 1e-5
_SLOPE = 0.01
"""Of a leaky ReLU below zero."""
_LARGEST = 127.0
_MICROSOFT = "com.microsoft"
_OPSET = 17

State = Mapping[str, Float64]


def shapes() -> dict[str, tuple[int, ...]]:
    """The published tensors that the graph is made of, by name."""
    found: dict[str, tuple[int, ...]] = {
        "sincnet.conv1d.0.filterbank.low_hz_": (_FILTERS, 1),
        "sincnet.conv1d.0.filterbank.band_hz_": (_FILTERS, 1),
        "sincnet.conv1d.1.weight": (_CHANNELS, 2 * _FILTERS, _WIDTH),
        "sincnet.conv1d.2.weight": (_CHANNELS, _CHANNELS, _WIDTH),
        "linear.0.weight": (_LINEAR, 2 * _HIDDEN),
        "linear.1.weight": (_LINEAR, _LINEAR),
        "classifier.weight": (len(CLASSES), _LINEAR),
    }
    found |= {name.replace("weight", "bias"): shape[:1] for name, shape in found.items() if name.endswith("weight")}
    for name, size in (("wav_norm1d", 1), ("norm1d.0", 2 * _FILTERS), ("norm1d.1", _CHANNELS), ("norm1d.2", _CHANNELS)):
        found |= {f"sincnet.{name}.{part}": (size,) for part in ("weight", "bias")}
    for layer in range(_LAYERS):
        heard = _CHANNELS if layer == 0 else 2 * _HIDDEN
        for suffix in (f"l{layer}", f"l{layer}_reverse"):
            found |= {
                f"lstm.weight_ih_{suffix}": (4 * _HIDDEN, heard),
                f"lstm.weight_hh_{suffix}": (4 * _HIDDEN, _HIDDEN),
            }
            found |= {f"lstm.bias_{kind}_{suffix}": (4 * _HIDDEN,) for kind in ("ih", "hh")}
    return found


def with_overlap(
    bundle: Bundle,
    *,
    weights: Path | None = None,
    download: bool = False,
    precision: Literal["int8", "float32"] = "int8",
) -> Bundle:
    """The same model version with the graph that :mod:`uvsdk.modality.voice.overlap` runs on every sample.

    Args:
        bundle: of voices.
        weights: the checkpoint, where it is not the one the catalogue finds.
        download: whether it may be fetched.
        precision: of the recurrent layers, one of :data:`PRECISIONS`.

    Raises:
        UnknownNameError: no such precision.
        WeightsNotFoundError: the weights are nowhere to be found.
        WeightsError: they are not those of segmentation 3.0.
        BundleError: a bundle of another modality.
    """
    if precision not in PRECISIONS:
        raise UnknownNameError(f"no precision {precision!r}; there are {', '.join(PRECISIONS)}")
    path = catalogue.find(WEIGHTS, path=weights, download=download)
    entry = catalogue.CATALOGUE[WEIGHTS]
    source = entry.source if weights is None else f"{path.name}, given by path"
    return bundle.with_check(NAME, graph(read(path), precision), source=source)


def read(path: Path) -> dict[str, Float64]:
    """The tensors of a checkpoint, float64; no code in the file can run. Raises :class:`WeightsError`."""
    from uvsdk.training.backbones import read_arrays

    return read_arrays(path, shapes())


def filters(low_hz: Float64, band_hz: Float64) -> Float64:
    """The band-pass filters, (80, 251): 40 even ones, then 40 odd ones of the same bands.

    Each is the difference of two low-pass filters under a Hamming window; the odd one is its Hilbert transform. Cutoffs
    are 50 Hz + |low| and 50 Hz + |band| above that, at most 8 kHz.

    >>> even, odd = filters(np.full((1, 1), 450.0), np.full((1, 1), 950.0))  # 500 to 1500 Hz
    >>> bool(np.allclose(even, even[::-1])), bool(np.allclose(odd, -odd[::-1]))
    (True, True)
    >>> response = np.abs(np.fft.rfft(even, 16_000))  # by the hertz, against the middle of the band
    >>> [round(float(response[hz] / response[1000]), 1) for hz in (100, 500, 1500, 3000)]
    [0.0, 0.5, 0.5, 0.0]
    """
    low = _LOWEST_HZ + np.abs(low_hz)
    high = np.clip(low + _NARROWEST_HZ + np.abs(band_hz), _LOWEST_HZ, _RATE / 2)
    half = _TAPS // 2
    time = 2 * np.pi * np.arange(-half, 0) / _RATE
    window = np.hamming(_TAPS)[:half]
    inner, outer = low * time, high * time
    even = (np.sin(outer) - np.sin(inner)) / (time / 2) * window
    odd = (np.cos(inner) - np.cos(outer)) / (time / 2) * window
    band = 2 * (high - low)
    made = [np.concatenate([even, band, even[:, ::-1]], axis=1), np.concatenate([odd, 0 * band, -odd[:, ::-1]], axis=1)]
    return np.concatenate([part / band for part in made])


class _Graph:
    """Nodes and constants under construction."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}

    def add(self, kind: str, inputs: list[str], output: str, *, domain: str = "", **settings: object) -> str:
        node = helper.make_node(kind, inputs, [output], output, domain=domain)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in settings.items())
        self.nodes.append(node)
        return output

    def constant(self, name: str, value: Array) -> str:
        self.constants[name] = value if value.dtype.kind != "f" else value.astype(np.float32)
        return name

    def normalised(self, rows: str, of: str, name: str) -> str:
        """Each channel less its mean over time, by its deviation."""
        parts = [self.constant(f"{name}_{part}", self.state[f"sincnet.{of}.{part}"]) for part in ("weight", "bias")]
        return self.add("InstanceNormalization", [rows, *parts], name, epsilon=_EPSILON)

    def convolved(self, rows: str, place: int) -> str:
        """A convolution, its rows' largest of three, normalised, and a leaky ReLU."""
        name = f"conv{place}"
        if place == 0:
            bank = filters(*(self.state[f"sincnet.conv1d.0.filterbank.{part}_hz_"] for part in ("low", "band")))
            weight = self.constant(f"{name}_weight", bank[:, None])
            rows = self.add("Conv", [rows, weight], f"{name}_out", strides=[_STRIDE])
            rows = self.add("Abs", [rows], f"{name}_heard")
        else:
            ends = [
                self.constant(f"{name}_{part}", self.state[f"sincnet.conv1d.{place}.{part}"])
                for part in ("weight", "bias")
            ]
            rows = self.add("Conv", [rows, *ends], f"{name}_heard")
        rows = self.add("MaxPool", [rows], f"{name}_pooled", kernel_shape=[_POOL], strides=[_POOL])
        rows = self.normalised(rows, f"norm1d.{place}", f"{name}_norm")
        return self.add("LeakyRelu", [rows], f"{name}_rows", alpha=_SLOPE)

    def recurrent(self, rows: str, layer: int, *, in_8_bits: bool) -> str:
        """A layer in both directions, (T, n, heard) -> (T, n, 256)."""
        name = f"lstm{layer}"
        suffixes = (f"l{layer}", f"l{layer}_reverse")
        stacked = [
            np.stack([_gates(self.state[f"lstm.weight_{kind}_{suffix}"]) for suffix in suffixes])
            for kind in ("ih", "hh")
        ]
        bias = np.stack(
            [
                np.concatenate([_gates(self.state[f"lstm.bias_{kind}_{suffix}"]) for kind in ("ih", "hh")])
                for suffix in suffixes
            ]
        )
        ends, tail = [], []
        for letter, weight in zip("WR", stacked, strict=True):
            if in_8_bits:
                step = np.maximum(np.abs(weight).max(axis=2), 1e-12) / _LARGEST
                codes = np.round(weight / step[:, :, None]).astype(np.int8).transpose(0, 2, 1)
                ends.append(self.constant(f"{name}_{letter}", np.ascontiguousarray(codes)))
                tail.append(self.constant(f"{name}_{letter}_step", step))
                tail.append(self.constant(f"{name}_{letter}_zero", np.zeros(step.shape, np.int8)))
            else:
                ends.append(self.constant(f"{name}_{letter}", weight))
        ends.append(self.constant(f"{name}_bias", bias))
        kind, domain = ("DynamicQuantizeLSTM", _MICROSOFT) if in_8_bits else ("LSTM", "")
        inputs = [rows, *ends, *([""] * 4 + tail if in_8_bits else [])]
        out = self.add(kind, inputs, f"{name}_out", domain=domain, hidden_size=_HIDDEN, direction="bidirectional")
        # (T, directions, n, 128) -> (T, n, 256)
        out = self.add("Transpose", [out], f"{name}_sides", perm=[0, 2, 1, 3])
        return self.add(
            "Reshape", [out, self.constant("both", np.array([0, 0, 2 * _HIDDEN], np.int64))], f"{name}_rows"
        )

    def linear(self, rows: str, of: str, name: str) -> str:
        weight = self.constant(f"{name}_weight", self.state[f"{of}.weight"].T)
        product = self.add("MatMul", [rows, weight], f"{name}_product")
        return self.add("Add", [product, self.constant(f"{name}_bias", self.state[f"{of}.bias"])], f"{name}_sum")


def _gates(rows: Float64) -> Float64:
    """torch has input, forget, cell and output one below the other, ONNX input, output, forget and cell."""
    first, forget, cell, output = np.split(rows, 4)
    return np.concatenate([first, output, forget, cell])


def graph(state: State, precision: str) -> bytes:
    """Sound float32 (n, samples) at 16 kHz -> probabilities of who speaks, (n, frames, 7), of :func:`read` tensors."""
    made = _Graph(state)
    rows = made.add("Unsqueeze", [INPUT, made.constant("channel", np.array([1], np.int64))], "one_channel")
    rows = made.normalised(rows, "wav_norm1d", "sound_norm")
    for place in range(3):
        rows = made.convolved(rows, place)
    rows = made.add("Transpose", [rows], "time_first", perm=[2, 0, 1])
    for layer in range(_LAYERS):
        rows = made.recurrent(rows, layer, in_8_bits=precision == "int8")
    for place in range(2):
        rows = made.add(
            "LeakyRelu", [made.linear(rows, f"linear.{place}", f"linear{place}")], f"linear{place}_rows", alpha=_SLOPE
        )
    rows = made.add("Softmax", [made.linear(rows, "classifier", "classifier")], "classes", axis=2)
    made.add("Transpose", [rows], OUTPUT, perm=[1, 0, 2])
    inner = helper.make_graph(
        made.nodes,
        "segmentation",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["recordings", "samples"])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["recordings", "frames", len(CLASSES)])],
        [numpy_helper.from_array(value, name) for name, value in made.constants.items()],
    )
    operations = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MICROSOFT, 1)]
    return serialise(helper.make_model(inner, opset_imports=operations, ir_version=8, producer_name="uvsdk"))
