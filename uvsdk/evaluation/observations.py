"""What a calibration learns from: people's samples and worse copies of them, embedded, with their conditions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uvsdk.arrays import Bool, Float32, Int64
from uvsdk.bundle import Bundle, inference
from uvsdk.errors import EnrolmentError, SampleError, SettingsError
from uvsdk.evaluation.protocols import Person
from uvsdk.modality import Capture, Captured, get
from uvsdk.modality.contract import Worsen
from uvsdk.modality.sample import FacesRule
from uvsdk.scoring.conditions import Condition, Conditions, conditions_of

ORIGINAL = "original"
"""Name of the copy that is none."""

# Recordings of the people before, kept decoded as the babble of the next.
_HEARD = 12


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """One row for each sample or copy of one.

    Args:
        embeddings: float32 (n, d), unit rows, all of one model.
        person: int64 (n,), index of the person.
        recording: int64 (n,), index of the sample it is or was made of, over all people.
        copy: int64 (n,), index into ``copies``.
        enrolled: bool (n,), whether the sample is for enrolment.
        conditions: of each row.
        copies: names of the copies; the first is :data:`ORIGINAL`.
        kinds: the conditions that were looked for, in the modality's order.
    """

    embeddings: Float32
    person: Int64
    recording: Int64
    copy: Int64
    enrolled: Bool
    conditions: tuple[Conditions, ...]
    copies: tuple[str, ...]
    kinds: tuple[Condition, ...]

    def __post_init__(self) -> None:
        count = len(self.embeddings)
        if any(len(part) != count for part in (self.person, self.recording, self.copy, self.enrolled, self.conditions)):
            raise ValueError("every embedding has a person, a recording, a copy, a role and conditions")
        if not self.copies or self.copies[0] != ORIGINAL:
            raise ValueError(f"the first of the copies is {ORIGINAL!r}")

    @property
    def people(self) -> int:
        """How many people there are."""
        return len(np.unique(self.person))

    def of(self, people: Sequence[int] | Int64) -> Observations:
        """Those of some people only."""
        kept = np.isin(self.person, np.asarray(people, np.int64))
        return Observations(
            self.embeddings[kept],
            self.person[kept],
            self.recording[kept],
            self.copy[kept],
            self.enrolled[kept],
            tuple(item for item, keep in zip(self.conditions, kept, strict=True) if keep),
            self.copies,
            self.kinds,
        )


def observe(
    people: Sequence[Person], bundle: Bundle, *, worse: bool = True, faces: FacesRule = "single", seed: int = 0
) -> tuple[Observations, tuple[str, ...]]:
    """Embed everybody's samples and, with ``worse``, the modality's worse copies of them.

    Only what cannot be matched at all is left out (quality policy ``off``): a calibration should see poor samples.
    Files of one person with the same bytes count once.

    Args:
        people: whose samples.
        bundle: the model.
        worse: whether copies are made.
        faces: whose face is meant where a picture has several, see :class:`uvsdk.modality.Capture`.
        seed: of places and noise.

    Returns:
        The observations, and why samples could not be used, one line each.

    Raises:
        EnrolmentError: fewer than two people have a usable sample.
        SettingsError: a file cannot be read.
    """
    rng, modality = np.random.default_rng(seed), get(bundle.manifest.modality)
    worsen = modality.worsen if worse else None
    capture = Capture(quality="off", faces=faces)
    rows: list[tuple[Float32, int, int, str, bool, Conditions]] = []
    failures: list[str] = []
    heard: list[tuple[int, Captured | None]] = []
    recording = 0
    for index, person in enumerate(people):
        seen: set[bytes] = set()
        for path, enrolled in [(path, True) for path in person.enrol] + [(path, False) for path in person.verify]:
            data = _read(path)
            digest = hashlib.sha256(data).digest()
            if digest in seen:
                continue
            seen.add(digest)
            try:
                others = [item for owner, item in heard if owner != index]
                found, captured = _variants(data, bundle, capture, worsen, rng, others)
            except SampleError as error:
                failures.append(f"{path.name}: {error}")
                continue
            for name, row, measured in found:
                where = conditions_of(measured, modality.conditions)
                rows.append((row, index, recording, name, enrolled, where))
            recording += 1
            heard.append((index, captured))
            del heard[:-_HEARD]
    if len({row[1] for row in rows}) < 2:
        raise EnrolmentError(
            f"no impostor trial could be made of {len(people)} people ({len(failures)} samples could not be used); a "
            "calibration needs two people with a usable sample"
        )
    names = (ORIGINAL, *sorted({row[3] for row in rows} - {ORIGINAL}))
    columns = list(zip(*rows, strict=True))
    return Observations(
        np.stack(columns[0]).astype(np.float32),
        np.array(columns[1], np.int64),
        np.array(columns[2], np.int64),
        np.array([names.index(name) for name in columns[3]], np.int64),
        np.array(columns[4], np.bool_),
        tuple(columns[5]),
        names,
        modality.conditions,
    ), tuple(failures)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read the sample {path.name}: {error.strerror}") from error


def _variants(
    data: bytes,
    bundle: Bundle,
    capture: Capture,
    worsen: Worsen | None,
    rng: np.random.Generator,
    others: Sequence[Captured | None],
) -> tuple[list[tuple[str, Float32, dict[str, float]]], Captured | None]:
    """The sample and its copies, and the sample as it was decoded; a copy that cannot be matched is left out."""
    embedded = inference.embed(data, bundle, capture=capture)
    measured = embedded.quality.measured
    found = [(ORIGINAL, embedded.embedding, measured)]
    for name, sample in ({} if worsen is None else worsen(embedded.captured, measured, rng, others)).items():
        try:
            copy = inference.embed(sample, bundle, capture=capture)
        except SampleError:
            continue
        found.append((name, copy.embedding, copy.quality.measured))
    return found, embedded.captured
