"""A release: which model verifies, with which calibration, measured how, in whose place. Signed, never changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from uvsdk.errors import SealError, WireError
from uvsdk.records.codec import pack

Cause: TypeAlias = Literal["founding", "gate", "operator", "roll-back", "calibration"]
"""Why it was made: the model that the deployment began with, the gate, an operator's word, or a new calibration."""

Policy: TypeAlias = Literal["automatic", "manual", "frozen"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
"""From the laxest to the strictest. ``automatic``: what passes the gate is released; ``manual``: an operator promotes;
``frozen``: nothing new is released, and the only way is back."""

CalibrationPolicy: TypeAlias = Literal["operator", "evaluations"]
"""Whether a calibration that an operator gave the model that verifies stands, or the next evaluation replaces it."""

Calibrator: TypeAlias = Literal["nobody", "founding", "operator", "evaluation"]
"""Who made a release's calibration: nobody, for it has none; whoever made the model that the deployment began with; its
operator since; or an evaluation."""

_SIGNED: Final = b"uvsdk/release/1"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was measured of a released model, in numbers that are finite.

    Args:
        evaluation_id: counts evaluations of the deployment.
        impostors: where impostors came from (:data:`uvsdk.release.report.Impostors`).
        people: who told of genuine trials.
        trials: their genuine trials.
        fmr: false match rate of the measurement.
        fmr_interval: 95 %, of the false match rate at the threshold.
        threshold: the cosine there.
        fnmr: false non-match rate there.
        fnmr_interval: 95 %.
        worst_fnmr: of the worst tenth of people.
        measured_unix_s: when.
    """

    evaluation_id: int
    impostors: str
    people: int
    trials: int
    fmr: float
    fmr_low: float
    fmr_high: float
    threshold: float
    fnmr: float
    fnmr_low: float
    fnmr_high: float
    worst_fnmr: float
    measured_unix_s: float


@dataclass(frozen=True, slots=True)
class Release:
    """What a deployment verifies with, from this number on.

    Args:
        deployment: its name.
        number: counts up, also where a roll-back goes back to an earlier bundle.
        model_version: of the bundle.
        bundle: digest of the bundle, every member of it but the signature (:attr:`uvsdk.bundle.Bundle.digest`).
        calibration: digest of its calibration; empty where it has none.
        replaces: number of the release before, 0 for the first.
        round_id: the round that made the model, 0 for the one the deployment began with.
        algorithm: of the training.
        config_digest: of the training configuration.
        cause: see :data:`Cause`.
        evaluation: of exactly this model and calibration, where there was one; at most one.
        created_unix_s: when.
    """

    deployment: str
    number: int
    model_version: str
    bundle: str
    calibration: str
    replaces: int
    round_id: int
    algorithm: str
    config_digest: str
    cause: str
    evaluation: tuple[Evaluation, ...]
    created_unix_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.replaces < self.number or len(self.evaluation) > 1:
            raise WireError("a release has a number above the one it replaces, and one evaluation at most")


def calibrated_by(calibration: str, releases: Iterable[Release]) -> Calibrator:
    """Who made a calibration, by the records of the deployment.

    Args:
        calibration: its digest, empty for none.
        releases: every release so far.
    """
    same = [release for release in releases if release.calibration == calibration]
    if not calibration or not same:
        return "nobody"
    if any(release.evaluation for release in same):
        return "evaluation"
    first = min(same, key=lambda release: release.number)
    return "founding" if first.cause == "founding" else "operator"


def sign_release(release: Release, key: Ed25519PrivateKey) -> bytes:
    """64 bytes, Ed25519 over ``b"uvsdk/release/1"`` and the SHA-256 of the packed record."""
    return key.sign(_message(release))


def verify_release(release: Release, signature: bytes, key: Ed25519PublicKey) -> None:
    """Raise :class:`SealError` unless the owner of ``key`` made exactly this release."""
    try:
        key.verify(signature, _message(release))
    except InvalidSignature as error:
        raise SealError(
            f"release {release.number} is not signed by the server that this device approved, so it is not used"
        ) from error


def _message(release: Release) -> bytes:
    return _SIGNED + hashlib.sha256(pack(release)).digest()
