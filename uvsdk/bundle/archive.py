"""The file of a bundle: a zip archive of stored members, each with its size and SHA-256 in ``manifest.json``.

There is one file for given members and no other: what :func:`pack_members` makes of what was read must be the file that
was read, byte for byte. So nothing rides along between, before or behind the members, in comments, extra fields or data
descriptors, under a second entry of the same name or one that differs in case; and the digest of the manifest is the
digest of the bundle.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from typing import Final

from uvsdk.bundle.manifest import object_of
from uvsdk.errors import BundleError

MAXIMUM_BYTES: Final = 1 << 30
THETA: Final = "theta.f32"
IMPOSTORS: Final = "impostors.f32"
CALIBRATION: Final = "calibration.bin"
PRESENTATION: Final = "presentation.onnx"
SIGNATURE: Final = "signature.json"
MANIFEST: Final = "manifest.json"
_MANIFEST_MAXIMUM_BYTES = 1 << 20
# Zip archives carry a date; a fixed one makes a bundle a pure function of its content.
_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_GRAPH = re.compile(r"(?!presentation\.)[a-z][a-z0-9_]*\.onnx")
_EMBEDDING = "embedding.onnx"
_OTHERS = (THETA, IMPOSTORS, CALIBRATION, PRESENTATION, SIGNATURE)


def manifest_text(record: Mapping[str, object], members: Mapping[str, bytes], digests: Mapping[str, bytes]) -> bytes:
    """``manifest.json``: ``record``, to which the members' sizes and digests are added."""
    listed = {name: {"sha256": digests[name].hex(), "bytes": len(body)} for name, body in members.items()}
    complete = {**record, "members": listed}
    return json.dumps(complete, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def graphs_of(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Those of ``members`` that are graphs of the model, by their names without suffix."""
    return {name.removesuffix(".onnx"): body for name, body in members.items() if _GRAPH.fullmatch(name)}


def pack_members(members: Mapping[str, bytes]) -> bytes:
    """The archive of ``members``, ``manifest.json`` among them; their order does not matter."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in (MANIFEST, _EMBEDDING, *sorted(set(filter(_GRAPH.fullmatch, members)) - {_EMBEDDING}), *_OTHERS):
            if name in members:
                entry = zipfile.ZipInfo(name, _DATE)
                entry.create_system = _UNIX  # whatever this one is
                archive.writestr(entry, members[name])
    return file.getvalue()


def read_members(data: bytes) -> dict[str, bytes]:
    """The archive's members, having shown that it is one of ours and inflates to no more than it is."""
    if len(data) > MAXIMUM_BYTES:
        raise BundleError(f"{len(data)} bytes, a bundle has at most {MAXIMUM_BYTES}")
    if not data.startswith(b"PK\x03\x04"):
        raise BundleError("not a model bundle: it does not start as a zip archive")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            names = [entry.filename for entry in entries]
            known = {MANIFEST, *_OTHERS, *filter(_GRAPH.fullmatch, names)}
            if len(set(names)) != len(names) or not set(names) <= known or not {MANIFEST, THETA} <= set(names):
                raise BundleError(f"not a model bundle: its members are {names[:8]}")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise BundleError("a bundle's members are stored, not compressed")
            if sum(entry.file_size for entry in entries) > len(data):
                raise BundleError("the members claim more bytes than the bundle has")
            if archive.getinfo(MANIFEST).file_size > _MANIFEST_MAXIMUM_BYTES:
                raise BundleError(f"manifest.json is over {_MANIFEST_MAXIMUM_BYTES} bytes")
            members = {name: archive.read(name) for name in names}
    # RuntimeError: an encrypted member. NotImplementedError: a zip version or method Python does not know.
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, NotImplementedError, OSError) as error:
        raise BundleError(f"the bundle is damaged: {error}") from error
    if pack_members(members) != data:
        raise BundleError(
            "the file holds more than its members: bytes, names or fields that no bundle has; fetch the bundle "
            "again, or write it anew with the uvsdk that made it"
        )
    return members


def check_members(record: Mapping[str, object], members: Mapping[str, bytes]) -> dict[str, bytes]:
    """The members' SHA-256, all of them as the manifest says."""
    described = object_of(record.get("members"))
    if set(described) != set(members):
        raise BundleError(f"the manifest lists {sorted(described)}, the bundle holds {sorted(members)}")
    digests = {name: hashlib.sha256(body).digest() for name, body in members.items()}
    for name, body in members.items():
        expected = object_of(described[name])
        if expected.get("bytes") != len(body) or expected.get("sha256") != digests[name].hex():
            raise BundleError(f"{name} is not the file that the manifest describes; fetch the bundle again")
    if len(members[THETA]) % 4 or len(members.get(IMPOSTORS, b"")) % 4:
        raise BundleError("theta.f32 and impostors.f32 hold whole float32 values")
    return digests
