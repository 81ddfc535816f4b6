"""From what a person hands in to what a model is fed: one path for training, the server and the edge.

A modality decodes a sample, refuses what cannot be used with a typed error, measures its quality, and reduces it
to features. numpy, Pillow, soundfile and soxr do the work; the neural parts (speech and face detection) are ONNX
graphs that the model bundle carries.
"""

from __future__ import annotations

from uvsdk.errors import UnknownNameError
from uvsdk.modality.contract import Captured, Described, Graphs, Modality, Prepared, Preprocessing, Session
from uvsdk.modality.face import Face
from uvsdk.modality.handwriting import Handwriting
from uvsdk.modality.sample import Capture, FacesRule, Limits, Sample
from uvsdk.modality.voice import Voice

__all__ = [
    "Capture",
    "Captured",
    "Described",
    "FacesRule",
    "Graphs",
    "Limits",
    "Modality",
    "Prepared",
    "Preprocessing",
    "Sample",
    "Session",
    "get",
    "names",
]

_MODALITIES: dict[str, Modality] = {modality.name: modality for modality in (Face(), Handwriting(), Voice())}


def names() -> tuple[str, ...]:
    """Every modality's name, sorted.

    >>> names()
    ('face', 'handwriting', 'voice')
    """
    return tuple(sorted(_MODALITIES))


def get(name: str) -> Modality:
    """The modality of that name. Raises :class:`uvsdk.errors.UnknownNameError`."""
    try:
        return _MODALITIES[name]
    except KeyError:
        raise UnknownNameError(f"no modality {name!r}; there are {', '.join(names())}") from None
