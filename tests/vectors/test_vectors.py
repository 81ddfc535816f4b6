"""Bytes written by the first version are still read, exactly."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from uvsdk.privacy.sealing import SUITES, Envelope
from uvsdk.templates.template import Template, model_version_of


def _script() -> ModuleType:
    path = Path(__file__).with_name("make_vectors.py")
    spec = importlib.util.spec_from_file_location("make_vectors", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VECTORS = _script()


@pytest.mark.parametrize(
    ("name", "magic"),
    [(name, b"UVT1") for name in sorted(VECTORS.FIRST_TEMPLATES)]
    + [(name, b"UVT2") for name in sorted(VECTORS.SECOND_TEMPLATES)]
    + [(name, b"UVT3") for name in sorted(VECTORS.TEMPLATES)],
)
def test_template(name: str, magic: bytes) -> None:
    data = (VECTORS.FOLDER / name).read_bytes()
    assert data[:4] == magic
    assert data[4:6] == b"\x40\x00"  # 64 characters of model version
    assert data[6:70] == b"ab" * 32
    assert model_version_of(data) == "ab" * 32
    known = VECTORS.FIRST_TEMPLATES | VECTORS.SECOND_TEMPLATES | VECTORS.TEMPLATES
    assert Template.from_bytes(data, VECTORS.TEMPLATE_KEY) == known[name]


@pytest.mark.parametrize("suite", SUITES)
def test_envelope(suite: str) -> None:
    data = (VECTORS.FOLDER / VECTORS.envelope_name(suite)).read_bytes()
    header = (
        '{"algorithm":"fedaws","chunk_lengths":[4,0,16],"deployment":"clinic","direction":"up",'
        f'"message_type":"update","model_version":"{"ab" * 32}","nonce":"{"01" * 16}","recipient_key_id":"key-1",'
        f'"round_id":7,"sender":"device-1","suite":"{suite}"}}'
    ).encode()
    assert data[:4] == b"UVS1"
    assert int.from_bytes(data[4:8], "little") == len(header)
    assert data[8 : 8 + len(header)] == header
    envelope = Envelope.parse(data)
    assert envelope.binding == VECTORS.binding(suite)
    envelope.verify(VECTORS.SENDER.public_key())
    assert tuple(envelope.open(VECTORS.RECIPIENT)) == VECTORS.CHUNKS
