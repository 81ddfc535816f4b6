"""A network that is published as one ONNX file, as a bundle: what the catalogue says of it is all it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from uvsdk.bundle import Bundle
from uvsdk.bundle.manifest import Manifest
from uvsdk.errors import UnknownNameError, WeightsError
from uvsdk.training import weights as catalogue
from uvsdk.training.catalogue import Network
from uvsdk.training.graphs import auxiliary, parse, serialise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto, ValueInfoProto

    from uvsdk.records.codec import Scalar

# InsightFace's own loader (ArcFaceONNX) looks at as many of the first operations for a subtraction and a product.
_FIRST_OPERATIONS = 8
_GREY = 127.5


def network_bundle(
    name: str,
    *,
    weights: Path | None = None,
    download: bool = False,
    preprocessing: Mapping[str, Scalar] | None = None,
) -> Bundle:
    """Make a bundle, views -> z (n, dimension), of which nothing is trained: theta is empty.

    Args:
        name: an entry of the catalogue with a :class:`uvsdk.training.catalogue.Network`.
        weights: the ONNX file, where it is not the one the catalogue finds.
        download: whether missing weights may be fetched.
        preprocessing: settings to change.

    Raises:
        UnknownNameError: no such entry, or it is no network by itself.
        WeightsNotFoundError: the file or the modality's detector is nowhere to be found.
        WeightsError: the file is not a graph of that input and output.
        BundleError: settings that make no sense.
    """
    entry = catalogue.CATALOGUE.get(name)
    if entry is None or entry.network is None:
        known = [other.name for other in catalogue.CATALOGUE.values() if other.network is not None]
        raise UnknownNameError(f"no network {name!r} that is one file; there are {', '.join(known)}")
    network = entry.network
    path = catalogue.find(name, path=weights, download=download)
    graph = adapted(path.read_bytes(), network, str(path))
    detectors, detector_sources = auxiliary(network.modality, download=download)
    source = entry.source if weights is None else f"{path.name}, given by path"
    settings = {**network.preprocessing, **(preprocessing or {})}
    manifest = Manifest(network.modality, name, network.dimension, settings, (), (source, *detector_sources))
    return Bundle(manifest, np.empty(0, np.float32), {"embedding": graph, **detectors})


def adapted(graph: bytes, network: Network, source: str) -> bytes:
    """The graph as a bundle wants it: ``views`` -> ``z``, any number of views at a time.

    Raises:
        WeightsError: not ONNX, not one input and one output, or of other shapes or types than ``network`` says.
    """
    model = parse(graph, source)
    inner = model.graph
    constants = {tensor.name for tensor in inner.initializer}
    # Older exporters list a graph's weights among its inputs.
    inputs = [value for value in inner.input if value.name not in constants]
    if len(inputs) != 1 or len(inner.output) != 1:
        raise WeightsError(f"{source} has {len(inputs)} inputs and {len(inner.output)} outputs, expected one of each")
    _check(inputs[0], network.input, f"{source}: the input")
    _check(inner.output[0], (network.dimension,), f"{source}: the output")
    normalises = {"Sub", "Mul"} <= {node.op_type for node in inner.node[:_FIRST_OPERATIONS]}
    entry, last = inputs[0].name, inner.output[0].name
    del inner.input[:]
    inner.input.append(_free(inputs[0], "views"))
    if network.modality == "face" and not normalises:
        _bring_to_unit(model, entry)
    else:
        inner.node.insert(0, helper.make_node("Identity", ["views"], [entry]))
    # Shapes inferred for a batch of one would contradict any other.
    del inner.value_info[:]
    inner.node.append(helper.make_node("Identity", [last], ["z"]))
    declared = _free(inner.output[0], "z")
    del inner.output[:]
    inner.output.append(declared)
    return serialise(model)


def _bring_to_unit(model: ModelProto, entry: str) -> None:
    """0 to 255 to [-1, 1] before ``entry``: (x - 127.5) / 127.5."""
    grey = "uvsdk_grey"
    model.graph.initializer.append(numpy_helper.from_array(np.array(_GREY, np.float32), grey))
    model.graph.node.insert(0, helper.make_node("Sub", ["views", grey], ["uvsdk_centred"]))
    model.graph.node.insert(1, helper.make_node("Div", ["uvsdk_centred", grey], [entry]))


def _check(value: ValueInfoProto, shape: tuple[int | None, ...], what: str) -> None:
    """Whether a value may be float32 (n, \\*shape); an axis that the file leaves open fits any length."""
    tensor = value.type.tensor_type
    declared = [axis.dim_value if axis.HasField("dim_value") else None for axis in tensor.shape.dim]
    fits = len(declared) == 1 + len(shape) and all(
        have is None or want is None or have == want for have, want in zip(declared[1:], shape, strict=True)
    )
    if tensor.elem_type != TensorProto.FLOAT or not fits:
        raise WeightsError(f"{what} {value.name} is {declared}, expected float32 (n, {', '.join(map(str, shape))})")


def _free(value: ValueInfoProto, name: str) -> ValueInfoProto:
    """The same under another name, with a first axis of any length."""
    free: ValueInfoProto = type(value)()
    free.CopyFrom(value)
    free.name = name
    free.type.tensor_type.shape.dim[0].dim_param = "batch"
    return free
