"""SFace as a bundle: a fixed face embedding that needs no torch, neither to make nor to run.

Source: Zhong et al., "SFace: Sigmoid-Constrained Hypersphere Loss for Robust Face Recognition", 2021; the OpenCV Zoo's
block-quantised file, whose weights are dequantised once, here, instead of at every start.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from uvsdk.bundle import Bundle
from uvsdk.bundle.manifest import Manifest
from uvsdk.errors import SettingsError, WeightsError
from uvsdk.training import weights as catalogue
from uvsdk.training.graphs import auxiliary, dequantise, parse, serialise

if TYPE_CHECKING:
    from onnx import ModelProto

DIMENSION = 128
SIZE = 112

Precision: TypeAlias = Literal["int8", "float32"]
"""``int8`` computes in 8-bit integers, in a third of the time of ``float32``, which computes as the file has it."""


def sface_bundle(*, weights: Path | None = None, download: bool = False, precision: Precision = "int8") -> Bundle:
    """Make the SFace bundle: views float32 (n, 3, 112, 112) RGB 0-255 -> z (n, 128); theta is empty.

    Args:
        weights: the ONNX file, where it is not the one the catalogue finds.
        download: whether missing weights may be fetched.
        precision: what the graph computes in. The two are different model versions: a template of one is none of the
            other.

    Raises:
        WeightsNotFoundError: the embedding or the detector is nowhere to be found.
        WeightsError: the file is not SFace's graph, or int8 was asked for other weights than those whose activations
            were measured.
        SettingsError: no such precision.
    """
    if precision not in ("int8", "float32"):
        raise SettingsError(f"precision is int8 or float32, got {precision!r}")
    path = catalogue.find("sface", path=weights, download=download)
    graph = float_graph(path) if precision == "float32" else _integer_graph(path)
    detectors, detector_sources = auxiliary("face", download=download)
    source = catalogue.CATALOGUE["sface"].source if weights is None else f"{path.name}, given by path"
    manifest = Manifest(
        "face",
        "sface",
        DIMENSION,
        {"size": SIZE, "template": "arcface"},
        (),
        (f"{source}; {precision}", *detector_sources),
    )
    return Bundle(manifest, np.empty(0, np.float32), {"embedding": graph, **detectors})


def float_graph(path: Path) -> bytes:
    """SFace's file as a graph of floats, ``views`` -> ``z``. Raises :class:`WeightsError` for another graph."""
    return serialise(_read(path))


def _integer_graph(path: Path) -> bytes:
    from uvsdk.training.graphs.sface.integer import integer_graph, shipped_ranges
    from uvsdk.training.graphs.sface.layers import fold

    model = _read(path)
    try:
        layers, projection = fold(model)
    except (ValueError, KeyError, IndexError) as error:
        raise WeightsError(f"{path} is not SFace's ONNX graph ({error})") from error
    ranges = shipped_ranges(layers)
    if hashlib.sha256(path.read_bytes()).hexdigest() != ranges.weights:
        raise WeightsError(
            f"the activations of {path} were never measured, only those of the SFace file on record; make the bundle "
            "with precision='float32'"
        )
    return serialise(integer_graph(layers, projection, ranges))


def _read(path: Path) -> ModelProto:
    model = parse(path.read_bytes(), str(path))
    try:
        dequantise(model)
        _rename(model)
    except (ValueError, IndexError) as error:
        raise WeightsError(f"{path} is not SFace's ONNX graph ({error})") from error
    return model


def _rename(model: ModelProto) -> None:
    """``data`` -> ``views``, ``fc1`` -> ``z``, and any number of views at a time."""
    graph = model.graph
    # The file lists its weights as inputs too, under their names from before quantisation.
    inputs = [value for value in graph.input if value.name == "data"]
    if len(inputs) != 1 or [value.name for value in graph.output] != ["fc1"]:
        raise ValueError("expected the input data and the output fc1")
    del graph.input[:]
    graph.input.extend(inputs)
    names = {"data": "views", "fc1": "z"}
    for node in graph.node:
        for ends in (node.input, node.output):
            for index, name in enumerate(ends):
                ends[index] = names.get(name, name)
    for value in (graph.input[0], graph.output[0]):
        value.name = names[value.name]
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
