"""Every error this library raises on purpose, as one tree.

::

    UvsdkError
    ├── SampleError                      what a person handed in cannot be used
    │   ├── UndecodableSampleError       not audio or an image, or cut short
    │   ├── SampleTooLargeError          over the limit of bytes, pixels or seconds
    │   ├── NoSpeechError                silence, or too little speech
    │   ├── NoFaceError                  no face, or one too small to read
    │   ├── SeveralFacesError            more than one face
    │   ├── NoInkError                   an empty page of handwriting
    │   └── LowQualityError              readable, and too poor to be matched under the quality policy
    ├── EnrolmentError                   too few usable samples for a template
    ├── TemplateError
    │   ├── TemplateFormatError          not a template, or a damaged one
    │   └── ModelMismatchError           made with another model version
    ├── ThresholdError                   a target the impostor trials cannot support
    │   ├── LaxerRateError               a caller asks for a higher false match rate than the one in force
    │   └── UncalibratedDomainError      people or conditions that the calibration does not speak for
    ├── AttemptsError                    verification is closed for this person or device for now
    │   ├── TooManyAttemptsError         wait before the next attempt
    │   └── DisabledError                too many failures in a row; enrol again or be reset by the operator
    ├── ChallengeError                   a challenge that is unknown, used, expired or damaged
    ├── BundleError                      not a model bundle, or a damaged one
    │   ├── UntrustedBundleError         not signed by a key that is trusted
    │   └── ExchangedBundleError         not the model or calibration that was accepted before
    ├── WeightsError
    │   ├── WeightsNotFoundError         in none of the places that were searched
    │   └── ChecksumError                a file is not the one that was named
    ├── TrainingUnavailableError         an extra that training needs is not installed
    ├── UnknownNameError                 no such modality, backbone or algorithm
    ├── SettingsError                    a setting outside its range
    ├── WireError                        bytes that are not one of our messages
    ├── SealError                        cannot be opened, or the signature is not the sender's
    ├── UpdateRejectedError              an update that fails a guard
    ├── NotTransferableError             what holds a key or is open was to be pickled or copied
    ├── StoreError                       the device's encrypted store
    │   ├── StoreLockedError             wrong passphrase, or no key in the keyring
    │   ├── StoreFullError               the disk or the quota is full
    │   └── UnknownUserError             nobody of that name is enrolled here
    └── FederationError
        ├── ServerUnreachableError       no answer; the work stays queued
        ├── ServerRefusedError           a problem document (status, type, detail)
        ├── UnapprovedConfigError        the server asks for what this device never approved
        ├── EdgeOnlyError                the algorithm lets no template leave the device
        ├── PendingDeviceError           somebody must approve this device first
        └── StillRegisteredError         deleting here alone would leave the person with a server

A message says what happened, what was measured, what was expected and what to do; it never holds an
embedding, a key or a user id in clear.
"""

from __future__ import annotations

from typing import Any


def as_it_was(error: Exception) -> tuple[Any, ...]:
    """``__reduce__`` of an error whose ``__init__`` takes something else than the message."""
    return _as_it_was, (type(error), error.args, dict(error.__dict__))


def _as_it_was(kind: type[Exception], arguments: tuple[object, ...], state: dict[str, object]) -> Exception:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


class UvsdkError(Exception):
    """The root: ``except UvsdkError`` catches everything this library raises on purpose.

    Every one comes out of a process pool as it went in, with its message and its attributes.
    """

    __reduce__ = as_it_was


class SampleError(UvsdkError):
    """A sample that cannot be used; ``str(error)`` is written for the person who made it."""


class UndecodableSampleError(SampleError):
    """The bytes are not audio or an image that can be read, or they end too early."""


class SampleTooLargeError(SampleError):
    """The sample exceeds a limit of bytes, pixels or seconds."""


class NoSpeechError(SampleError):
    """The recording holds no speech, or less than is needed."""


class NoFaceError(SampleError):
    """No face was found, or none large enough."""


class SeveralFacesError(SampleError):
    """More than one face was found; which one is meant is not ours to guess."""


class NoInkError(SampleError):
    """The page holds no handwriting."""


class LowQualityError(SampleError):
    """The sample can be read and is too poor to be matched under the quality policy.

    Args:
        message: every requirement that is missed, with its value and what to do.
        measured: what was measured, name with unit -> value.
    """

    def __init__(self, message: str, measured: dict[str, float]) -> None:
        super().__init__(message)
        self.measured = dict(measured)


class EnrolmentError(UvsdkError):
    """Too few usable samples to make a template."""


class TemplateError(UvsdkError):
    """A template that cannot be used."""


class TemplateFormatError(TemplateError):
    """The bytes are not a template, or they were damaged."""


class ModelMismatchError(TemplateError):
    """The template and the probe come from different model versions, so no score exists."""


class ThresholdError(UvsdkError):
    """The impostor trials cannot support the false match rate that was asked for."""


class LaxerRateError(ThresholdError):
    """A caller asks for a higher false match rate than the one in force; nothing was compared."""


class UncalibratedDomainError(ThresholdError):
    """Under a strict policy: template or probe lie where nothing was measured, so no false match rate is known."""


class AttemptsError(UvsdkError):
    """Verification is closed for this person or device; the probe was not looked at."""


class TooManyAttemptsError(AttemptsError):
    """Failures in a row; the next attempt must wait.

    Args:
        message: how many failures, and how long to wait.
        retry_after_s: seconds until an attempt is looked at again.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DisabledError(AttemptsError):
    """So many failures in a row that biometric verification is disabled until it is reset."""


class ChallengeError(UvsdkError):
    """A liveness challenge that was never issued, was answered before, expired or is damaged."""


class BundleError(UvsdkError):
    """Not a model bundle, or a damaged one."""


class UntrustedBundleError(BundleError):
    """A bundle without the signature that was asked for, or altered since it was signed."""


class ExchangedBundleError(BundleError):
    """A bundle that is not the one accepted before: its model, its calibration or its detector was exchanged."""


class WeightsError(UvsdkError):
    """Pretrained weights that cannot be had."""


class WeightsNotFoundError(WeightsError):
    """The weights are in none of the places that were searched."""


class ChecksumError(WeightsError):
    """A file's SHA-256 is not the one on record."""


class TrainingUnavailableError(UvsdkError):
    """Training was asked for and the extra that it needs (``train``) is not installed."""


class UnknownNameError(UvsdkError):
    """No modality, backbone, algorithm or weights of that name."""


class SettingsError(UvsdkError):
    """A setting outside its range."""


class WireError(UvsdkError):
    """Bytes that are not one of our messages."""


class SealError(UvsdkError):
    """A sealed message that does not open, or is not signed by its sender."""


class UpdateRejectedError(UvsdkError):
    """An update that fails a guard: not finite, wrong shape, wrong norm, wrong count."""


class NotTransferableError(UvsdkError, TypeError):
    """What holds a key, or something that is open, was to be pickled or copied."""


class StoreError(UvsdkError):
    """The device's encrypted store."""


class StoreLockedError(StoreError):
    """The store's key is wrong or missing."""


class StoreFullError(StoreError):
    """The disk, or the quota given to the store, is full; nothing already stored was lost."""


class UnknownUserError(StoreError):
    """Nobody of that name is enrolled on this device."""


class FederationError(UvsdkError):
    """Taking part in training failed; what was enrolled stays usable."""


class ServerUnreachableError(FederationError):
    """The coordination server gave no answer; queued work stays queued."""


class ServerRefusedError(FederationError):
    """The coordination server answered with a problem document (RFC 9457).

    Args:
        status: HTTP status code.
        kind: last part of the problem's ``type`` URI, e.g. ``"wrong-round"``.
        detail: the problem's ``detail``.
    """

    def __init__(self, status: int, kind: str, detail: str) -> None:
        super().__init__(f"the server refused ({status} {kind}): {detail}")
        self.status = status
        self.kind = kind
        self.detail = detail


class UnapprovedConfigError(FederationError):
    """The server asks for a configuration whose digest this device has not approved."""


class EdgeOnlyError(FederationError):
    """Verification by the server was asked for, and the algorithm lets no template leave the device."""


class PendingDeviceError(FederationError):
    """Another device stands for this person already; that one, or the operator, must approve this one first."""


class StillRegisteredError(FederationError):
    """A server still knows this person through this device, and only this device's keys can ask it to forget."""
