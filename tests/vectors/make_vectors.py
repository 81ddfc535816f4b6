"""Write the vectors that are missing, and what every byte of each means: ``python -m tests.vectors.make_vectors``.

A vector pins a format: bytes that an older version wrote must be read by every later one, or refused in words. It is
written once. For a new format, keep the old file under the name of its version, as the templates' are, and run this.
Each folder has an ``annotated.txt``, field by field, written by :mod:`tests.vectors.annotate`.

The folders: ``messages`` (what crosses the wire, or is signed), ``records`` (what a device, a bundle or a simulation
keeps), ``methods`` (task, payload, request and state of each method, of a small federation as the contract tests have
it; whoever adds a method only runs this), ``flat_states`` (states of methods as they were before records nested). The
keys below protect nothing and are for vectors alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.vectors.annotate import annotated
from uvsdk.enrolment.ageing import History
from uvsdk.federation import algorithms, messages
from uvsdk.federation.classes import neighbours
from uvsdk.federation.classes.matrix import ClassMatrix
from uvsdk.federation.messages import TrainingConfig
from uvsdk.modality.voice import SNR_DB
from uvsdk.presentation import recollection, spoken_digits
from uvsdk.presentation.challenge import Challenge
from uvsdk.presentation.fingerprint import FacePrint, VoicePrint
from uvsdk.presentation.recollection import Recollection
from uvsdk.presentation.spoken_digits import SpokenDigitTemplates
from uvsdk.privacy.bundle_signing import BundleStatement
from uvsdk.privacy.identifiers import key_id
from uvsdk.privacy.sealing import SUITES, Binding, seal
from uvsdk.records.codec import pack
from uvsdk.release import cohort, grid
from uvsdk.release.record import Evaluation, Release
from uvsdk.release.report import EvaluationReport, EvaluationTask, report_on
from uvsdk.scoring import Calibration, Threshold, record
from uvsdk.scoring.cohort import Cohort
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.domain import Domain
from uvsdk.scoring.likelihood import LikelihoodRatio, Surroundings
from uvsdk.scoring.personal import leave_one_out
from uvsdk.scoring.tail import Tail
from uvsdk.templates.template import Template
from uvsdk_device import sample_conditions
from uvsdk_device.frozen_views import _Section
from uvsdk_device.kept_templates import KeptTemplate, KeptTemplates
from uvsdk_device.keystore import _Features
from uvsdk_device.memory import MemoryRecord, RequestRecord
from uvsdk_device.releases import Followed, Refusal, Signed, Standing
from uvsdk_server.releases import Change, Judged

FOLDER = Path(__file__).parent
TEMPLATE_KEY = bytes(range(32))
RECIPIENT = X25519PrivateKey.from_private_bytes(bytes(range(32)))
SENDER = Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64)))

# 0.6^2 + 0.8^2 = 1; both numbers are rounded to float32.
EMBEDDING = np.array([0.6, -0.8, 0.0], np.float32)
CHUNKS = (b"head", b"", np.arange(4, dtype="<f4").tobytes())

# Written by the first version, which knew neither conditions nor scales, and by the second, whose thresholds named
# neither their calibration nor who had asked for their rate; today's writes the third format.
FIRST_TEMPLATES = {
    "template_v1.bin": Template(
        EMBEDDING, "ab" * 32, "voice", 5, Threshold(0.5, 0.01, 1000, (0.005, 0.02), model_version="ab" * 32)
    ),
    "template_v1_without_threshold.bin": Template(EMBEDDING, "ab" * 32, "face", 3),
}
SECOND_TEMPLATES = {
    "template_v2.bin": Template(
        EMBEDDING,
        "ab" * 32,
        "voice",
        5,
        Threshold(2.5, 0.01, 1000, (0.005, 0.02), model_version="ab" * 32, scale="llr"),
        {"speech_s": 12.5, "snr_db": 20.0},
    ),
    "template_v2_without_threshold.bin": Template(EMBEDDING, "ab" * 32, "face", 3),
}
TEMPLATES = {
    "template_v3.bin": Template(
        EMBEDDING,
        "ab" * 32,
        "voice",
        5,
        Threshold(
            2.5,
            0.0002,
            40860,
            (8e-5, 0.0004),
            model_version="ab" * 32,
            scale="llr",
            calibration="cd" * 32,
            by_default=True,
        ),
        {"speech_s": 12.5, "snr_db": 20.0},
    ),
    "template_v3_without_threshold.bin": Template(EMBEDDING, "ab" * 32, "face", 3),
}

PUBLIC = RECIPIENT.public_key().public_bytes_raw()
ADMISSION = messages.Admission(
    user="0f" * 32,
    model_version="ab" * 32,
    samples=5,
    mean=np.array([0.5, -0.5, 0.25], np.float32),
    instances=np.arange(64, dtype=np.uint8).reshape(2, 32),
    person="1e" * 32,
    classes=("ana", "ünïcode"),
)
SERVER_STATEMENT = messages.ServerStatement(
    deployment="clinic",
    config_digest="cd" * 32,
    server_key_id=key_id(PUBLIC),
    server_public_key=PUBLIC,
    model_version="ab" * 32,
    needs=("instances", "mean"),
    authorities=("clinic.example", "clinic.example:8443"),
)
ROUND_HEADER = messages.RoundHeader(
    deployment="clinic",
    algorithm="fedaws",
    round_id=7,
    model_version="ab" * 32,
    config_digest="cd" * 32,
    deadline_unix_s=1700000600.5,
    server_key_id=key_id(PUBLIC),
    server_public_key=PUBLIC,
    cohort=20,
    clip_norm=0.5,
)
EVALUATION_HEADER = messages.EvaluationHeader(
    deployment="clinic",
    algorithm="fedaws",
    evaluation_id=3,
    candidate="ab" * 32,
    released="ef" * 32,
    impostors="cohort",
    config_digest="cd" * 32,
    deadline_unix_s=1700000600.5,
    server_key_id=key_id(PUBLIC),
    server_public_key=PUBLIC,
    asked=40,
)
EVALUATION_TASK = EvaluationTask(
    evaluation_id=3,
    candidate="ab" * 32,
    released="ef" * 32,
    impostors="cohort",
    evaluates=True,
    cohort=np.array([[0.6, 0.8, 0.0]], np.float32),
    released_cohort=np.array([[0.0, 0.6, 0.8]], np.float32),
)


def with_third(report: EvaluationReport, third: Sequence[int]) -> EvaluationReport:
    """A report with these third moments."""
    (moments,) = report.candidate.moments
    moments = replace(moments, third=np.array(third, np.int32))
    return replace(report, candidate=replace(report.candidate, moments=(moments,)))


_OWN = np.array([[0.6, 0.8, 0.0], [0.8, 0.6, 0.0]], np.float32)
EVALUATION_REPORT = EvaluationReport(
    evaluation_id=3,
    candidate=replace(
        report_on(
            _OWN,
            model_version="ab" * 32,
            impostors="moments",
            evaluates=True,
            strangers=np.empty((0, 3), np.float32),
        ),
        genuine=grid.shares(leave_one_out(_OWN))[None].astype(np.int32),
        people=grid.table(leave_one_out(_OWN)).astype(np.int32),
    ),
    released=(),
    samples=2,
    accepts=1,
)
BUNDLE_STATEMENT = BundleStatement("a clinic", bundle="12" * 32, model_version="ab" * 32, calibration="cd" * 32)
MESSAGES: tuple[Any, ...] = (
    ADMISSION,
    SERVER_STATEMENT,
    ROUND_HEADER,
    EVALUATION_HEADER,
    EVALUATION_TASK,
    EVALUATION_REPORT,
    BUNDLE_STATEMENT,
    messages.TemplateUpload("0f" * 32, "ab" * 32, template=TEMPLATES["template_v3.bin"].to_plain_bytes()),
    messages.Numbered(1700000000000, body=pack(ADMISSION)),
    messages.UpdateHead(
        round_id=7,
        algorithm="fedaws",
        model_version="ab" * 32,
        samples=5,
        parameters=1000,
        payload=b"the method's own payload, packed",
    ),
    messages.Task(7, "fedaws", body=b"the method's own task, packed"),
    messages.Invitation(7, "fedss", body=b"the method's own invitation, packed"),
    messages.Request(7, "fedss", body=b"the method's own request, packed"),
)
CONFIG = TrainingConfig(
    deployment="clinic",
    modality="voice",
    backbone="ge2e",
    algorithm="fedaws",
    algorithm_settings={"margin": 0.9, "neighbours": None, "mode": "hinge", "whole": True},
    train="head",
    clipping="fixed",
    clip_norm=0.5,
    seed=7,
)

RELEASE = Release(
    deployment="clinic",
    number=3,
    model_version="ab" * 32,
    bundle="12" * 32,
    calibration="34" * 32,
    replaces=2,
    round_id=7,
    algorithm="fedaws",
    config_digest="cd" * 32,
    cause="gate",
    evaluation=(
        Evaluation(
            evaluation_id=3,
            impostors="moments",
            people=20,
            trials=100,
            fmr=0.001,
            fmr_low=0.0005,
            fmr_high=0.002,
            threshold=0.5,
            fnmr=0.02,
            fnmr_low=0.01,
            fnmr_high=0.03,
            worst_fnmr=0.2,
            measured_unix_s=1700000000.5,
        ),
    ),
    created_unix_s=1700000001.5,
)
RECORDS: tuple[Any, ...] = (
    messages.OptimiserState(
        steps=3,
        first=np.array([0.5, -0.25], np.float32),
        second=np.array([0.25, 0.0625], np.float32),
        control=np.array([0.0, 1.0], np.float32),
    ),
    # What several methods keep, here with the approximate lists of neighbours that a vector under methods has not.
    ClassMatrix(
        users=("ana", "ben"),
        vectors=np.eye(2, 3),
        means=np.zeros((2, 3)),
        samples=np.array([5, 3]),
        last_round=np.array([6, -1]),
        rounds=7,
        started=True,
        lists=neighbours.empty(2),
    ),
    MemoryRecord(7, {"offset": EMBEDDING, "rounds": np.array([3], np.int64)}),
    RequestRecord(7, body=b"the method's own request, packed"),
    History(
        "ab" * 32,
        original=EMBEDDING,
        versions=np.array([[0.8, -0.6, 0.0]], np.float32),
        stepped_s=np.array([1700000000.5]),
        last_step_s=1700000000.5,
        steps=2,
    ),
    KeptTemplates(bytes(range(16)), (KeptTemplate("ab" * 32, b"a template, packed"),)),
    Standing(
        "clinic/" + "12" * 16,
        (
            Followed(
                "clinic/" + "12" * 16,
                seen=(Signed(b"release 3, packed", bytes(64)),),
                adopted=(Signed(b"release 2, packed", bytes(64)), Signed(b"release 1, packed", bytes(64))),
                refusals=(Refusal(3, "cd" * 32, reason="in words", told=True),),
            ),
        ),
    ),
    _Section("12" * 32, "34" * 32, inference=np.ones((1, 2), np.float32), crops=np.zeros((2, 1, 2), np.float32)),
    _Features({"0": np.array([[0.5, 1.0]], np.float32), "1": np.arange(3, dtype=np.uint8)}),
    sample_conditions._Measured(("snr_db", "yaw"), np.array([[21.5, np.nan], [np.nan, -0.25]])),
    cohort._CohortFile(
        modality="voice",
        source="two people, for a vector",
        made_unix_s=1700000000.5,
        person=np.array([0, 1]),
        features={"0": np.array([[0.5, 1.0]], np.float32), "1": np.array([[0.25, 0.0]], np.float32)},
    ),
    RELEASE,
    Judged(
        passes=False,
        reasons=("8 people told of genuine trials, 20 are the least",),
        change=(Change(change=-0.01, low=-0.03, high=0.01),),
        evaluation=RELEASE.evaluation,
        judged_unix_s=1700000000.5,
    ),
)
CHALLENGE = Challenge("01" * 16, "digits", ("4", "0", "7"), issued_at_s=1700000000.0, expires_at_s=1700000030.0)
CALIBRATION = Calibration(
    np.array([-0.25, 0.0, 0.125, 0.5], np.float32),
    model_version="ab" * 32,
    source="two people, for a vector",
    ratio=LikelihoodRatio(
        compensation=Compensation(np.array([0.0, 0.0, 0.25], np.float32), np.array([[1.0, 0.0, 0.0]], np.float32)),
        top=2,
        surroundings=Surroundings(
            (SNR_DB,), low=np.array([5.0]), high=np.array([30.0]), mean=np.array([20.0]), spread=np.array([4.0])
        ),
        location=np.array([0.0, 0.5, 0.25, -0.125]),
        log_scale=np.array([0.0, 0.0, 0.0, 0.5]),
        limits=np.array([[-0.5, 0.5], [-1.0, 1.0]]),
        slope=2.0,
        offset=-3.0,
        lowest=-4.0,
        highest=6.0,
        impostor=np.array([-4.0, -3.0, -2.0], np.float32),
        trials=1000,
    ),
    cohort=Cohort(
        np.array([[0.6, -0.8, 0.0], [0.0, 0.6, 0.8]], np.float32),
        person=np.array([0, 1]),
        conditions=np.array([[2.5, 20.0, np.nan, np.nan, np.nan]] * 2, np.float32),
    ),
)
# Of the same, where it names its people, keeps a tail and knows where they lie.
ACCOUNTED = dataclasses.replace(
    CALIBRATION,
    ratio=dataclasses.replace(CALIBRATION.ratio, above=np.array([900, 20, 1])) if CALIBRATION.ratio else None,
    people=40,
    measured_unix_s=1700000000.0,
    above=np.array([2000, 30, 2, 1]),
    domain=Domain(
        mean=np.array([0.0, 0.0, 0.5], np.float32),
        directions=np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], np.float32),
        variances=np.array([0.25, 0.125]),
        rest=0.0625,
        people=40,
        distances=np.array([1.0, 2.0, 6.5]),
    ),
)
# Of sums over people, in place of trials.
SUMMED = Calibration(
    np.array([-0.5, 0.0, 0.5], np.float32),
    model_version="ab" * 32,
    source="forty people, for a vector",
    people=40,
    measured_unix_s=1700000000.0,
    tail=Tail(0.0625, 0.125, 10, 30, 0.01, np.array([[0.0625, 0.125], [0.03125, 0.25]])),
)
# The same where single samples are poor.
SKEWED = replace(
    SUMMED,
    tail=Tail(0.0625, 0.125, 20, 30, 0.001, np.array([[0.0625, 0.125, -0.25], [0.03125, 0.25, -0.125]]), -0.1875),
)
RECOLLECTION = Recollection(
    bytes(range(32, 64)),
    voices=(VoicePrint(np.array([[1.0, -1.0] * 16, [0.0] * 32], np.float32)),),
    faces=(FacePrint(np.array([1.0, 1.0, -1.0, -1.0] * 64, np.float32)),),
    capacity=3,
)
SPOKEN_DIGITS = SpokenDigitTemplates(
    {str(digit): (np.full((1, spoken_digits.WIDTH), digit / 2, np.float32),) for digit in range(10)}
)


def binding(suite: str) -> Binding:
    """The binding of the envelope sealed with ``suite``."""
    return Binding("clinic", "up", "update", "fedaws", 7, "ab" * 32, "device-1", "key-1", "01" * 16, suite)


def envelope_name(suite: str) -> str:
    """File of the envelope sealed with ``suite``."""
    return f"envelope_v1_{suite}.bin"


def name_of(kind: type) -> str:
    """File of a vector that is nothing but the packed record."""
    return f"{kind.__name__.lstrip('_')}.bin"


def plain() -> Iterator[tuple[str, type, bytes]]:
    """(file, class of the record, bytes) of all that is written the same each time."""
    for message in MESSAGES:
        yield f"messages/{name_of(type(message))}", type(message), pack(message)
    third = with_third(EVALUATION_REPORT, [7, 0, -7, 1])
    yield "messages/EvaluationReport_third.bin", EvaluationReport, pack(third)
    for kept in RECORDS:
        yield f"records/{name_of(type(kept))}", type(kept), pack(kept)
    yield "records/Challenge.bin", _class("uvsdk.presentation.challenge", "_Record"), CHALLENGE.to_bytes()
    yield "records/Calibration.bin", _class("uvsdk.scoring.record", "_Body"), record.to_bytes(CALIBRATION)
    named = _class("uvsdk.scoring.record", "_Body2")
    yield "records/Calibration2.bin", named, record.to_bytes(ACCOUNTED)
    yield "records/Calibration2_of_sums.bin", named, record.to_bytes(SUMMED)
    yield "records/Calibration2_of_skewed_sums.bin", named, record.to_bytes(SKEWED)


def sealed() -> Iterator[tuple[str, type, bytes]]:
    """The same of what is encrypted under :data:`TEMPLATE_KEY` with a fresh nonce."""
    digits, seen = "records/SpokenDigits.bin", "records/Recollection.bin"
    yield digits, _class(spoken_digits.__name__, "_Body"), SPOKEN_DIGITS.to_bytes(TEMPLATE_KEY)
    yield seen, _class(recollection.__name__, "_Body"), RECOLLECTION.to_bytes(TEMPLATE_KEY)
    for name, template in TEMPLATES.items():
        yield name, _class("uvsdk.templates.template", "_Body3"), template.to_bytes(TEMPLATE_KEY)


def of_methods() -> dict[str, type]:
    """File -> class, for each record that a method sends or keeps."""
    found = {}
    for name in algorithms.names():
        payload = importlib.import_module(f"{algorithms.__name__}.{name}.payload")
        found[f"methods/{name}/Task.bin"] = payload.Task
        found[f"methods/{name}/Payload.bin"] = payload.Payload
        found[f"methods/{name}/State.bin"] = algorithms.server(name).state
        if (half := algorithms.request(name)) is not None:
            found[f"methods/{name}/Invitation.bin"] = half.invitation
            found[f"methods/{name}/Request.bin"] = half.request
    return found


def methods() -> Iterator[tuple[str, bytes]]:
    """(file, bytes) of each method's, out of one small federation; needs torch."""
    from tests.contract.party import Party

    for name in algorithms.names():
        party = Party(name, "cab")
        made: dict[str, Any] = {"Task": party.task("a"), "Payload": party.payload("a"), "State": party.stepped("ab")}
        if party.request is not None:
            made["Invitation"] = party.request.invite(party.state, "a", party.settings)
            made["Request"] = party.ask("a", {})[0]
        for kind, message in made.items():
            yield f"methods/{name}/{kind}.bin", pack(message)


def simulated() -> tuple[str, type, bytes]:
    """(file, class, bytes) of a simulation between two rounds; needs torch."""
    from uvsdk.simulation.checkpoint import Checkpoint, Remembered

    body = Checkpoint(
        config=CONFIG.to_json(),
        seed="7",
        round_id=4,
        committed=3,
        started=True,
        refused=("ben",),
        batching="stacked",
        theta=EMBEDDING,
        optimiser=RECORDS[0],
        state=b"the method's own state, packed",
        start_norm=1.0,
        medians=np.array([0.5, 0.25]),
        memories=(Remembered("ana", {"offset": EMBEDDING}),),
    )
    packed = pack(body)
    return "records/Checkpoint.bin", Checkpoint, hashlib.sha256(packed).digest() + packed


def annotations() -> dict[Path, str]:
    """File -> text, for each folder: what every byte of its vectors means."""
    found: dict[Path, str] = {}
    for path in sorted(FOLDER.rglob("*.bin")):
        data = path.read_bytes()
        target = path.with_name("annotated.txt")
        found[target] = found.get(target, "offset length  field, value; numbers are little endian\n")
        found[target] += f"\n{path.name}, {len(data)} bytes\n{annotated(data, TEMPLATE_KEY)}"
    return found


def _class(module: str, name: str) -> type:
    found: type = getattr(importlib.import_module(module), name)
    return found


def _write(name: str, data: bytes) -> None:
    path = FOLDER / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def main() -> None:
    """Write every vector that is missing, and the annotations of all."""
    for name, _, data in (*plain(), *sealed(), simulated()):
        _write(name, data)
    for name, data in methods():
        _write(name, data)
    for suite in SUITES:
        _write(envelope_name(suite), seal(CHUNKS, binding(suite), recipient=RECIPIENT.public_key(), signing_key=SENDER))
    _write("messages/TrainingConfig.json", CONFIG.to_json().encode())
    for path, text in annotations().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
