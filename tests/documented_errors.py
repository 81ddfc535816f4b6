"""Every error of ``docs/errors.md``, raised by what really raises it.

Each function below causes one error in a folder of its own; the message goes into the document, with that folder's
place written as ``ada-store`` so that it is the same everywhere.
"""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests import modality_graphs
from tests.builders import open_store
from uvsdk import Capture, MemoryStore, errors, modality
from uvsdk.bundle import Bundle, shipped
from uvsdk.enroll import enroll
from uvsdk.federation.guards import check_unit_vector
from uvsdk.federation.messages import TrainingConfig
from uvsdk.modality import Limits
from uvsdk.modality.face.chips import choose
from uvsdk.modality.face.detector import Detection
from uvsdk.presentation.challenge import Challenges
from uvsdk.privacy.sealing import Binding, Envelope, seal
from uvsdk.scoring import Calibration, Placement, Requirement, Threshold, assess
from uvsdk.scoring.caution import check_domain
from uvsdk.templates.attempts import Attempts, RetryPolicy, refusal
from uvsdk.templates.template import Template
from uvsdk.training.weights import find
from uvsdk.verify import check_rate, compare, verify
from uvsdk_device import connection
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.membership import check_server_verification, check_state, forget_here
from uvsdk_device.records import disk_errors

UNIT = np.array([1.0, 0.0], np.float32)
BLANK = np.full((32, 32), 255, np.uint8)


def template(version: str = "", *, dimension: int = 2) -> Template:
    embedding = np.eye(1, dimension, dtype=np.float32)[0]
    return Template(embedding, version or "0" * 64, "handwriting", 3)


def store(folder: Path) -> EncryptedStore:
    return open_store(folder / "store", "right")


def enrolled(folder: Path) -> EncryptedStore:
    opened = store(folder)
    opened.save_enrolment("ada", template(), [])
    return opened


def embedding_of_another_norm(_: Path) -> object:
    return compare(3 * UNIT, template())


def undecodable(_: Path) -> object:
    return verify(b"", template(shipped().version, dimension=16), model=shipped(), threshold=_limit())


def too_large(_: Path) -> object:
    capture = Capture(limits=Limits(max_bytes=1000))
    return verify(bytes(4096), template(shipped().version), model=shipped(), threshold=_limit(), capture=capture)


def silence(_: Path) -> object:
    pcm = np.zeros(16_000, np.float32)
    return modality.get("voice").prepare((pcm, 16_000), modality_graphs.described({}))


def no_face(_: Path) -> object:
    return choose([], (320, 240), 32)


def two_faces(_: Path) -> object:
    landmarks = np.zeros((5, 2), np.float32)
    faces = [Detection(np.array([0, 0, width, width], np.float32), landmarks, 0.9) for width in (92, 90)]
    return choose(faces, (320, 240), 32)


def blank_page(_: Path) -> object:
    return verify(BLANK, template(shipped().version), model=shipped(), threshold=_limit())


def poor(_: Path) -> object:
    snr = Requirement("snr_db", "signal to noise ratio", "dB", (5, np.inf), (15, np.inf), "go where it is quieter")
    return assess({"snr_db": 2.0}, [snr], policy="standard")


def too_few(_: Path) -> object:
    page = BLANK.copy()
    page[8:24, 14:18] = 0
    return enroll("ada", [page, page, BLANK], model=shipped(), store=MemoryStore())


def no_template(_: Path) -> object:
    return Template.from_bytes(b"nothing", bytes(32))


def another_model(_: Path) -> object:
    return verify(BLANK, template(), model=shipped(), threshold=_limit())


def unsupported_rate(_: Path) -> object:
    return Calibration(np.linspace(-1, 1, 1000, dtype=np.float32), "m", "1000 trials").threshold(1e-4)


def laxer_rate(_: Path) -> object:
    return check_rate(0.9, 0.01)


def foreign_domain(_: Path) -> object:
    return check_domain(Placement("outside"), "261 people of LibriSpeech")


def too_many(_: Path) -> object:
    raise refusal(Attempts(5, 0, 0.0), RetryPolicy(), 0.0, whose="this person", reset="")


def disabled(_: Path) -> object:
    reset = "run `uvsdk attempts reset USER`, or enrol again"
    raise refusal(Attempts(50, 0, 0.0), RetryPolicy(), 0.0, whose="this person", reset=reset)


def unknown_challenge(_: Path) -> object:
    return Challenges(clock=lambda: 0.0).redeem("0" * 32)


def no_bundle(_: Path) -> object:
    return Bundle.from_bytes(b"<html>not found</html>")


def unsigned_bundle(_: Path) -> object:
    return Bundle.from_bytes(shipped().to_bytes(), trusted=[Ed25519PrivateKey.generate().public_key()])


def exchanged_calibration(_: Path) -> object:
    enrolled = replace(template(shipped().version), threshold=replace(_limit(), calibration="0" * 64))
    return verify(BLANK, enrolled, model=shipped())


def weights_elsewhere(_: Path) -> object:
    return find("ge2e", path="voice-encoder.pt")


def unknown_name(_: Path) -> object:
    return modality.get("iris")


def wrong_setting(_: Path) -> object:
    return Capture(quality="best")  # type: ignore[arg-type]


def wrong_message(_: Path) -> object:
    return Envelope.parse(b"{}" * 8)


def copied_store(folder: Path) -> object:
    return pickle.dumps(store(folder))


def wrong_signature(_: Path) -> object:
    ours, theirs = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    binding = Binding(
        deployment="clinic",
        direction="up",
        message_type="admission",
        algorithm="fedaws",
        round_id=0,
        model_version="0" * 64,
        sender="0" * 32,
        recipient_key_id="0" * 32,
        nonce="0" * 32,
    )
    sealed = seal([b"x"], binding, recipient=X25519PrivateKey.generate().public_key(), signing_key=ours)
    return Envelope.parse(sealed).verify(theirs.public_key())


def wrong_update(_: Path) -> object:
    return check_unit_vector(2 * UNIT, 2)


def foreign_folder(folder: Path) -> object:
    (folder / "store").mkdir()
    (folder / "store" / "photo.jpg").touch()
    return store(folder)


def wrong_passphrase(folder: Path) -> object:
    store(folder)
    return EncryptedStore.open(folder / "store", passphrase="wrong")


def full_disk(_: Path) -> object:
    with disk_errors():
        raise OSError(errno.ENOSPC, "No space left on device")


def unknown_user(folder: Path) -> object:
    return store(folder).template("bea")


def unreachable(_: Path) -> object:
    with connection.Connection("http://127.0.0.1:9") as client:
        return client.get_json("/v1/deployment")


def refused(_: Path) -> object:
    body = {"type": "urn:uvsdk:problem:token-spent", "detail": "the enrolment token has no uses left"}
    headers = {"content-type": "application/problem+json"}
    answer = httpx.Response(403, json=body, headers=headers)
    return connection._raise_for(answer, answer.content)


def edge_only(_: Path) -> object:
    class Stated:
        edge_only = True
        config = TrainingConfig(
            deployment="clinic", modality="voice", backbone="ge2e", algorithm="fedmetric", rounds=1, deadline_s=60.0
        )

    return check_server_verification(Stated())  # type: ignore[arg-type]


def still_registered(folder: Path) -> object:
    known = enrolled(folder)
    known.put("device", [b"keys"], name="clinic", user="ada")
    return forget_here("ada", known)


def pending_device(_: Path) -> object:
    return check_state("0123456789abcdef0123456789abcdef", "pending")


def _limit() -> Threshold:
    return Threshold(0.5, 0.01, 1000)


RAISED: dict[type[errors.UvsdkError], Callable[[Path], object]] = {
    errors.SampleError: embedding_of_another_norm,
    errors.UndecodableSampleError: undecodable,
    errors.SampleTooLargeError: too_large,
    errors.NoSpeechError: silence,
    errors.NoFaceError: no_face,
    errors.SeveralFacesError: two_faces,
    errors.NoInkError: blank_page,
    errors.LowQualityError: poor,
    errors.EnrolmentError: too_few,
    errors.TemplateFormatError: no_template,
    errors.ModelMismatchError: another_model,
    errors.ThresholdError: unsupported_rate,
    errors.LaxerRateError: laxer_rate,
    errors.UncalibratedDomainError: foreign_domain,
    errors.TooManyAttemptsError: too_many,
    errors.DisabledError: disabled,
    errors.ChallengeError: unknown_challenge,
    errors.BundleError: no_bundle,
    errors.UntrustedBundleError: unsigned_bundle,
    errors.ExchangedBundleError: exchanged_calibration,
    errors.WeightsNotFoundError: weights_elsewhere,
    errors.UnknownNameError: unknown_name,
    errors.SettingsError: wrong_setting,
    errors.WireError: wrong_message,
    errors.SealError: wrong_signature,
    errors.UpdateRejectedError: wrong_update,
    errors.NotTransferableError: copied_store,
    errors.StoreError: foreign_folder,
    errors.StoreLockedError: wrong_passphrase,
    errors.StoreFullError: full_disk,
    errors.UnknownUserError: unknown_user,
    errors.ServerUnreachableError: unreachable,
    errors.ServerRefusedError: refused,
    errors.EdgeOnlyError: edge_only,
    errors.PendingDeviceError: pending_device,
    errors.StillRegisteredError: still_registered,
}
"""What raises each class. Without an entry: base classes that are never raised, a server that changed, a download that
was tampered with, and an installation without torch; their messages are copied by hand."""


def message(kind: type[errors.UvsdkError], folder: Path) -> str:
    """The message of ``kind`` as its function raises it; what is not exactly that class is an ``AssertionError``."""
    with pytest.raises(kind) as caught:
        RAISED[kind](folder)
    assert caught.type is kind
    return str(caught.value).replace(str(folder / "store"), "ada-store")
