"""Problem documents (RFC 9457): every kind with its status, and the errors of :mod:`uvsdk.errors` that become one.

A kind is the last part of the document's ``type``. Whoever reads an answer decides by it; ``detail`` is for people.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, Literal, TypeAlias

from uvsdk import errors

PREFIX: Final = "urn:uvsdk:problem:"
MEDIA_TYPE: Final = "application/problem+json"

STATUS: Final[Mapping[str, int]] = {
    kind: status
    for status, kinds in {
        400: "malformed unsealable",
        401: "bad-signature replayed-request stale-challenge unauthorized unknown-device",
        403: "edge-only embeddings-off forbidden not-selected pending-device revoked-device token-spent "
        "unconfirmed-device wrong-sender wrong-user",
        404: "no-control no-such-device not-found unknown-deletion unknown-model unknown-release unknown-request "
        "unknown-token unknown-user",
        405: "method-not-allowed",
        408: "too-slow",
        409: "already-requested already-uploaded device-exists evaluation-off keys-replaced model-mismatch "
        "nothing-to-request out-of-order replayed-nonce release-frozen request-needed still-registered "
        "template-outdated too-many-devices uncalibrated wrong-algorithm wrong-deployment wrong-evaluation wrong-key "
        "wrong-model wrong-round",
        410: "evaluation-closed round-closed",
        413: "sample-too-large too-large",
        421: "wrong-authority",
        422: "invalid-request invalid-update laxer-rate threshold uncalibrated-domain",
        423: "disabled",
        429: "too-many-attempts too-many-requests too-many-uploads",
        500: "internal",
        502: "server-refused server-unreachable",
        503: "busy not-ready store-locked timed-out unusable-model",
        507: "storage-full store-full",
    }.items()
    for kind in kinds.split()
}
"""Kind -> HTTP status. The kinds of samples that cannot be used are not here: they are named after their errors."""

_OF_A_SAMPLE: Final = 422

Side: TypeAlias = Literal["server", "agent"]

_BOTH: Final[dict[type[errors.UvsdkError], str]] = {
    errors.SampleTooLargeError: "sample-too-large",
    errors.ModelMismatchError: "model-mismatch",
    errors.LaxerRateError: "laxer-rate",
    errors.UncalibratedDomainError: "uncalibrated-domain",
    errors.ThresholdError: "threshold",
    errors.TooManyAttemptsError: "too-many-attempts",
    errors.DisabledError: "disabled",
    errors.WireError: "malformed",
    errors.SettingsError: "invalid-request",
    errors.BundleError: "unusable-model",
    errors.UnknownUserError: "unknown-user",
}
KINDS: Final[Mapping[Side, Mapping[type[errors.UvsdkError], str]]] = {
    "server": _BOTH | {errors.SealError: "unsealable", errors.UpdateRejectedError: "invalid-update"},
    "agent": _BOTH
    | {
        errors.StoreFullError: "store-full",
        errors.StoreLockedError: "store-locked",
        errors.ServerUnreachableError: "server-unreachable",
        errors.StillRegisteredError: "still-registered",
        errors.FederationError: "server-refused",
    },
}
"""What an error is answered as; the most derived class decides, and a :class:`SampleError` is named after its class."""

_BY_STATUS: Final = {400: "malformed", 404: "not-found", 405: "method-not-allowed", 408: "too-slow", 413: "too-large"}


class Problem(Exception):
    """An answer that is not a success.

    Args:
        kind: one of :data:`STATUS`, or that of a sample that cannot be used.
        detail: what happened, what was expected and what to do.
        headers: headers that the answer needs, e.g. ``Retry-After``.
        measured: what was measured in a sample that was refused, name with unit -> value.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        measured: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = STATUS.get(kind, _OF_A_SAMPLE)
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.measured = measured

    __reduce__ = errors.as_it_was

    @classmethod
    def of(cls, error: Exception, side: Side) -> Problem | None:
        """The problem that ``error`` is to the callers of ``side``; ``None`` where it is none of theirs."""
        if isinstance(error, Problem):
            return error
        for base in type(error).__mro__:
            kind = kebab(type(error).__name__) if base is errors.SampleError else KINDS[side].get(base)
            if kind is not None:
                wait = getattr(error, "retry_after_s", None)
                headers = None if wait is None else {"Retry-After": str(math.ceil(wait))}
                return cls(kind, str(error), headers, getattr(error, "measured", None))
        return None

    @classmethod
    def of_status(cls, status: int, detail: str, headers: Mapping[str, str] | None = None) -> Problem:
        """What a web framework answers by itself."""
        if status in (408, 413):
            headers = {"Connection": "close"}  # the rest of the body was not read
        return cls(_BY_STATUS.get(status, "malformed" if status < 500 else "internal"), detail, headers)

    def document(self) -> dict[str, object]:
        """The body; ``measured`` comes with ``low-quality`` only."""
        body: dict[str, object] = {
            "type": PREFIX + self.kind,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        return body if self.measured is None else body | {"measured": dict(self.measured)}


def kebab(name: str) -> str:
    """The kind that is named after an error's class.

    >>> kebab("NoSpeechError")
    'no-speech'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name.removesuffix("Error")).lower()
