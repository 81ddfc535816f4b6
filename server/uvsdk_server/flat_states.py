"""The algorithm's state as servers kept it before records nested: read by giving it today's shape."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_Record = tuple[str, Mapping[str, "str | _Record | None"]]
"""A record's name, and of each of its fields the flat one that it was, a record, or nothing."""

_MATRIX = {
    name: name for name in ("users", "vectors", "means", "samples", "last_round", "rounds", "refused", "started")
}
_ROWS: _Record = ("ClassMatrix", {**_MATRIX, "lists": None})
_LISTS: _Record = (
    "Lists",
    {"members": "members", "searched": "searched", "round_id": "looks", "share": "share", "recall": "recall"},
)
_COUNTS: _Record = (
    "Correlation",
    {
        "positives": "positives",
        "rows": "pair_rows",
        "columns": "pair_columns",
        "together": "pair_counts",
        "instances": "instances",
    },
)
_FLAT: Mapping[str, _Record] = {
    "ClassMatrix": _ROWS,
    "SpreadMatrix": ("ClassMatrix", {**_MATRIX, "lists": _LISTS}),
    "LabelMatrix": (
        "LabelMatrix",
        {"rows": _ROWS, "hashes": "hashes", "pointers": "pointers", "persons": "persons", "counts": _COUNTS},
    ),
    "Columns": (
        "Columns",
        {
            "rows": ("ClassMatrix", {**_MATRIX, "users": "names", "lists": None}),
            **{name: name for name in ("ids", "kinds", "momentum", "users", "holders", "held")},
        },
    ),
}


def nest(packed: bytes) -> bytes:
    """A packed state of flat records as one of nested records; any other as it is."""
    start = 8 + int.from_bytes(packed[4:8], "little")
    header = json.loads(packed[8:start])
    kind, flat = header["kind"], header["fields"]
    if kind not in _FLAT or flat.keys() & {"rows", "lists"}:
        return packed
    arrays, place = dict[str, bytes](), start
    for name, entry in flat.items():
        end = place + (np.dtype(entry["dtype"]).itemsize * math.prod(entry["shape"]) if "dtype" in entry else 0)
        arrays[name], place = packed[place:end], end
    buffers: list[bytes] = []
    head = json.dumps(_record(_FLAT[kind], flat, arrays, buffers), separators=(",", ":"), ensure_ascii=False).encode()
    return b"".join([packed[:4], len(head).to_bytes(4, "little"), head, *buffers])


def _record(
    record: _Record, flat: Mapping[str, Any], arrays: Mapping[str, bytes], buffers: list[bytes]
) -> dict[str, Any]:
    kind, names = record
    fields: dict[str, Any] = {}
    for name, former in names.items():
        if former is None or (former is _LISTS and flat["members"]["shape"][0] == 0):
            fields[name] = {"value": None}
        elif isinstance(former, str):
            fields[name] = flat[former]
            buffers.append(arrays[former])
        else:
            fields[name] = _record(former, flat, arrays, buffers)
    return {"kind": kind, "fields": fields}
