"""A cohort of features: what a server embeds under every candidate, so that devices can score their template against
strangers (``cohort.uvc``).

It holds features of public or consenting people, as a store keeps them of an enrolment: no names and no recordings, but
a voice or a face can be made of them, so it is kept as carefully as the recordings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from uvsdk import modality
from uvsdk.arrays import Array, Float32, Int64
from uvsdk.bundle import Bundle
from uvsdk.errors import BundleError, ModelMismatchError, WireError
from uvsdk.records.codec import pack, unpack

LEAST_ROWS: Final = 100
"""Of fewer strangers a histogram of scores would tell single ones."""

MOST_ROWS: Final = 2_000
"""More cost every device a download and the server an embedding, and tell hardly more."""

LEAST_PEOPLE: Final = 10

LIMIT_BYTES: Final = 512 << 20
"""Largest file that is read."""

_MAGIC: Final = b"UVH1"
_SOURCE_LIMIT: Final = 500
_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class FeatureCohort:
    """People who are nobody's claim, as features.

    Args:
        modality: its name, e.g. ``voice``.
        source: in words, whose recordings or photographs, and by whose leave.
        made_unix_s: seconds since 1970.
        person: int64 (n,), index of the person each sample is of, from 0 on.
        features: position of each sample -> what its modality prepared.

    Raises:
        WireError: too few samples or people, too many samples, or fields that do not belong together.
    """

    modality: str
    source: str
    made_unix_s: float
    person: Int64
    features: Mapping[str, Array] = field(repr=False)

    def __post_init__(self) -> None:
        count = len(self.features)
        if not LEAST_ROWS <= count <= MOST_ROWS or self.people < LEAST_PEOPLE:
            raise WireError(
                f"a cohort has {LEAST_ROWS} to {MOST_ROWS} samples of {LEAST_PEOPLE} people or more, this one {count} "
                f"of {self.people}"
            )
        if self.person.shape != (count,) or (self.person < 0).any():
            raise WireError("a cohort names a person, from 0 on, for each sample")
        if set(self.features) != {str(place) for place in range(count)}:
            raise WireError("the samples of a cohort are numbered from 0 on")
        if not 0 < len(self.source) <= _SOURCE_LIMIT or not self.source.isprintable():
            raise WireError(f"a cohort says in at most {_SOURCE_LIMIT} characters whose it is")
        for item in self.features.values():
            if not item.size or (item.dtype.kind == "f" and not np.isfinite(item).all()):
                raise WireError("a sample of the cohort is empty, or holds values that are not finite")

    @classmethod
    def of(
        cls, features: Sequence[Array], person: Sequence[int], *, modality: str, source: str, now: float
    ) -> FeatureCohort:
        """Of samples and whose they are. Raises as above."""
        named = {str(place): item for place, item in enumerate(features)}
        return cls(modality, source, now, np.asarray(person, np.int64), named)

    @property
    def people(self) -> int:
        """How many people there are."""
        return len(np.unique(self.person))

    def to_bytes(self) -> bytes:
        """The file ``cohort.uvc``."""
        record = _CohortFile(self.modality, self.source, self.made_unix_s, self.person, dict(self.features))
        return _MAGIC + pack(record)

    @classmethod
    def from_bytes(cls, data: bytes) -> FeatureCohort:
        """The inverse of :meth:`to_bytes`. Raises :class:`WireError`."""
        if len(data) > LIMIT_BYTES:
            raise WireError(f"the cohort has {len(data)} bytes, at most {LIMIT_BYTES} are read")
        if not data.startswith(_MAGIC):
            raise WireError("not a cohort of features; make one with `uvsdk cohort make`")
        found = unpack(_CohortFile, memoryview(data)[len(_MAGIC) :])
        return cls(found.modality, found.source, found.made_unix_s, found.person, found.features)

    def embedded(self, bundle: Bundle) -> Float32:
        """float32 (n, d), unit rows in the order of the samples, with onnxruntime alone.

        Raises:
            ModelMismatchError: the model is of another modality.
            BundleError: the features are of another preprocessing, or the model gives what is no embedding.
        """
        if bundle.manifest.modality != self.modality:
            raise ModelMismatchError(f"the cohort is of {self.modality}, the model of {bundle.manifest.modality}")
        reader, preprocessing = modality.get(self.modality), bundle.manifest.preprocessing
        ordered = [self.features[str(place)] for place in range(len(self.features))]
        parts = [
            bundle.embeddings([reader.views(item, preprocessing) for item in ordered[start : start + _AT_ONCE]])
            for start in range(0, len(ordered), _AT_ONCE)
        ]
        rows: Float32 = np.concatenate(parts)
        check_rows(rows)
        return rows


def check_rows(rows: Float32) -> None:
    """Raise :class:`BundleError` unless these are embeddings of many different strangers.

    A device asks this of what a server sends: scores against rows that are few, or all alike, would tell of its
    template what a histogram of strangers does not.
    """
    if rows.ndim != 2 or not LEAST_ROWS <= len(rows) <= MOST_ROWS or not np.isfinite(rows).all():
        raise BundleError(f"a cohort has {LEAST_ROWS} to {MOST_ROWS} finite rows, got shape {rows.shape}")
    if not np.allclose(np.linalg.norm(rows.astype(np.float64), axis=1), 1.0, atol=1e-3):
        raise BundleError("the embeddings of a cohort have norm 1")
    mean = rows.mean(axis=0, dtype=np.float64)
    # |mean|^2 is the mean cosine of all pairs, those of a row with itself among them.
    if float(mean @ mean) > 0.95:
        raise BundleError("the embeddings of the cohort are all alike: under this model strangers cannot be told apart")


@dataclass(frozen=True, slots=True)
class _CohortFile:
    """The fields of a :class:`FeatureCohort` as they are packed."""

    modality: str
    source: str
    made_unix_s: float
    person: Int64
    features: dict[str, Array]
