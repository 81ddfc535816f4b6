"""What every byte of a vector means: a second reader of the formats, which shares nothing with the first.

It knows the layouts from their descriptions (:mod:`uvsdk.records.codec`, :mod:`uvsdk.templates.template`,
:mod:`uvsdk.privacy.sealing`) and takes no code of theirs, so that the text it writes is evidence.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALED = (b"UVR1", b"UVD1")
_TEMPLATES = (b"UVT1", b"UVT2", b"UVT3")
_SHOWN = 12


@dataclass(frozen=True)
class Span:
    """Some bytes of a vector: where they begin, how many they are, what they are and what they say."""

    offset: int
    length: int
    name: str
    value: str


def annotated(data: bytes, key: bytes) -> str:
    """One line a field: offset, length, name, value; what was encrypted with ``key`` follows with offsets of its own.

    >>> header = b'{"kind":"A","fields":{"n":{"value":7}}}'
    >>> print(annotated(b"UVM1" + struct.pack("<I", len(header)) + header, b""))
          0      4  magic          UVM1
          4      4  header length  39
          8     39  header         {"kind":"A","fields":{"n":{"value":7}}}
         43      1  n              7
    <BLANKLINE>
    """
    spans, plain = _outside(data, key)
    _check(spans, len(data))
    text = _table(spans)
    if plain is not None:
        inside = record(plain)
        _check(inside, len(plain))
        text += "  decrypted:\n" + _table(inside)
    return text


def body(data: bytes, key: bytes) -> bytes:
    """The packed record in a vector, without what stands around it."""
    plain = _outside(data, key)[1]
    if plain is not None:
        return plain
    return data[data.index(b"UVM1") :]


def record(data: bytes, offset: int = 0, path: str = "") -> list[Span]:
    """A record as the codec packs it, from ``offset`` of a vector on."""
    (length,) = struct.unpack_from("<I", data, 4)
    header = data[8 : 8 + length]
    tree = json.loads(header)
    assert _spelled(tree) == header, "the header is not canonical JSON"
    spans = [
        Span(offset, 4, path + "magic", data[:4].decode()),
        Span(offset + 4, 4, path + "header length", str(length)),
        Span(offset + 8, length, path + "header", header.decode()),
    ]
    walk = _Walk(data, offset, 8 + length)
    walk.record(tree, 8, path)
    assert walk.place == len(data), "bytes that no field names"
    return spans + walk.spans


class _Walk:
    """Through the fields of a header, and with them through the bytes of their arrays."""

    def __init__(self, data: bytes, offset: int, place: int) -> None:
        self.data = data
        self.offset = offset
        self.place = place
        self.spans: list[Span] = []

    def record(self, tree: dict[str, Any], at: int, path: str) -> None:
        """``at`` is where the record's text begins in the vector."""
        assert list(tree) == ["kind", "fields"]
        assert self.data[at : at + len(_spelled(tree))] == _spelled(tree)
        at += len(b'{"kind":,"fields":{') + len(_spelled(tree["kind"]))
        for number, (name, entry) in enumerate(tree["fields"].items()):
            at += bool(number) + len(_spelled(name)) + 1
            assert self.data[at : at + len(_spelled(entry))] == _spelled(entry)
            self.entry(entry, at, path + name)
            at += len(_spelled(entry))

    def entry(self, entry: dict[str, Any], at: int, path: str) -> None:
        match list(entry):
            case ["value"]:
                text = _spelled(entry["value"])
                self.add(at + len(b'{"value":'), len(text), path, text.decode())
            case ["dtype", "shape"]:
                self.array(entry, path)
            case ["arrays"]:
                assert list(entry["arrays"]) == sorted(entry["arrays"])
                for name, item in entry["arrays"].items():
                    self.array(item, f"{path}[{name}]")
            case ["kind", "fields"]:
                self.add(at, len(_spelled(entry)), path, f"a {entry['kind']}")
                self.record(entry, at, path + ".")
            case ["records"]:
                self.add(at, len(_spelled(entry)), path, f"{len(entry['records'])} records")
                at += len(b'{"records":[')
                for number, item in enumerate(entry["records"]):
                    self.record(item, at, f"{path}[{number}].")
                    at += len(_spelled(item)) + 1
            case other:
                raise AssertionError(f"{path} is described by {other}")

    def array(self, entry: dict[str, Any], path: str) -> None:
        kind, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
        length = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        raw = self.data[self.place : self.place + length]
        assert len(raw) == length
        self.add(self.place, length, path, f"{kind.name} {shape}{_shown(np.frombuffer(raw, kind))}")
        if raw[:4] == b"UVM1":
            self.spans += record(raw, self.offset + self.place, path + ".")
        self.place += length

    def add(self, at: int, length: int, path: str, value: str) -> None:
        self.spans.append(Span(self.offset + at, length, path, value))


def _outside(data: bytes, key: bytes) -> tuple[list[Span], bytes | None]:
    """What stands in the clear, and what was encrypted."""
    magic = data[:4]
    if magic == b"UVM1":
        return record(data), None
    if magic in (b"UVC1", b"UVC2"):
        return [Span(0, 4, "magic of a calibration", magic.decode()), *record(data[4:], 4)], None
    if magic == b"UVS1":
        return _envelope(data), None
    if magic in SEALED:
        return _encrypted(data, [Span(0, 4, "magic", magic.decode())], key)
    if magic in _TEMPLATES:
        (length,) = struct.unpack_from("<H", data, 4)
        spans = [
            Span(0, 4, "magic", magic.decode()),
            Span(4, 2, "length of the model version", str(length)),
            Span(6, length, "model version", data[6 : 6 + length].decode()),
        ]
        return _encrypted(data, spans, key)
    if data[32:36] == b"UVM1":
        return [Span(0, 32, "SHA-256 of the rest", data[:32].hex()), *record(data[32:], 32)], None
    raise AssertionError(f"no format begins with {magic!r}")


def _encrypted(data: bytes, spans: list[Span], key: bytes) -> tuple[list[Span], bytes]:
    """Nonce, ciphertext and tag after ``spans``, which are authenticated with it (AES-256-GCM)."""
    start = sum(span.length for span in spans)
    nonce, rest = data[start : start + 12], data[start + 12 :]
    plain = AESGCM(key).decrypt(nonce, rest, data[:start])
    return [
        *spans,
        Span(start, 12, "nonce", nonce.hex()),
        Span(start + 12, len(plain), "ciphertext", "AES-256-GCM"),
        Span(start + 12 + len(plain), 16, "tag", rest[-16:].hex()),
    ], plain


def _envelope(data: bytes) -> list[Span]:
    (length,) = struct.unpack_from("<I", data, 4)
    header = data[8 : 8 + length]
    spans = [
        Span(0, 4, "magic", "UVS1"),
        Span(4, 4, "header length", str(length)),
        Span(8, length, "header", header.decode()),
    ]
    place = 8 + length
    for number, plain in enumerate(json.loads(header)["chunk_lengths"]):
        for name, size in (("enc", 32), ("ciphertext", plain), ("tag", 16)):
            spans.append(Span(place, size, f"chunk {number}: {name}", data[place : place + size].hex()))
            place += size
    return [*spans, Span(place, 64, "Ed25519 signature", data[place:].hex())]


def _check(spans: list[Span], size: int) -> None:
    """Every byte is named: those of values stand in a header, those of arrays and all else in a row."""
    named = bytearray(size)
    for span in spans:
        assert 0 <= span.offset <= span.offset + span.length <= size
        named[span.offset : span.offset + span.length] = b"\1" * span.length
    assert all(named)


def _table(spans: list[Span]) -> str:
    width = max(len(span.name) for span in spans)
    rows = (f"{span.offset:>7} {span.length:>6}  {span.name:<{width}}  {span.value}".rstrip() for span in spans)
    return "".join(row + "\n" for row in rows)


def _shown(values: Any) -> str:
    if values.dtype == np.uint8:
        text = values.tobytes()[: 4 * _SHOWN].hex()
        return f": {text}{'...' if len(values) > 4 * _SHOWN else ''}" if len(values) else ""
    texts = [f"{value:.9g}" if values.dtype.kind == "f" else str(value) for value in values[:_SHOWN]]
    return f": {' '.join(texts)}{' ...' if len(values) > _SHOWN else ''}" if texts else ""


def _spelled(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
