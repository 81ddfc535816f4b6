"""The face presentation attack detector that can be had from a registry, as a bundle carries it.

``antispoof`` of @vladmandic/human (MIT): three convolutions and two dense layers, 0.4 M weights. Its file names
kaggle.com/anku420/fake-face-detection as its origin; what it was trained on is not stated, and its publisher calls it
"quite trivial" (vladmandic/human #302, where attacks scored above faces). Only bona fide faces were at hand when it
was added here, so how many attacks it lets pass is **not known**: ``docs/presentation.md``.
"""

from __future__ import annotations

from uvsdk.bundle.presentation_graph import PresentationGraph
from uvsdk.errors import UnknownNameError
from uvsdk.training import weights
from uvsdk.training.graphs.tfjs import to_onnx

NAMES = ("antispoof",)
"""What :func:`presentation_graph` can make."""

# Chosen on 404 LFW photos (every other one of fold 1): the tight box refuses fewer bona fide faces than the one
# enlarged 1.4 times that the publisher's library cuts, and at 0.45 it refuses 1 % of them.
_ENLARGEMENT = 1.0
_THRESHOLD = 0.45


def presentation_graph(name: str = "antispoof", *, download: bool = False) -> PresentationGraph:
    """The classifier of that name; needs the ``train`` extra, since its file is a TensorFlow.js model.

    Args:
        name: one of :data:`NAMES`.
        download: whether its weights may be fetched.

    Raises:
        UnknownNameError: no classifier of that name.
        WeightsNotFoundError: its weights are nowhere to be found.
        WeightsError: they are not what they should be.
    """
    if name not in NAMES:
        raise UnknownNameError(f"no presentation attack detector {name!r}; there are {', '.join(NAMES)}")
    topology = weights.find(f"{name}-topology", download=download)
    body = weights.find(name, download=download)
    graph = to_onnx(topology.read_bytes(), body.read_bytes(), source=name)
    return PresentationGraph(
        detector=f"face-{name}",
        graph=graph,
        size=128,
        enlargement=_ENLARGEMENT,
        output=0,
        threshold=_THRESHOLD,
        source=f"{weights.CATALOGUE[name].source}; converted to ONNX; how many attacks it lets pass is not known",
    )
