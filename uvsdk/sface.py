"""SFace as a bundle: a fixed face embedding that needs no torch, neither to make nor to run.

Source: Zhong et al., "SFace: Sigmoid-Constrained Hypersphere Loss for Robust Face Recognition", 2021; the OpenCV Zoo's
block-quantised file. Dequantising its weights once, here, instead of at every start halves the time of a face.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uvsdk import weights as catalogue
from uvsdk.bundle import Bundle, Manifest
from uvsdk.errors import WeightsError
from uvsdk.graphs import auxiliary, dequantise, parse, serialise

if TYPE_CHECKING:
    from onnx import ModelProto

DIMENSION = 128
SIZE = 112


def sface_bundle(*, weights: Path | None = None, download: bool = False) -> Bundle:
    """Make the SFace bundle: views float32 (n, 3, 112, 112) RGB 0-255 -> z (n, 128); theta is empty.

    Args:
        weights: the ONNX file, where it is not the one the catalogue finds.
        download: whether missing weights may be fetched.

    Raises:
        WeightsNotFoundError: the embedding or the detector is nowhere to be found.
        WeightsError: the file is not SFace's graph.
    """
    path = catalogue.find("sface", path=weights, download=download)
    graph = _prepare(path)
    detectors, detector_sources = auxiliary("face", download=download)
    source = catalogue.CATALOGUE["sface"].source if weights is None else f"{path.name}, given by path"
    manifest = Manifest(
        "face",
        "sface",
        DIMENSION,
        {"size": SIZE, "template": "arcface"},
        (),
        (f"{source}; dequantised", *detector_sources),
    )
    return Bundle(manifest, np.empty(0, np.float32), {"embedding": graph, **detectors})


def _prepare(path: Path) -> bytes:
    model = parse(path.read_bytes(), str(path))
    try:
        dequantise(model)
        _rename(model)
    except (ValueError, IndexError) as error:
        raise WeightsError(f"{path} is not SFace's ONNX graph ({error})") from error
    return serialise(model)


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
