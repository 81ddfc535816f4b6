"""Templates: what they accept, and that no damaged byte is ever read as one."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from uvsdk.arrays import Float32
from uvsdk.errors import SettingsError, TemplateFormatError
from uvsdk.records.codec import pack
from uvsdk.scoring import Threshold
from uvsdk.templates.template import Template, new_key


@dataclass(frozen=True)
class _Other:
    modality: str


KEY = bytes(range(32))
UNIT = np.array([0.6, 0.8], np.float32)
THRESHOLD = Threshold(0.25, 0.01, 500, (0.001, 0.03), model_version="model")
TEMPLATE = Template(UNIT, "model", "voice", 3, THRESHOLD)


@pytest.mark.parametrize("threshold", [THRESHOLD, Threshold(1, 0.5, 0), None], ids=["measured", "by hand", "none"])
def test_round_trip(threshold: Threshold | None) -> None:
    template = Template(UNIT, "model", "face", 3, threshold)
    key = new_key()
    again = Template.from_bytes(template.to_bytes(key), key)
    assert again == template
    assert again.threshold == threshold
    assert again.embedding.dtype == np.float32
    assert not again.embedding.flags.writeable


def test_layout_by_hand() -> None:
    data = TEMPLATE.to_bytes(KEY)
    header = b"UVT3" + b"\x05\x00" + b"model"
    assert data[:11] == header
    plain = AESGCM(KEY).decrypt(data[11:23], data[23:], header)
    assert UNIT.tobytes() in plain
    assert UNIT.tobytes() not in data


def test_two_encryptions_differ() -> None:
    assert TEMPLATE.to_bytes(KEY) != TEMPLATE.to_bytes(KEY)


def test_any_flipped_bit_raises() -> None:
    data = TEMPLATE.to_bytes(KEY)
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(TemplateFormatError):
                Template.from_bytes(bytes(changed), KEY)


def test_every_truncation_and_any_addition_raises() -> None:
    data = TEMPLATE.to_bytes(KEY)
    for length in range(len(data)):
        with pytest.raises(TemplateFormatError):
            Template.from_bytes(data[:length], KEY)
    with pytest.raises(TemplateFormatError):
        Template.from_bytes(data + b"\0", KEY)


def test_wrong_key_names_both_possibilities() -> None:
    with pytest.raises(TemplateFormatError, match="key is not the one it was saved with, or the bytes were damaged"):
        Template.from_bytes(TEMPLATE.to_bytes(KEY), new_key())


@pytest.mark.parametrize("data", [b"", b"UVT", b"\x89PNG\r\n\x1a\n" + bytes(100), bytes(100), b"{}" * 50])
def test_foreign_bytes(data: bytes) -> None:
    with pytest.raises(TemplateFormatError, match="not a template"):
        Template.from_bytes(data, KEY)


def test_a_newer_format_says_so() -> None:
    with pytest.raises(TemplateFormatError, match="update uvsdk"):
        Template.from_bytes(b"UVT4" + bytes(100), KEY)


def test_the_model_version_is_bound() -> None:
    data = TEMPLATE.to_bytes(KEY)
    with pytest.raises(TemplateFormatError):
        Template.from_bytes(data.replace(b"model", b"modem"), KEY)


@pytest.mark.parametrize("plain", [b"", b"nonsense", pack(_Other("voice"))], ids=len)
def test_another_message_under_the_right_key(plain: bytes) -> None:
    header = b"UVT1" + struct.pack("<H", 5) + b"model"
    data = header + bytes(12) + AESGCM(KEY).encrypt(bytes(12), plain, header)
    with pytest.raises(TemplateFormatError, match="holds something else"):
        Template.from_bytes(data, KEY)


@pytest.mark.parametrize("key", [b"", KEY[:31], KEY + b"\0"], ids=len)
def test_keys_of_another_length(key: bytes) -> None:
    with pytest.raises(SettingsError, match="32 bytes"):
        TEMPLATE.to_bytes(key)
    with pytest.raises(SettingsError, match="32 bytes"):
        Template.from_bytes(TEMPLATE.to_bytes(KEY), key)


@pytest.mark.parametrize(
    "embedding",
    [
        np.array([0.6, 0.8]),
        np.array([[0.6, 0.8]], np.float32),
        np.array([], np.float32),
        np.array([0.6, 0.9], np.float32),
        np.array([0.0, 0.0], np.float32),
        np.array([np.nan, 1.0], np.float32),
        np.array([np.inf, 1.0], np.float32),
    ],
    ids=["float64", "matrix", "empty", "norm", "zero", "nan", "inf"],
)
def test_vectors_that_are_no_template(embedding: Float32) -> None:
    with pytest.raises(TemplateFormatError):
        Template(embedding, "model", "voice", 3)


@pytest.mark.parametrize(("version", "modality", "samples"), [("", "voice", 3), ("m", "", 3), ("m", "voice", 0)])
def test_a_template_names_where_it_comes_from(version: str, modality: str, samples: int) -> None:
    with pytest.raises(TemplateFormatError):
        Template(UNIT, version, modality, samples)


def test_it_keeps_its_own_copy() -> None:
    vector = UNIT.copy()
    template = Template(vector, "model", "voice", 3)
    vector[0] = 5
    assert template.embedding.tolist() == UNIT.tolist()


def test_repr_leaves_the_embedding_out() -> None:
    assert repr(Template(UNIT, "model", "voice", 3)) == (
        "Template(model_version='model', modality='voice', samples=3, threshold=None)"
    )


def test_equality_and_hash() -> None:
    same = Template(UNIT.copy(), "model", "voice", 3, THRESHOLD)
    assert same == TEMPLATE
    assert hash(same) == hash(TEMPLATE)
    assert Template(UNIT[::-1].copy(), "model", "voice", 3, THRESHOLD) != TEMPLATE
    assert TEMPLATE != "template"


def test_conditions_and_scale_are_kept() -> None:
    limit = Threshold(-3.5, 0.01, 1000, (0.005, 0.02), "model", "llr")
    kept = Template(UNIT, "model", "voice", 3, limit, {"snr_db": 20.0, "speech_s": 12.5})
    again = Template.from_bytes(kept.to_bytes(KEY), KEY)
    assert again == kept
    assert again.threshold == limit
    assert dict(again.conditions) == {"speech_s": 12.5, "snr_db": 20.0}
    assert again != Template(UNIT, "model", "voice", 3, limit, {"speech_s": 12.5})
    assert hash(again) == hash(kept)
    with pytest.raises(TypeError):
        again.conditions["speech_s"] = 1.0  # type: ignore[index]


@pytest.mark.parametrize("conditions", [{"shoe_size": 43.0}, {"speech_s": math.nan}, {"snr_db": math.inf}])
def test_impossible_conditions(conditions: dict[str, float]) -> None:
    with pytest.raises(TemplateFormatError, match="conditions are finite"):
        Template(UNIT, "model", "voice", 3, None, conditions)
