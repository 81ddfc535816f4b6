"""What a model bundle says about itself, as a record and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from uvsdk.errors import BundleError
from uvsdk.records.codec import Scalar
from uvsdk.records.transfer import reduce_to_fields

FORMAT = 1

PARTS = ("all", "block", "head")
"""What of a trunk is trained: everything; its last block of layers and its head; its head, the last layer, alone."""

CENTRED = "centred"
"""What the name of a backbone ends in, after a plus, whose head's bias takes a domain's mean off."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One trainable tensor: its name in the graph and its shape."""

    name: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.name or any(side < 1 for side in self.shape):
            raise BundleError(f"a parameter needs a name and positive sides, got {self.name!r} {self.shape}")

    @property
    def size(self) -> int:
        """Number of float32 values."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle holds.

    Args:
        modality: its name, e.g. ``voice`` or ``face``.
        backbone: registry name of the trunk.
        dimension: d, the length of an embedding.
        preprocessing: the settings under which samples become views; read by the modality.
        parameters: the trainable tensors in the order in which theta holds them; empty for a fixed model.
        sources: where the weights come from and under which licence, in words.
        train: what of the backbone ``parameters`` are, one of :data:`PARTS`; the rest is
            constants of the graph.
    """

    modality: str
    backbone: str
    dimension: int
    preprocessing: Mapping[str, Scalar]
    parameters: tuple[Parameter, ...]
    sources: tuple[str, ...]
    train: str = "all"

    def __post_init__(self) -> None:
        if not self.modality or not self.backbone:
            raise BundleError("a manifest names its modality and its backbone")
        if self.dimension < 1:
            raise BundleError(f"an embedding has at least one dimension, got {self.dimension}")
        if self.train not in PARTS:
            raise BundleError(f"the manifest trains {self.train!r}, which is not one of {PARTS}; is the bundle newer?")
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) != len(names):
            raise BundleError("two parameters share a name")
        object.__setattr__(self, "preprocessing", MappingProxyType(dict(self.preprocessing)))

    __reduce__ = reduce_to_fields

    @property
    def size(self) -> int:
        """P, the number of trainable float32 values."""
        return sum(parameter.size for parameter in self.parameters)


def parse(body: bytes) -> dict[str, object]:
    """Read ``manifest.json``. Raises :class:`BundleError` where it is not of this format."""
    try:
        record = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BundleError("manifest.json is not JSON") from error
    if not isinstance(record, dict):
        raise BundleError("manifest.json is not an object")
    if record.get("format") != FORMAT:
        raise BundleError(f"bundle format {record.get('format')!r}, this version of uvsdk reads format {FORMAT}")
    return record


def encode(manifest: Manifest) -> dict[str, object]:
    """The manifest as a JSON object; ``train`` is left out where it is ``all``, as it was before there was a choice."""
    return {
        "modality": manifest.modality,
        "backbone": manifest.backbone,
        "dimension": manifest.dimension,
        "preprocessing": dict(manifest.preprocessing),
        "parameters": [[parameter.name, list(parameter.shape)] for parameter in manifest.parameters],
        "sources": list(manifest.sources),
        **({} if manifest.train == "all" else {"train": manifest.train}),
    }


def decode(record: Mapping[str, object]) -> Manifest:
    """The inverse of :func:`encode`. Raises :class:`BundleError`, or ``KeyError`` where a field is missing."""
    return Manifest(
        _text(record["modality"]),
        _text(record["backbone"]),
        _whole(record["dimension"]),
        {_text(key): _scalar(value) for key, value in object_of(record["preprocessing"]).items()},
        tuple(_parameter(entry) for entry in _list(record["parameters"])),
        tuple(_text(entry) for entry in _list(record["sources"])),
        _text(record.get("train", "all")),
    )


def _parameter(entry: object) -> Parameter:
    name, shape = _list(entry)
    return Parameter(_text(name), tuple(_whole(side) for side in _list(shape)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BundleError(f"the manifest has {type(value).__name__} where text belongs")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BundleError(f"the manifest has {type(value).__name__} where a whole number belongs")
    return value


def _scalar(value: object) -> Scalar:
    if value is not None and not isinstance(value, str | int | float | bool):
        raise BundleError(f"the manifest has {type(value).__name__} where a scalar belongs")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise BundleError(f"the manifest has {type(value).__name__} where a list belongs")
    return value


def object_of(value: object) -> dict[str, object]:
    """``value``, which must be a JSON object. Raises :class:`BundleError`."""
    if not isinstance(value, dict):
        raise BundleError(f"the manifest has {type(value).__name__} where an object belongs")
    return value
