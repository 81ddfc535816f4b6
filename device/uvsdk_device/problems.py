"""The one place of the agent where an error becomes an HTTP answer: RFC 9457, with the server's kinds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from uvsdk import errors

_PREFIX = "urn:uvsdk:problem:"

# The most derived class that matches decides; a SampleError's kind is its class name in kebab case.
_STATUS: Mapping[type[errors.UvsdkError], tuple[int, str]] = {
    errors.SampleTooLargeError: (413, "sample-too-large"),
    errors.SampleError: (422, "sample"),
    errors.ModelMismatchError: (409, "model-mismatch"),
    errors.LaxerRateError: (422, "laxer-rate"),
    errors.ThresholdError: (422, "threshold"),
    errors.TooManyAttemptsError: (429, "too-many-attempts"),
    errors.DisabledError: (423, "disabled"),
    errors.WireError: (400, "malformed"),
    errors.SettingsError: (422, "invalid-request"),
    errors.BundleError: (503, "unusable-model"),
    errors.UnknownUserError: (404, "unknown-user"),
    errors.StoreFullError: (507, "store-full"),
    errors.StoreLockedError: (503, "store-locked"),
    errors.ServerUnreachableError: (502, "server-unreachable"),
    errors.StillRegisteredError: (409, "still-registered"),
    errors.FederationError: (502, "server-refused"),
}


def response(
    status: int,
    kind: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    extensions: Mapping[str, object] = MappingProxyType({}),
) -> JSONResponse:
    """A problem document; ``extensions`` are further members, as RFC 9457 allows."""
    body = {"type": _PREFIX + kind, "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    body |= extensions
    return JSONResponse(body, status, headers=headers, media_type="application/problem+json")


def of(error: Exception) -> JSONResponse:
    """The problem document that ``error`` is."""
    if isinstance(error, HTTPException):
        # The phrase of 413 differs between versions of Python; the server's name for it does not.
        kind = "too-large" if error.status_code == 413 else _kebab(HTTPStatus(error.status_code).phrase)
        return response(error.status_code, kind, error.detail, error.headers)
    for cls in type(error).__mro__:
        if cls in _STATUS:
            status, kind = _STATUS[cls]
            if cls is errors.SampleError:
                kind = _kebab(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error")))
            return response(status, kind, str(error), _headers(error), _extensions(error))
    return response(500, "internal", "the agent failed; its log holds the reason")


def _headers(error: Exception) -> Mapping[str, str] | None:
    if not isinstance(error, errors.TooManyAttemptsError):
        return None
    return {"Retry-After": str(math.ceil(error.retry_after_s))}


def _extensions(error: Exception) -> Mapping[str, object]:
    """What was measured in a sample of low quality, for whoever shows it to the person."""
    return {"measured": error.measured} if isinstance(error, errors.LowQualityError) else {}


def _kebab(words: str) -> str:
    """``No Speech`` -> ``no-speech``."""
    return re.sub(r"\W+", "-", words).lower()
