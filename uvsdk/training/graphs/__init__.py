"""ONNX graphs as a bundle wants them. Needs the ``onnx`` package, which the ``train`` extra brings."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence

import numpy as np

from uvsdk import modality
from uvsdk.arrays import Array, Float32
from uvsdk.bundle.external_data import external_tensors
from uvsdk.bundle.manifest import Parameter
from uvsdk.errors import BundleError, TrainingUnavailableError, WeightsError
from uvsdk.training import weights

try:
    import onnx
    from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
except ImportError as error:
    raise TrainingUnavailableError("making a bundle needs onnx: pip install 'uvsdk[train]'") from error


def parse(graph: bytes, source: str) -> ModelProto:
    """Read a graph. Raises :class:`WeightsError` naming ``source`` where the bytes are not ONNX.

    A graph that takes tensors from other files is refused too: which files these are would be for it to say.
    """
    try:
        model = onnx.load_from_string(graph)
    except Exception as error:  # protobuf's DecodeError, whose package has no types
        raise WeightsError(f"{source} is not an ONNX graph") from error
    if external_tensors(graph):
        raise WeightsError(f"{source} keeps tensors in other files, which is not supported")
    return model


def serialise(model: ModelProto) -> bytes:
    """Deterministic bytes without the exporter's stack traces and paths."""
    for node in model.graph.node:
        node.ClearField("doc_string")
    written: bytes = model.SerializeToString(deterministic=True)
    return written


def auxiliary(kind: str, *, download: bool = False) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The graphs beside its own that a bundle of the modality ``kind`` carries, and where they come from.

    Raises:
        UnknownNameError: no such modality.
        WeightsNotFoundError: a detector is nowhere to be found.
    """
    graphs, sources = {}, []
    for name, graph in modality.get(kind).graphs.items():
        if graph.file.endswith(".onnx"):
            graphs[name] = (importlib.resources.files(f"{modality.__name__}.{kind}") / graph.file).read_bytes()
        else:
            found = weights.find(graph.file, download=download).read_bytes()
            graphs[name] = _MADE[graph.file](found) if graph.file in _MADE else found
        sources.append(graph.source or weights.CATALOGUE[graph.file].source)
    return graphs, tuple(sources)


def with_any_image_size(graph: bytes) -> bytes:
    """YuNet for images of any size, dequantised: its file declares 640 x 640, though every operation scales.

    Raises:
        WeightsError: the file is not such a graph.
    """
    model = parse(graph, "the face detector's file")
    try:
        dequantise(model)
        sides = model.graph.input[0].type.tensor_type.shape.dim
        sides[2].dim_param, sides[3].dim_param = "height", "width"
        for output in model.graph.output:
            output.type.tensor_type.shape.dim[1].dim_param = f"anchors_{output.name}"
    except (IndexError, ValueError) as error:
        raise WeightsError("the face detector's file is not YuNet's graph") from error
    return serialise(model)


def dequantise(model: ModelProto) -> None:
    """Replace every dequantisation (and reshape) of constants by its result, in place.

    The files on record are quantised in blocks, which onnxruntime undoes at every start, and some releases refuse
    where a tensor is one block. Shapes inferred for inner values are dropped.

    Raises:
        ValueError: a quantisation that is not in blocks.
    """
    graph = model.graph
    constants: dict[str, Array] = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    kept: list[NodeProto] = []
    for node in graph.node:
        operands = [constants[name] for name in node.input if name in constants]
        if len(operands) < len(node.input) or node.op_type not in ("DequantizeLinear", "Reshape"):
            kept.append(node)
        elif node.op_type == "Reshape":
            constants[node.output[0]] = operands[0].reshape([int(side) for side in operands[1].tolist()])
        else:
            constants[node.output[0]] = _dequantised(node, operands)
    used = {name for node in kept for name in node.input}
    del graph.node[:]
    graph.node.extend(kept)
    del graph.initializer[:]
    graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items() if name in used
    )
    del graph.value_info[:]


def _dequantised(node: NodeProto, operands: Sequence[Array]) -> Float32:
    """ONNX DequantizeLinear-21: (x - zero point) * scale, where one scale covers ``block_size`` entries of an axis."""
    settings = {attribute.name: int(attribute.i) for attribute in node.attribute}
    axis, block = settings.get("axis", 1), settings.get("block_size", 0)
    quantised, scale, zero = operands
    if block == 0 or quantised.ndim != scale.ndim:
        raise ValueError(f"{node.name} is not quantised in blocks")
    entries = np.arange(quantised.shape[axis])
    wide_scale = np.repeat(scale, block, axis).take(entries, axis).astype(np.float32)
    wide_zero = np.repeat(zero, block, axis).take(entries, axis).astype(np.int32)
    return np.asarray((quantised.astype(np.int32) - wide_zero) * wide_scale, np.float32)


def externalise(graph: bytes, parameters: Sequence[Parameter], *, location: str = "theta.f32") -> bytes:
    """Take the trainable tensors out of the graph: they point into ``location`` in the order of ``parameters``.

    Raises:
        BundleError: the graph lacks one of the parameters, or holds it in another shape or type.
    """
    model = parse(graph, "the exported graph")
    initialisers = {initialiser.name: initialiser for initialiser in model.graph.initializer}
    offset = 0
    for parameter in parameters:
        tensor = initialisers.get(parameter.name)
        if tensor is None or tuple(tensor.dims) != parameter.shape or tensor.data_type != TensorProto.FLOAT:
            raise BundleError(f"the exported graph does not hold {parameter.name} as float32 {parameter.shape}")
        _point_into(tensor, location, offset, 4 * parameter.size)
        offset += 4 * parameter.size
    return serialise(model)


def _point_into(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


# What a file of the catalogue becomes in a bundle, where it does not go in as it is.
_MADE = {"yunet": with_any_image_size}
