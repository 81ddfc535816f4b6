"""HTTP requests signed by a device: a subset of RFC 9421 with the Content-Digest of RFC 9530.

One signature, Ed25519, over ``@method``, ``@authority``, ``@path``, ``@query`` and ``content-digest``, with the
parameters ``created``, ``keyid``, ``nonce`` and ``alg``. ``@scheme`` is left out because a proxy in front of the server
ends TLS; ``@authority`` is the name by which the device calls the server, whatever a proxy makes of the Host header.

No request can be repeated. The nonce is a challenge that the server gave out, a dot, and 128 random bits of the device.
The server accepts a challenge for minutes, a nonce once, and after a restart no challenge of the time before, so it
has nothing to write down, and no clock decides: ``created`` is for logs. Every answer of a server carries the challenge
(the header ``UVSDK-Challenge``); a request under an old one is refused (``stale-challenge``) and signed anew. DPoP does
the same (RFC 9449, section 8).

>>> key = Ed25519PrivateKey.generate()
>>> request = Requested("PUT", "clinic.example", "/v1/x?a=1", hashlib.sha256(b"{}").digest())
>>> headers = sign_request(request, key, key_id="device-1", challenge="c0ffee", created=1000)
>>> claim_of(headers).key_id
'device-1'
>>> verify_request(headers, request, public_key=key.public_key())
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

COVERED: Final = ("@method", "@authority", "@path", "@query", "content-digest")
"""Every signature covers exactly these, so that nothing a server acts on is left outside it."""

CHALLENGE_HEADER: Final = "UVSDK-Challenge"
"""In every answer of a server: what the next requests are signed over."""

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


@dataclass(frozen=True, slots=True)
class Requested:
    """What a signature covers.

    Args:
        method: e.g. ``"PUT"``.
        authority: host, and port where it is not the scheme's own, as the device calls the server; lower case.
        target: path and query, percent-encoded, e.g. ``"/v1/rounds/current?after=3"``.
        body_sha256: SHA-256 of the body, 32 bytes; of ``b""`` where there is none.
    """

    method: str
    authority: str
    target: str
    body_sha256: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request says of itself, before any of it is believed.

    Args:
        key_id: by which the server knows the key.
        nonce: may be used once.
        challenge: the part of the nonce that a server gave out.
        created: seconds since 1970, by the device's clock.
    """

    key_id: str
    nonce: str
    challenge: str
    created: int


def sign_request(
    requested: Requested, key: Ed25519PrivateKey, *, key_id: str, challenge: str, created: int
) -> dict[str, str]:
    """The three headers that sign one request.

    Args:
        requested: what is sent.
        key: the device's signing key.
        key_id: what the server knows it by.
        challenge: the newest that the server gave out.
        created: seconds since 1970, by the device's clock.

    Raises:
        SealError: a part that cannot stand in a header (a quote in the key id, a target that is not ASCII, ...).
    """
    nonce = f"{challenge}.{secrets.token_hex(16)}"
    parameters = signature_parameters(COVERED, {"created": created, "keyid": key_id, "nonce": nonce, "alg": "ed25519"})
    signature = key.sign(signature_base(_components(COVERED, requested), parameters))
    return {
        "Content-Digest": content_digest(requested.body_sha256),
        "Signature-Input": f"{_LABEL}={parameters}",
        "Signature": f"{_LABEL}=:{base64.b64encode(signature).decode()}:",
    }


def verify_request(headers: Mapping[str, str], requested: Requested, *, public_key: Ed25519PublicKey) -> None:
    """Check that the holder of ``public_key`` made this very request; whether it is new is for the caller to say.

    Args:
        headers: of the request, names in any case.
        requested: as received.
        public_key: of the key that :func:`claim_of` names.

    Raises:
        SealError: missing or malformed headers, another body, another request, or a signature by another key.
    """
    signed = _read(headers)
    if signed.content_digest != content_digest(requested.body_sha256):
        raise SealError("the Content-Digest is not the SHA-256 of the body that arrived (RFC 9530, sha-256 alone)")
    base = signature_base(_components(signed.components, requested), signed.parameters)
    try:
        public_key.verify(signed.signature, base)
    except InvalidSignature as error:
        raise SealError("the request's signature is not by the key it names, or the request was changed") from error


def claim_of(headers: Mapping[str, str]) -> Claim:
    """What a request says of itself, to look its key up by; proves nothing. Raises :class:`SealError` as above."""
    return _read(headers).claim


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
    """What the three headers hold, before any of it is believed."""

    components: tuple[str, ...]
    parameters: str
    claim: Claim
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
    return _Signed(
        components=components,
        parameters=claim["parameters"],
        claim=_read_parameters(claim["rest"]),
        signature=_decode(signature["value"]),
        content_digest=values["content-digest"],
    )


def _read_parameters(text: str) -> Claim:
    found: dict[str, int | str] = {}
    for name, number, string in _PARAMETER.findall(text):
        if name in found:
            raise SealError(f"the signature parameter {name} is there twice")
        found[name] = int(number) if number else string[1:-1]
    expected = {"created", "keyid", "nonce", "alg"}
    if set(found) != expected:
        raise SealError(f"a signature has the parameters {sorted(expected)}, got {sorted(found)}")
    key_id, created, nonce = found["keyid"], found["created"], found["nonce"]
    if not isinstance(key_id, str) or not isinstance(created, int) or not isinstance(nonce, str):
        raise SealError("created is an integer, keyid and nonce are strings")
    challenge, dot, own = nonce.rpartition(".")
    if not dot or not own:
        raise SealError("a nonce is the server's challenge, a dot and what makes the request the only one of its kind")
    if found["alg"] != "ed25519":
        raise SealError("a request is signed with alg ed25519 and no other")
    return Claim(key_id, nonce, challenge, created)


def _components(names: Sequence[str], requested: Requested) -> list[tuple[str, str]]:
    path, _, query = requested.target.partition("?")
    if not path.startswith("/") or "#" in requested.target:
        raise SealError("a target is the path and query of a request: it starts with / and has no fragment")
    values = {
        "@method": requested.method,
        "@authority": requested.authority,
        "@path": path,
        "@query": f"?{query}",
        "content-digest": content_digest(requested.body_sha256),
    }
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
