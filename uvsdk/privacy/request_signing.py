"""HTTP requests signed by a device: a subset of RFC 9421 with the Content-Digest of RFC 9530.

One signature, Ed25519, over ``@method``, ``@path``, ``@query`` and ``content-digest``, with the parameters
``created``, ``keyid``, ``nonce`` and ``alg``. ``@authority`` and ``@scheme`` are left out because a proxy in front of
the server may rewrite both; what must not be replayed to another deployment is sealed, and the seal names the
deployment. A request can be repeated unchanged within the window: the uploads it carries are idempotent.

>>> key = Ed25519PrivateKey.generate()
>>> body = hashlib.sha256(b"{}").digest()
>>> headers = sign_request(key, key_id="device-1", method="PUT", target="/v1/x?a=1", body_sha256=body, created=1000)
>>> key_id_of(headers)
'device-1'
>>> verify_request(
...     headers, method="PUT", target="/v1/x?a=1", body_sha256=body, public_key=key.public_key(), now=1010
... )
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from uvsdk.errors import SealError

COVERED: Final = ("@method", "@path", "@query", "content-digest")
"""Every signature covers exactly these, so that nothing a server acts on is left outside it."""

_LABEL = "uvsdk"
_HEADERS = ("signature-input", "signature", "content-digest")
_HEADER_LIMIT = 2048
_STRING = r'"[\x20\x21\x23-\x5b\x5d-\x7e]*"'  # an sf-string of RFC 8941 that needs no escape
_INPUT = re.compile(
    rf"(?P<label>[a-z][a-z0-9_-]*)=(?P<parameters>\((?P<components>{_STRING}(?: {_STRING})*)\)"
    rf"(?P<rest>(?:;[a-z]+=(?:[0-9]{{1,15}}|{_STRING}))*))"
)
_PARAMETER = re.compile(rf";([a-z]+)=(?:([0-9]{{1,15}})|({_STRING}))")
_SIGNATURE = re.compile(r"(?P<label>[a-z][a-z0-9_-]*)=:(?P<value>[A-Za-z0-9+/]{86}==):")


def sign_request(
    key: Ed25519PrivateKey, *, key_id: str, method: str, target: str, body_sha256: bytes, created: int
) -> dict[str, str]:
    """The three headers that sign one request.

    Args:
        key: the device's signing key.
        key_id: what the server knows it by.
        method: as sent, e.g. ``"PUT"``.
        target: path and query as sent, percent-encoded, e.g. ``"/v1/rounds/current?after=3"``.
        body_sha256: SHA-256 of the body, 32 bytes; of ``b""`` where there is none.
        created: seconds since 1970, by the device's clock.

    Raises:
        SealError: a part that cannot stand in a header (a quote in the key id, a target that is not ASCII, ...).
    """
    digest = content_digest(body_sha256)
    parameters = signature_parameters(
        COVERED, {"created": created, "keyid": key_id, "nonce": secrets.token_hex(16), "alg": "ed25519"}
    )
    signature = key.sign(signature_base(_components(COVERED, method, target, digest), parameters))
    return {
        "Content-Digest": digest,
        "Signature-Input": f"{_LABEL}={parameters}",
        "Signature": f"{_LABEL}=:{base64.b64encode(signature).decode()}:",
    }


def verify_request(
    headers: Mapping[str, str],
    *,
    method: str,
    target: str,
    body_sha256: bytes,
    public_key: Ed25519PublicKey,
    now: float,
    window_s: float = 300,
) -> None:
    """Check that the holder of ``public_key`` made this very request not long ago.

    Args:
        headers: of the request, names in any case.
        method: as received.
        target: path and query as received, still percent-encoded.
        body_sha256: SHA-256 of the body as received, 32 bytes.
        public_key: of the key that :func:`key_id_of` names.
        now: seconds since 1970, by the server's clock.
        window_s: how far the two clocks may differ, either way.

    Raises:
        SealError: missing or malformed headers, another body, another request, a signature from outside the window,
            or one by another key.
    """
    signed = _read(headers)
    if not abs(now - signed.created) <= window_s:  # written so that NaN fails
        raise SealError(
            f"the request was signed {now - signed.created:+.0f} s ago, accepted are {window_s:.0f} s either way; "
            "is the device's clock right?"
        )
    expected = content_digest(body_sha256)
    if signed.content_digest != expected:
        raise SealError("the Content-Digest is not the SHA-256 of the body that arrived (RFC 9530, sha-256 alone)")
    base = signature_base(_components(signed.components, method, target, expected), signed.parameters)
    try:
        public_key.verify(signed.signature, base)
    except InvalidSignature as error:
        raise SealError("the request's signature is not by the key it names, or the request was changed") from error


def key_id_of(headers: Mapping[str, str]) -> str:
    """The ``keyid`` a request claims, to look its key up by; proves nothing. Raises :class:`SealError` as above."""
    return _read(headers).key_id


def content_digest(body_sha256: bytes) -> str:
    """``Content-Digest`` of a body by its SHA-256 (RFC 9530).

    >>> content_digest(hashlib.sha256(b'{"hello": "world"}').digest())  # RFC 9530, appendix B
    'sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:'
    """
    if len(body_sha256) != hashlib.sha256().digest_size:
        raise SealError(f"a SHA-256 digest has 32 bytes, got {len(body_sha256)}")
    return f"sha-256=:{base64.b64encode(body_sha256).decode()}:"


def signature_parameters(components: Sequence[str], parameters: Mapping[str, int | str]) -> str:
    """The value of ``@signature-params``: what is covered, and the parameters in the order given (RFC 9421, 2.3)."""
    covered = " ".join(_quote(name) for name in components)
    rest = "".join(
        f";{name}={value if isinstance(value, int) else _quote(value)}" for name, value in parameters.items()
    )
    return f"({covered}){rest}"


def signature_base(components: Sequence[tuple[str, str]], parameters: str) -> bytes:
    """What is signed: a line per covered component and one for the parameters (RFC 9421, 2.5).

    Args:
        components: name and value, in the order of ``parameters``.
        parameters: made by :func:`signature_parameters`, or as received.

    Raises:
        SealError: a value that is not printable ASCII could make one base out of two requests.
    """
    lines = [f"{_quote(name)}: {value}" for name, value in components]
    lines.append(f'"@signature-params": {parameters}')
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise SealError("a signed part of a request is not printable ASCII; percent-encode the target")
    return "\n".join(lines).encode("ascii")


@dataclass(frozen=True, slots=True)
class _Signed:
    """What the three headers say, before any of it is believed."""

    components: tuple[str, ...]
    parameters: str
    key_id: str
    created: int
    signature: bytes
    content_digest: str


def _read(headers: Mapping[str, str]) -> _Signed:
    values: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if lower in _HEADERS:
            if lower in values:
                raise SealError(f"the header {lower} is there twice")
            values[lower] = value.strip(" \t")
    for name in _HEADERS:
        if name not in values:
            raise SealError(f"the header {name} is missing; sign the request with sign_request()")
        if len(values[name]) > _HEADER_LIMIT:
            raise SealError(f"the header {name} has {len(values[name])} characters, at most {_HEADER_LIMIT} are read")
    claim = _INPUT.fullmatch(values["signature-input"])
    signature = _SIGNATURE.fullmatch(values["signature"])
    if claim is None or signature is None or claim["label"] != signature["label"]:
        raise SealError("Signature-Input and Signature do not hold one Ed25519 signature under one label (RFC 9421)")
    components = tuple(item[1:-1] for item in re.findall(_STRING, claim["components"]))
    if sorted(components) != sorted(COVERED):
        raise SealError(f"the signature covers {len(components)} components; it must cover exactly {COVERED}")
    key_id, created = _read_parameters(claim["rest"])
    return _Signed(
        components, claim["parameters"], key_id, created, _decode(signature["value"]), values["content-digest"]
    )


def _read_parameters(text: str) -> tuple[str, int]:
    found: dict[str, int | str] = {}
    for name, number, string in _PARAMETER.findall(text):
        if name in found:
            raise SealError(f"the signature parameter {name} is there twice")
        found[name] = int(number) if number else string[1:-1]
    expected = {"created", "keyid", "nonce", "alg"}
    if set(found) != expected:
        raise SealError(f"a signature has the parameters {sorted(expected)}, got {sorted(found)}")
    key_id, created = found["keyid"], found["created"]
    if not isinstance(key_id, str) or not isinstance(created, int) or not found["nonce"]:
        raise SealError("created is an integer, keyid is a string and nonce is not empty")
    if found["alg"] != "ed25519":
        raise SealError("a request is signed with alg ed25519 and no other")
    return key_id, created


def _components(names: Sequence[str], method: str, target: str, digest: str) -> list[tuple[str, str]]:
    path, _, query = target.partition("?")
    if not path.startswith("/") or "#" in target:
        raise SealError("a target is the path and query of a request: it starts with / and has no fragment")
    values = {"@method": method, "@path": path, "@query": f"?{query}", "content-digest": digest}
    return [(name, values[name]) for name in names]


def _quote(text: str) -> str:
    quoted = f'"{text}"'
    if not re.fullmatch(_STRING, quoted):
        raise SealError("a quoted part of a signature is printable ASCII without quotes and backslashes")
    return quoted


def _decode(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise SealError("the Signature is not base64") from error


__all__ = [
    "COVERED",
    "content_digest",
    "key_id_of",
    "sign_request",
    "signature_base",
    "signature_parameters",
    "verify_request",
]
