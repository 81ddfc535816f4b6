"""Bytes written by the first version are still read, exactly, and no format changes unnoticed."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vectors import make_vectors as made
from tests.vectors.annotate import body
from uvsdk.federation import messages
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.statements import Statement, Validity, sign_statement
from uvsdk.modality.voice import SNR_DB
from uvsdk.presentation.challenge import Challenge
from uvsdk.presentation.recollection import Recollection
from uvsdk.presentation.spoken_digits import SpokenDigitTemplates
from uvsdk.privacy.bundle_signing import sign
from uvsdk.privacy.sealing import SUITES, Envelope
from uvsdk.records.codec import pack, unpack
from uvsdk.scoring import record
from uvsdk.templates.template import Template

ROOT = Path(__file__).resolve().parents[2]
ALIKE = {name: (kind, data) for name, kind, data in made.plain()}
SEALED = {name: kind for name, kind, _ in made.sealed()}
OLDER = {"template_v1": "_Body", "template_v2": "_Body2"}
METHODS = made.of_methods()
COMMITTED = frozenset(path.relative_to(made.FOLDER).as_posix() for path in made.FOLDER.rglob("*.bin"))
WITH_VECTORS = sorted(name for name in METHODS if (made.FOLDER / name).parent.exists())
HINT = "python -m tests.vectors.make_vectors"


def read(name: str) -> bytes:
    path = made.FOLDER / name
    assert path.exists(), f"no vector {name}; {HINT} writes it"
    return path.read_bytes()


def reads_and_writes(kind: type, data: bytes) -> None:
    """The record in a vector is read, and what is written of it is the same to the last bit."""
    packed = body(data, made.TEMPLATE_KEY)
    assert pack(unpack(kind, packed)) == packed  # type: ignore[type-var]


@pytest.mark.parametrize("name", sorted(ALIKE))
def test_what_is_written_alike_each_time(name: str) -> None:
    kind, data = ALIKE[name]
    assert read(name) == data
    reads_and_writes(kind, data)


@pytest.mark.parametrize("name", sorted(SEALED))
def test_what_is_encrypted(name: str) -> None:
    reads_and_writes(SEALED[name], read(name))


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_what_a_method_sends_and_keeps(name: str) -> None:
    reads_and_writes(METHODS[name], read(name))


def test_what_is_read_as_an_object_of_its_own() -> None:
    assert Challenge.from_bytes(read("records/Challenge.bin")) == made.CHALLENGE
    measured = read("records/Calibration.bin")  # all of it decides under AS-norm, so all of it is in the digest
    assert (
        record.from_bytes(measured, [SNR_DB]).digest == hashlib.sha256(b"uvsdk calibration 1\n" + measured).hexdigest()
    )
    named = read("records/Calibration2.bin")
    accounted = record.from_bytes(named, [SNR_DB])
    assert accounted.digest == hashlib.sha256(b"uvsdk calibration 1\n" + named).hexdigest()
    assert (accounted.people, accounted.measured_unix_s, accounted.trials("cosine")) == (40, 1700000000.0, 2000)
    assert accounted.ratio is not None
    # Of 900 values 20 are at least -3, so 2.2 % of them, and of 1,000 trials as many, are let in there.
    assert (accounted.ratio.ranked.trials, accounted.ratio.ranked.count(-3.0)) == (900, (20, 20))
    summed = record.from_bytes(read("records/Calibration2_of_sums.bin"), ())
    assert summed.tail is not None
    assert (summed.tail.people, summed.tail.templates, summed.tail.lowest_fmr) == (10, 30, 0.01)
    assert summed.account.startswith("sums over 10 people who do not train and 30 templates")
    skewed = record.from_bytes(read("records/Calibration2_of_skewed_sums.bin"), ()).tail
    assert skewed is not None
    assert (skewed.skewness, skewed.replicates.shape) == (-0.1875, (2, 3))
    assert summed.tail.skewness == 0.0
    seen = Recollection.from_bytes(read("records/Recollection.bin"), made.TEMPLATE_KEY)
    assert (seen.key, seen.capacity) == (made.RECOLLECTION.key, made.RECOLLECTION.capacity)
    assert [item.bits.tolist() for item in seen.voices] == [item.bits.tolist() for item in made.RECOLLECTION.voices]
    assert [item.bits.tolist() for item in seen.faces] == [item.bits.tolist() for item in made.RECOLLECTION.faces]
    said = SpokenDigitTemplates.from_bytes(read("records/SpokenDigits.bin"), made.TEMPLATE_KEY).digits
    assert {digit: [item.tolist() for item in group] for digit, group in said.items()} == {
        digit: [item.tolist() for item in group] for digit, group in made.SPOKEN_DIGITS.digits.items()
    }


def test_a_simulation_between_two_rounds() -> None:
    pytest.importorskip("torch")
    name, kind, data = made.simulated()
    assert read(name) == data
    assert hashlib.sha256(data[32:]).digest() == data[:32]
    reads_and_writes(kind, data)


def test_a_training_configuration() -> None:
    text = read("messages/TrainingConfig.json")
    assert made.CONFIG.to_json().encode() == text
    assert TrainingConfig.from_json(text) == made.CONFIG
    assert made.CONFIG.digest() == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("said", [made.SERVER_STATEMENT, made.ROUND_HEADER])
def test_what_the_signature_of_a_statement_is_over(said: Statement) -> None:
    hour = Validity(1700000000.0, 1700003600.0)
    digest = hashlib.sha256(read(f"messages/{type(said).__name__}.bin")).digest()
    message = b"uvsdk/statement/2" + digest + struct.pack(">dd", 1700000000.0, 1700003600.0)
    assert sign_statement(said, hour, made.SENDER) == made.SENDER.sign(message)


def test_what_the_signature_of_a_bundle_is_over() -> None:
    message = b"uvsdk/bundle/1" + hashlib.sha256(read("messages/BundleStatement.bin")).digest()
    assert sign(made.BUNDLE_STATEMENT, made.SENDER).signature == made.SENDER.sign(message)


def test_every_record_that_is_sent_signed_or_read_has_a_vector() -> None:
    sent = {
        f"{messages.__name__}.{kind.__name__}"
        for kind in vars(messages).values()
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == messages.__name__
    }
    kinds = [*(kind for kind, _ in ALIKE.values()), *SEALED.values(), TrainingConfig]
    have = {f"{kind.__module__}.{kind.__name__}" for kind in kinds} | {"uvsdk.simulation.checkpoint.Checkpoint"}
    assert len(sent) >= 10
    wanted = sent | set(_unpacked())
    assert len(wanted) > len(sent)
    assert wanted - have == set(), f"describe it in tests/vectors/make_vectors.py and run {HINT}"


def test_no_vector_is_of_nothing() -> None:
    """A method that has gone takes its vectors with it, and one that has some has all of them."""
    known = {*ALIKE, *SEALED, *WITH_VECTORS, "records/Checkpoint.bin", *map(made.envelope_name, SUITES)}
    known |= {*made.FIRST_TEMPLATES, *made.SECOND_TEMPLATES}
    known |= {name for name in COMMITTED if name.startswith("flat_states/")}  # test_flat_states.py
    assert known == COMMITTED


def test_the_annotations_say_what_the_bytes_are() -> None:
    texts = made.annotations()
    assert set(made.FOLDER.rglob("annotated.txt")) == set(texts)
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is not of its vectors; {HINT} writes it"


def _unpacked() -> Iterator[str]:
    """Full names of the classes that the product names in a call of the codec's ``unpack``."""
    for top, folder in (("uvsdk", ROOT), ("uvsdk_server", ROOT / "server"), ("uvsdk_device", ROOT / "device")):
        for path in sorted((folder / top).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            module = ".".join(path.relative_to(folder).with_suffix("").parts)
            places = {node.name: module for node in tree.body if isinstance(node, ast.ClassDef)}
            for node in tree.body:
                if isinstance(node, ast.ImportFrom):
                    places |= {alias.asname or alias.name: str(node.module) for alias in node.names}
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("unpack", "codec.unpack") and node.args:
                    first, _, name = ast.unparse(node.args[0]).partition(".")
                    if first in places:
                        yield f"{places[first]}.{first}" + (f".{name}" if name else "")


@pytest.mark.parametrize(
    ("name", "magic"),
    [(name, b"UVT1") for name in sorted(made.FIRST_TEMPLATES)]
    + [(name, b"UVT2") for name in sorted(made.SECOND_TEMPLATES)]
    + [(name, b"UVT3") for name in sorted(made.TEMPLATES)],
)
def test_template(name: str, magic: bytes) -> None:
    data = read(name)
    assert data[:4] == magic
    assert data[4:6] == b"\x40\x00"  # 64 characters of model version
    assert data[6:70] == b"ab" * 32
    known = made.FIRST_TEMPLATES | made.SECOND_TEMPLATES | made.TEMPLATES
    assert Template.from_bytes(data, made.TEMPLATE_KEY) == known[name]


@pytest.mark.parametrize(("name", "kind"), sorted(OLDER.items()))
def test_an_older_template(name: str, kind: str) -> None:
    for file in (f"{name}.bin", f"{name}_without_threshold.bin"):
        reads_and_writes(getattr(importlib.import_module("uvsdk.templates.template"), kind), read(file))


@pytest.mark.parametrize("suite", SUITES)
def test_envelope(suite: str) -> None:
    data = read(made.envelope_name(suite))
    header = (
        '{"algorithm":"fedaws","chunk_lengths":[4,0,16],"deployment":"clinic","direction":"up",'
        f'"message_type":"update","model_version":"{"ab" * 32}","nonce":"{"01" * 16}","recipient_key_id":"key-1",'
        f'"round_id":7,"sender":"device-1","suite":"{suite}"}}'
    ).encode()
    assert data[:4] == b"UVS1"
    assert int.from_bytes(data[4:8], "little") == len(header)
    assert data[8 : 8 + len(header)] == header
    envelope = Envelope.parse(data)
    assert envelope.binding == made.binding(suite)
    envelope.verify(made.SENDER.public_key())
    assert tuple(envelope.open(made.RECIPIENT)) == made.CHUNKS
