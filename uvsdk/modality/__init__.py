"""From what a person hands in to what a model is fed: one path for training, the server and the edge.

A modality decodes a sample, refuses what cannot be used with a typed error, measures its quality, and reduces it
to features. numpy, Pillow, soundfile and soxr do the work; the neural parts (speech and face detection) are ONNX
graphs that the model bundle carries. Each is a folder here, and its folder, its name and its name in manifests are
one word.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from uvsdk.errors import UnknownNameError
from uvsdk.modality.contract import Captured, Described, Graphs, Modality, Prepared, Preprocessing, Session
from uvsdk.modality.sample import Capture, FacesRule, Limits, Sample

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


def names() -> tuple[str, ...]:
    """Every modality's name, sorted.

    >>> "voice" in names()
    True
    """
    return _names(tuple(__path__))


def get(name: str) -> Modality:
    """The modality of that name. Raises :class:`uvsdk.errors.UnknownNameError`."""
    if name not in names():
        raise UnknownNameError(f"no modality {name!r}; there are {', '.join(names())}")
    modality: Modality = importlib.import_module(f"{__name__}.{name}").MODALITY
    return modality


@cache
def _names(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folders) if module.ispkg))
