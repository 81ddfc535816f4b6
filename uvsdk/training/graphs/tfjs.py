"""TensorFlow.js graph models as ONNX, without TensorFlow. Needs the ``onnx`` package, which the ``train`` extra brings.

A graph model is a JSON file (nodes of a TensorFlow graph after its converter fused what it could, and the list of its
weights) and a binary file of the weights, one after another. Only the operations of small convolutional classifiers
are read; any other is refused by name. TensorFlow's pictures are (batch, height, width, channels) and ONNX's
(batch, channels, height, width): the pictures are turned once at the input, and back before they are flattened, since
a dense layer's rows are in TensorFlow's order.

Source: tensorflow/tfjs, tfjs-converter ``operation_mapper.ts`` and ``graph_executor.ts``; weights by
``tfjs-core/src/io/io_utils.ts``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from uvsdk.arrays import Array
from uvsdk.errors import TrainingUnavailableError, WeightsError

try:
    from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper
except ImportError as error:
    raise TrainingUnavailableError("making a graph needs onnx: pip install 'uvsdk[train]'") from error

# The newest of both that every onnxruntime of the last years reads.
_OPSET = 17
_IR_VERSION = 8
_DTYPES = {"float32": "<f4", "int32": "<i4"}
_PACKED = {"float16": "<f2", "uint8": "|u1", "uint16": "<u2"}
_FUSED = {b"Relu": "Relu", b"Relu6": "Relu6", b"Sigmoid": "Sigmoid"}
# Elementwise operations that are the same in both, whatever the order of the axes.
_SAME = {"Relu": "Relu", "Sigmoid": "Sigmoid", "Identity": "Identity", "Softmax": "Softmax"}
_TWO_SIDED = {"Mul": "Mul", "Add": "Add", "AddV2": "Add", "BiasAdd": "Add", "Sub": "Sub"}


def to_onnx(topology: bytes, weights: bytes, *, source: str) -> bytes:
    """The graph model as an ONNX graph with one input ``x`` and one output ``y``.

    Args:
        topology: ``model.json``.
        weights: the one file of weights that it names.
        source: what errors call it.

    Raises:
        WeightsError: not a graph model, the two files do not fit together, or an operation that is not read.
    """
    try:
        record = json.loads(topology)
        constants = _constants(record["weightsManifest"], weights, source)
        return _Translation(source, constants).graph(record)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise WeightsError(f"{source} is not a TensorFlow.js graph model that can be read: {error!r}") from error


def _constants(manifest: Sequence[Mapping[str, object]], body: bytes, source: str) -> dict[str, Array]:
    """The weights by name; packed ones (half precision, or integers with a scale) come as float32."""
    found: dict[str, Array] = {}
    start = 0
    for group in manifest:
        entries = group["weights"]
        if not isinstance(entries, list):
            raise TypeError("weights is not a list")
        for entry in entries:
            shape, packing = tuple(int(side) for side in entry["shape"]), entry.get("quantization")
            dtype: np.dtype[np.generic] = np.dtype(_PACKED[packing["dtype"]] if packing else _DTYPES[entry["dtype"]])
            count = int(np.prod(shape, dtype=np.int64))
            values: Array = np.frombuffer(body, dtype, count, start).reshape(shape)
            if packing:
                unpacked = values.astype(np.float32)
                if "scale" in packing:
                    unpacked = unpacked * np.float32(packing["scale"]) + np.float32(packing["min"])
                values = unpacked
            found[str(entry["name"])] = values
            start += count * dtype.itemsize
    if start != len(body):
        raise WeightsError(f"{source} lists weights of {start} bytes, the file has {len(body)}; fetch both again")
    return found


@dataclass(slots=True)
class _Translation:
    """One graph on its way from TensorFlow to ONNX.

    Args:
        source: what errors call it.
        constants: by TensorFlow's name.
    """

    source: str
    constants: dict[str, Array]
    nodes: list[NodeProto] = field(default_factory=list)
    initialisers: dict[str, Array] = field(default_factory=dict)
    # What is a picture, and so lies with its channels before its sides here.
    pictures: set[str] = field(default_factory=set)

    def graph(self, record: Mapping[str, object]) -> bytes:
        topology, signature = _object(record["modelTopology"]), _object(record["signature"])
        inputs, outputs = _object(signature["inputs"]), _object(signature["outputs"])
        if len(inputs) != 1 or len(outputs) != 1:
            raise WeightsError(f"{self.source} has {len(inputs)} inputs and {len(outputs)} outputs, expected one each")
        given = next(iter(inputs))
        sides = _shape(inputs[given])
        for node in _list(topology["node"]):
            self._node(_object(node), given)
        given_back = next(iter(outputs.values()))
        self._add("Identity", [str(_object(given_back)["name"]).partition(":")[0]], "y")
        return self._finish(sides, _shape(given_back)[-1])

    def _finish(self, sides: Sequence[int], width: int) -> bytes:
        batch: list[str | int | None] = ["batch"]
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*batch, *sides[1:]])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*batch, width])],
            [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in self.initialisers.items()],
        )
        model: ModelProto = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION, producer_name="uvsdk"
        )
        try:
            checker.check_model(model, full_check=True)
        except Exception as error:  # onnx's checker and its shape inference share no base class
            raise WeightsError(f"{self.source} makes no valid graph: {error}") from error
        written: bytes = model.SerializeToString(deterministic=True)
        return written

    def _node(self, node: Mapping[str, object], given: str) -> None:
        name, kind = str(node["name"]), str(node["op"])
        inputs = [str(entry).partition(":")[0] for entry in _list(node.get("input", []))]
        attributes = _object(node.get("attr", {}))
        if kind == "Const":
            if name not in self.constants:
                raise WeightsError(f"{self.source} lacks the weights of {name}; fetch both files again")
            return
        if kind == "Placeholder":
            if name != given:
                raise WeightsError(f"{self.source} takes {name} beside {given}, expected one input")
            self._add("Transpose", ["x"], name, perm=[0, 3, 1, 2])
            self.pictures.add(name)
            return
        translate = self._translators().get(kind)
        if translate is None:
            raise WeightsError(f"{self.source} uses the operation {kind} ({name}), which is not translated")
        translate(name, kind, inputs, attributes)

    def _translators(self) -> dict[str, Callable[[str, str, list[str], Mapping[str, object]], None]]:
        return {
            "_FusedConv2D": self._convolution,
            "Conv2D": self._convolution,
            "_FusedMatMul": self._dense,
            "MatMul": self._dense,
            "MaxPool": self._pooling,
            "Reshape": self._flatten,
            **dict.fromkeys(_SAME, self._elementwise),
            **dict.fromkeys(_TWO_SIDED, self._two_sided),
        }

    def _convolution(self, name: str, kind: str, inputs: list[str], attributes: Mapping[str, object]) -> None:
        picture, filters, *rest = inputs
        kernel = np.asarray(self.constants[filters], np.float32)
        self.initialisers[filters] = kernel.transpose(3, 2, 0, 1)  # (h, w, in, out) -> (out, in, h, w)
        for bias in rest[:1]:
            self.initialisers[bias] = self.constants[bias]
        self._after_fused(
            "Conv",
            [picture, filters, *rest[:1]],
            name,
            attributes,
            strides=_window(attributes, "strides"),
            dilations=_window(attributes, "dilations"),
            auto_pad=_padding(attributes),
            kernel_shape=list(kernel.shape[:2]),
        )
        self.pictures.add(name)

    def _dense(self, name: str, kind: str, inputs: list[str], attributes: Mapping[str, object]) -> None:
        rows, matrix, *rest = inputs
        for key in ("transpose_a", "transpose_b"):
            if _object(attributes.get(key, {})).get("b"):
                raise WeightsError(f"{self.source} transposes in {name}, which is not translated")
        for constant in (matrix, *rest[:1]):
            self.initialisers[constant] = self.constants[constant]
        self._after_fused("Gemm", [rows, matrix, *rest[:1]], name, attributes)

    def _pooling(self, name: str, kind: str, inputs: list[str], attributes: Mapping[str, object]) -> None:
        self._add(
            "MaxPool",
            inputs[:1],
            name,
            kernel_shape=_window(attributes, "ksize"),
            strides=_window(attributes, "strides"),
            auto_pad=_padding(attributes),
        )
        self.pictures.add(name)

    def _flatten(self, name: str, kind: str, inputs: list[str], attributes: Mapping[str, object]) -> None:
        rows, shape = inputs
        wanted = self.constants[shape].tolist()
        if len(wanted) != 2 or wanted[0] != -1:
            raise WeightsError(f"{self.source} reshapes to {wanted} in {name}, only flattening is translated")
        if rows in self.pictures:
            self._add("Transpose", [rows], f"{name}/turned", perm=[0, 2, 3, 1])
            rows = f"{name}/turned"
        self._add("Flatten", [rows], name, axis=1)

    def _elementwise(self, name: str, kind: str, inputs: list[str], attributes: Mapping[str, object]) -> None:
        if kind == "Softmax" and inputs[0] in self.pictures:
            raise WeightsError(f"{self.source} takes a softmax over a picture in {name}, which is not translated")
        self._add(_SAME[kind], inputs[:1], name)
        if inputs[0] in self.pictures:
            self.pictures.add(name)

    def _two_sided(self, name: str, kind: str, inputs: list[str], attributes: Mapping[str, object]) -> None:
        """An operation of two, of which the second may be a constant with one value per channel."""
        first, second = inputs
        if second in self.constants:
            value = np.asarray(self.constants[second], np.float32)
            if first in self.pictures and value.ndim == 1:
                value = value.reshape(-1, 1, 1)
            self.initialisers[second] = value
        elif (first in self.pictures) != (second in self.pictures):
            raise WeightsError(f"{self.source} mixes a picture and a row in {name}, which is not translated")
        self._add(_TWO_SIDED[kind], [first, second], name)
        if first in self.pictures:
            self.pictures.add(name)

    def _after_fused(
        self, kind: str, inputs: list[str], name: str, attributes: Mapping[str, object], **settings: list[int] | str
    ) -> None:
        """An operation and what the converter fused behind it: the bias is an input, an activation a node."""
        fused = [base64.b64decode(str(word)) for word in _list(_object(_fused(attributes)).get("s", []))]
        activations = [word for word in fused if word != b"BiasAdd"]
        if len(activations) > 1 or any(word not in _FUSED for word in activations):
            raise WeightsError(f"{self.source} fuses {fused} in {name}, which is not translated")
        inner = f"{name}/before" if activations else name
        self._add(kind, inputs, inner, **settings)
        if activations == [b"Relu6"]:
            limits = (f"{name}/low", f"{name}/high")
            self.initialisers.update({limits[0]: np.array(0, np.float32), limits[1]: np.array(6, np.float32)})
            self._add("Clip", [inner, *limits], name)
        elif activations:
            self._add(_FUSED[activations[0]], [inner], name)

    def _add(self, kind: str, inputs: Sequence[str], output: str, **settings: list[int] | int | str) -> None:
        node: NodeProto = helper.make_node(kind, list(inputs), [output])
        node.attribute.extend(helper.make_attribute(key, value) for key, value in settings.items())
        self.nodes.append(node)


def _shape(tensor: object) -> list[int]:
    """The sides that a signature gives a tensor; -1 where any will do."""
    return [int(str(_object(side)["size"])) for side in _list(_object(_object(tensor)["tensorShape"])["dim"])]


def _fused(attributes: Mapping[str, object]) -> object:
    return _object(attributes.get("fused_ops", {})).get("list", {})


def _window(attributes: Mapping[str, object], key: str) -> list[int]:
    """The two middle entries of a window over (batch, height, width, channels)."""
    listed = _list(_object(_object(attributes.get(key, {})).get("list", {})).get("i", ["1", "1", "1", "1"]))
    sides = [int(str(side)) for side in listed]
    if len(sides) != 4 or sides[0] != 1 or sides[3] != 1:
        raise WeightsError(f"a window {sides} over batch or channels is not translated")
    return sides[1:3]


def _padding(attributes: Mapping[str, object]) -> str:
    if _text(attributes.get("data_format"), b"NHWC") != b"NHWC":
        raise WeightsError("a graph model with channels before the sides is not translated")
    # TensorFlow puts the odd pixel of SAME behind, as ONNX's SAME_UPPER does.
    return {b"VALID": "VALID", b"SAME": "SAME_UPPER"}[_text(attributes["padding"], b"")]


def _text(attribute: object, default: bytes) -> bytes:
    return base64.b64decode(str(_object(attribute)["s"])) if attribute is not None else default


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{type(value).__name__} where an object belongs")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a list belongs")
    return value
