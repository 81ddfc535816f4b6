"""A person's template: the one vector that later probes are compared with, and how it is kept.

On disk a template is, in order::

    b"UVT3"             magic and version; still read: b"UVT2", whose threshold names neither its calibration nor who
                        asked for its rate, and b"UVT1", without conditions and scale
    u16 little endian   length of the model version
    model version       UTF-8, in clear, so that a stale template is told from a damaged one without the key
    12 bytes            nonce
    rest                AES-256-GCM of the fields (uvsdk.records.codec); everything before the nonce is its
                        associated data
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import SettingsError, TemplateFormatError, ThresholdError, WireError
from uvsdk.records.codec import pack, unpack
from uvsdk.records.later import later
from uvsdk.records.transfer import reduce_to_fields
from uvsdk.scoring import Scale, Threshold
from uvsdk.scoring.conditions import Conditions

KEY_BYTES: Final = 32
"""Length of a template key (AES-256)."""

_MAGIC = b"UVT3"
_NONCE_BYTES = 12
_TAG_BYTES = 16
_NORM_TOLERANCE = 1e-3  # SPEC 1.7


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """The normalised mean of a person's enrolment embeddings (SPEC 1.6), bound to the model that made them.

    ``repr`` leaves the embedding out; it is as personal as a photograph. A pickle of it holds it in clear: for another
    process of this machine, never for a file (:meth:`to_bytes`).

    Args:
        embedding: float32 (d,), unit norm; kept as a read-only copy.
        model_version: version of the bundle it was made with; no other can be compared with it.
        modality: its name, e.g. ``voice`` or ``face``.
        samples: enrolment samples behind it, at least 1.
        threshold: the score from which this person is accepted; ``None`` where the bundle was not calibrated.
        conditions: of the enrolment, see :func:`uvsdk.scoring.conditions.together`; empty where they are not known.

    Raises:
        TemplateFormatError: a vector that is not finite or not of unit norm, or an impossible count.
    """

    embedding: Float32 = field(repr=False)
    model_version: str
    modality: str
    samples: int
    threshold: Threshold | None = None
    conditions: Conditions = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.embedding.dtype != np.float32 or self.embedding.ndim != 1 or not len(self.embedding):
            raise TemplateFormatError(
                f"a template is float32 of shape (d,), got {self.embedding.dtype} of shape {self.embedding.shape}"
            )
        norm = float(np.linalg.norm(self.embedding.astype(np.float64)))
        if not abs(norm - 1.0) <= _NORM_TOLERANCE:  # written so that NaN fails
            raise TemplateFormatError(f"a template has norm 1, got {norm:.4g}; normalise the mean of the embeddings")
        if type(self.samples) is not int or self.samples < 1:
            raise TemplateFormatError(f"a template is made of at least 1 sample, got {self.samples}")
        if not self.model_version or not self.modality:
            raise TemplateFormatError("a template names the model version and the modality it was made with")
        object.__setattr__(self, "conditions", MappingProxyType(self._checked_conditions()))
        own = self.embedding.copy()
        own.flags.writeable = False
        object.__setattr__(self, "embedding", own)

    def _checked_conditions(self) -> dict[str, float]:
        """In the order of the modality's; where there are none, the modality need not be installed here."""
        from uvsdk import modality

        if not self.conditions:
            return {}
        known = [kind.name for kind in modality.get(self.modality).conditions]
        wrong = [name for name, value in self.conditions.items() if name not in known or not np.isfinite(value)]
        if wrong:
            raise TemplateFormatError(f"a template's conditions are finite, of {', '.join(known)}; got {wrong[0]}")
        return {name: float(self.conditions[name]) for name in known if name in self.conditions}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Template):
            return NotImplemented
        return self._plain() == other._plain() and np.array_equal(self.embedding, other.embedding)

    __reduce__ = reduce_to_fields

    def __hash__(self) -> int:
        return hash((self._plain(), self.embedding.tobytes()))

    def to_bytes(self, key: bytes) -> bytes:
        """Encrypt under a key of 32 bytes (see :func:`new_key`); two calls never give the same bytes.

        Raises:
            SettingsError: a key of another length.
        """
        version = self.model_version.encode()
        header = _MAGIC + struct.pack("<H", len(version)) + version
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return header + nonce + _cipher(key).encrypt(nonce, self.to_plain_bytes(), header)

    def to_plain_bytes(self) -> bytes:
        """Everything but the model version, in clear: for a message that is sealed as a whole."""
        limit = self.threshold
        return pack(
            _Body3(
                modality=self.modality,
                samples=self.samples,
                embedding=self.embedding,
                score=None if limit is None else float(limit.score),
                fmr=None if limit is None else float(limit.fmr),
                trials=None if limit is None else limit.trials,
                fmr_low=None if limit is None else float(limit.interval[0]),
                fmr_high=None if limit is None else float(limit.interval[1]),
                calibrated_with=None if limit is None else limit.model_version,
                scale=None if limit is None else limit.scale,
                condition_names=tuple(self.conditions),
                condition_values=np.array(list(self.conditions.values()), np.float64),
                calibration=None if limit is None else limit.calibration,
                by_default=None if limit is None else limit.by_default,
                centre="" if limit is None else limit.centre,
            )
        )

    @classmethod
    def from_plain_bytes(cls, data: bytes | memoryview, model_version: str) -> Template:
        """The inverse of :meth:`to_plain_bytes`.

        Raises:
            TemplateFormatError: not the fields of a template, or impossible ones.
        """
        return _of_fields(_Body3, data, model_version)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, key: bytes) -> Template:
        """Decrypt what :meth:`to_bytes` made.

        Raises:
            TemplateFormatError: not a template, one of a newer format, one that was cut short or changed, or one
                that another key encrypted; encryption cannot tell the last two apart.
            SettingsError: a key that has not 32 bytes.
        """
        header, rest = _split(bytes(data))
        cipher = _cipher(key)
        try:
            plain = cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], header)
        except InvalidTag as error:
            raise TemplateFormatError(
                "the template does not decrypt: the key is not the one it was saved with, or the bytes were damaged; "
                "try the right key, else enrol again"
            ) from error
        return _of_fields(_BODIES[header[:4]], plain, _version_in(header))

    def _plain(self) -> tuple[str, str, int, Threshold | None, tuple[tuple[str, float], ...]]:
        return self.model_version, self.modality, self.samples, self.threshold, tuple(self.conditions.items())


def new_key() -> bytes:
    """A key for templates, 32 bytes from the operating system; keep it where the platform keeps secrets."""
    return secrets.token_bytes(KEY_BYTES)


def _version_in(header: bytes) -> str:
    try:
        return header[6:].decode()
    except UnicodeDecodeError as error:
        raise TemplateFormatError("the template's model version is not text") from error


def _of_fields(kind: type[_Body], data: bytes | memoryview, model_version: str) -> Template:
    try:
        return unpack(kind, data).template(model_version)
    except (WireError, ThresholdError) as error:
        raise TemplateFormatError(f"what should be a template holds something else: {error}") from error


@dataclass(frozen=True, slots=True)
class _Body:
    """What the first version encrypted; the threshold's six fields are ``None`` together."""

    modality: str
    samples: int
    embedding: Float32
    score: float | None
    fmr: float | None
    trials: int | None
    fmr_low: float | None
    fmr_high: float | None
    calibrated_with: str | None

    def template(self, model_version: str) -> Template:
        threshold = None
        if self.score is not None:
            if (
                self.fmr is None
                or self.trials is None
                or self.fmr_low is None
                or self.fmr_high is None
                or self.calibrated_with is None
            ):
                raise WireError("a threshold without the measurement behind it")
            interval = (self.fmr_low, self.fmr_high)
            threshold = Threshold(
                self.score,
                self.fmr,
                self.trials,
                interval,
                self.calibrated_with,
                self._scale(),
                self._calibration(),
                self._by_default(),
                self._centre(),
            )
        return Template(self.embedding, model_version, self.modality, self.samples, threshold, self._conditions())

    def _scale(self) -> Scale:
        return "cosine"

    def _calibration(self) -> str:
        return ""

    def _by_default(self) -> bool:
        return False

    def _centre(self) -> str:
        return ""

    def _conditions(self) -> dict[str, float]:
        return {}


@dataclass(frozen=True, slots=True)
class _Body2(_Body):
    """What the second version encrypted; the threshold's seven fields are ``None`` together."""

    scale: str | None
    condition_names: tuple[str, ...]
    condition_values: Float64

    def _scale(self) -> Scale:
        if self.scale not in ("cosine", "llr"):
            raise WireError(f"a threshold lies on the scale cosine or llr, got {self.scale!r}")
        return "llr" if self.scale == "llr" else "cosine"

    def _conditions(self) -> dict[str, float]:
        if self.condition_values.shape != (len(self.condition_names),):
            raise WireError("every condition has one value")
        return dict(zip(self.condition_names, self.condition_values.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class _Body3(_Body2):
    """What is encrypted; the threshold's nine fields are ``None`` together."""

    calibration: str | None
    by_default: bool | None
    centre: str = later(str)

    def _calibration(self) -> str:
        if self.calibration is None:
            raise WireError("a threshold that does not say whether a calibration is behind it")
        return self.calibration

    def _by_default(self) -> bool:
        if self.by_default is None:
            raise WireError("a threshold that does not say who named its rate")
        return self.by_default

    def _centre(self) -> str:
        return self.centre


_BODIES: Final[Mapping[bytes, type[_Body]]] = MappingProxyType({b"UVT1": _Body, b"UVT2": _Body2, _MAGIC: _Body3})


def _split(data: bytes) -> tuple[bytes, bytes]:
    if data[:4] not in _BODIES:
        if data[:3] == _MAGIC[:3] and len(data) > 3:
            raise TemplateFormatError(
                f"template format {data[:4]!r} is not known here, the newest is {_MAGIC!r}; update uvsdk"
            )
        raise TemplateFormatError(f"not a template: expected the magic {_MAGIC!r}")
    end = 6 + struct.unpack("<H", data[4:6])[0] if len(data) >= 6 else len(data)
    if len(data) < end + _NONCE_BYTES + _TAG_BYTES:
        raise TemplateFormatError(f"a template of {len(data)} bytes was cut short or damaged")
    return data[:end], data[end:]


def _cipher(key: bytes) -> AESGCM:
    if len(key) != KEY_BYTES:
        raise SettingsError(f"a template key has {KEY_BYTES} bytes, got {len(key)}; make one with new_key()")
    return AESGCM(key)
