"""Which comparisons an evaluation makes, from a folder or a list of files to :class:`~uvsdk.evaluation.trials.Trials`.

Two protocols. *Enrol and verify*: a template per person from their enrolment samples, every other sample a probe
against every template. *All pairs*: every sample against every other, each pair once. In both, no sample is ever
scored against a template that contains it: a file may have one role only, and a probe whose bytes equal one of its
person's enrolment samples is set aside and counted. Samples that cannot be processed are failures to acquire, people
left without an enrolment sample are failures to enrol; both are counted, neither hides in an error rate.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uvsdk import inference
from uvsdk.arrays import Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.errors import EnrolmentError, SampleError, SettingsError
from uvsdk.evaluation.trials import Trials

Embedder = Callable[[Path], Float32]
"""One sample to one unit vector, float32 (d,); raises SampleError for a sample that cannot be used."""


@dataclass(frozen=True, slots=True)
class Person:
    """The files of one person, by role. Both are sorted; no file is in both."""

    name: str
    enrol: tuple[Path, ...]
    verify: tuple[Path, ...]

    def __post_init__(self) -> None:
        shared = {path.resolve() for path in self.enrol} & {path.resolve() for path in self.verify}
        if shared:
            raise SettingsError(
                f"{len(shared)} files are both enrolment and verification samples, e.g. {min(shared).name}; "
                "a sample scored against a template that contains it measures nothing"
            )


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that could not be acquired: whose, which file, the error's class in words, and its message."""

    subject: str
    file: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The trials of one protocol and what had to stay out of them.

    Args:
        trials: every comparison that was made.
        samples: how many samples were tried.
        failures: samples that could not be acquired.
        not_enrolled: people without a template since none of their enrolment samples could be used.
        repeated: probes set aside since their bytes are one of the same person's enrolment samples.
        protocol: in words.
    """

    trials: Trials
    samples: int
    failures: tuple[Failure, ...]
    not_enrolled: tuple[str, ...]
    repeated: int
    protocol: str

    @property
    def failure_to_acquire_rate(self) -> float:
        """Share of the tried samples that could not be acquired."""
        return len(self.failures) / self.samples


def folder(root: Path, *, enrol: int = 3) -> list[Person]:
    """People from a folder that holds one folder for each.

    A person's folder either holds the folders ``enrol`` and ``verify``, or files: then the first ``enrol`` by name
    are for enrolment and the rest are probes. Names that start with a dot are left out.

    Raises:
        SettingsError: ``root`` is not a folder, ``enrol`` is below 1, or fewer than two people were found.
    """
    if not root.is_dir():
        raise SettingsError(f"{root} is not a folder; name one that holds a folder of samples for each person")
    if enrol < 1:
        raise SettingsError(f"a template needs at least 1 enrolment sample, got {enrol}")
    return _at_least_two([_person(path, enrol) for path in sorted(root.iterdir()) if _visible(path) and path.is_dir()])


def listed(list_file: Path) -> list[Person]:
    """People from a CSV file with the columns ``person``, ``role`` (``enrol`` or ``verify``) and ``path``.

    Paths are relative to the list.

    Raises:
        SettingsError: a column is missing, a role is unknown, or fewer than two people are listed.
    """
    roles: dict[str, dict[str, list[Path]]] = {}
    with list_file.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        if not {"person", "role", "path"} <= set(reader.fieldnames or ()):
            raise SettingsError(f"{list_file.name} needs the columns person, role, path, got {reader.fieldnames}")
        for row in reader:
            if row["role"] not in ("enrol", "verify"):
                raise SettingsError(f"{list_file.name}, line {reader.line_num}: the role is enrol or verify")
            paths = roles.setdefault(row["person"], {"enrol": [], "verify": []})
            paths[row["role"]].append(list_file.parent / row["path"])
    return _at_least_two(
        [
            Person(name, tuple(sorted(paths["enrol"])), tuple(sorted(paths["verify"])))
            for name, paths in sorted(roles.items())
        ]
    )


def bundle_embedder(bundle: Bundle) -> Embedder:
    """The embedder that enrolment and verification use."""
    return lambda path: inference.embed(path, bundle).embedding


def enrol_and_verify(people: Sequence[Person], embed: Embedder) -> Outcome:
    """Every probe against every person's template (normalised mean of the enrolment embeddings).

    Raises:
        EnrolmentError: fewer than two people have a template, or no genuine trial could be made.
    """
    outcome = _against_templates(people, embed)
    own = outcome.trials.is_genuine
    if not own.any() or own.all():
        raise EnrolmentError(
            f"{int(own.sum())} genuine and {int((~own).sum())} impostor trials could be made of {len(people)} people "
            f"({len(outcome.failures)} of {outcome.samples} samples could not be used); an evaluation needs two "
            "people with a template, and a probe of one of them"
        )
    return outcome


def impostors(people: Sequence[Person], embed: Embedder) -> Outcome:
    """As :func:`enrol_and_verify` for a calibration, which needs impostor trials only.

    A person who gives no probe beyond their enrolment samples still serves as a template, and one without a template
    as an impostor.

    Raises:
        EnrolmentError: no sample of one person could be held against the template of another.
    """
    outcome = _against_templates(people, embed)
    if outcome.trials.is_genuine.all():
        raise EnrolmentError(
            f"no impostor trial could be made of {len(people)} people ({len(outcome.failures)} of {outcome.samples} "
            "samples could not be used); a calibration needs two people, one with a template and one with a probe"
        )
    return outcome


def all_pairs(people: Sequence[Person], embed: Embedder) -> Outcome:
    """Every sample as a template of one against every other sample, each pair once, whatever the files' roles.

    Files of one person with the same bytes count once.

    Raises:
        EnrolmentError: no person has two usable samples, or only one person has any.
    """
    acquired = _Acquired(embed)
    vectors: list[Float32] = []
    owner: list[int] = []
    repeated = 0
    for index, person in enumerate(people):
        files = sorted({*person.enrol, *person.verify})
        fresh = list({_digest(path): path for path in reversed(files)}.values())[::-1]
        repeated += len(files) - len(fresh)
        kept = acquired.embeddings(person.name, fresh)
        vectors += kept
        owner += [index] * len(kept)
    first, second = np.triu_indices(len(vectors), 1)
    owners = np.asarray(owner, np.int64)
    genuine = int((owners[first] == owners[second]).sum())
    if genuine == 0 or genuine == len(first):
        raise EnrolmentError(
            f"{len(vectors)} usable samples of {len(set(owner))} people give {genuine} genuine and "
            f"{len(first) - genuine} impostor pairs; an evaluation needs two people, one of them with two samples"
        )
    matrix = np.asarray(vectors, np.float64)
    return Outcome(
        Trials((matrix @ matrix.T)[first, second], owners[first], owners[second], tuple(p.name for p in people)),
        acquired.tried,
        tuple(acquired.failures),
        (),
        repeated,
        "all pairs: every sample against every other, each pair once",
    )


def _against_templates(people: Sequence[Person], embed: Embedder) -> Outcome:
    acquired = _Acquired(embed)
    subjects = tuple(person.name for person in people)
    templates: list[Float64] = []
    enrolled: list[int] = []
    probes: list[Float32] = []
    probe_subject: list[int] = []
    not_enrolled: list[str] = []
    repeated = 0
    for index, person in enumerate(people):
        known = {_digest(path) for path in person.enrol}
        kept = acquired.embeddings(person.name, person.enrol)
        if kept:
            mean = np.mean([np.asarray(vector, np.float64) for vector in kept], axis=0)
            templates.append(mean / max(float(np.linalg.norm(mean)), 1e-12))
            enrolled.append(index)
        else:
            not_enrolled.append(person.name)
        fresh = [path for path in person.verify if _digest(path) not in known]
        repeated += len(person.verify) - len(fresh)
        vectors = acquired.embeddings(person.name, fresh)
        probes += vectors
        probe_subject += [index] * len(vectors)
    scores = np.zeros(0)
    if probes and templates:
        scores = (np.stack(probes).astype(np.float64) @ np.stack(templates).T).ravel()
    trials = Trials(
        scores,
        np.tile(np.asarray(enrolled, np.int64), len(probes)),
        np.repeat(np.asarray(probe_subject, np.int64), len(templates)),
        subjects,
    )
    return Outcome(
        trials,
        acquired.tried,
        tuple(acquired.failures),
        tuple(not_enrolled),
        repeated,
        "enrol and verify: every probe against every person's template",
    )


class _Acquired:
    """Runs the embedder once a sample and keeps account of those that could not be used."""

    def __init__(self, embed: Embedder) -> None:
        self._embed = embed
        self.tried = 0
        self.failures: list[Failure] = []

    def embeddings(self, subject: str, paths: Sequence[Path]) -> list[Float32]:
        """The embeddings of the usable samples, in order."""
        found = []
        for path in paths:
            self.tried += 1
            try:
                found.append(self._embed(path))
            except SampleError as error:
                self.failures.append(Failure(subject, path.name, _kind(error), str(error)))
        return found


def _kind(error: SampleError) -> str:
    """The class of an error in words.

    >>> from uvsdk.errors import NoSpeechError
    >>> _kind(NoSpeechError("0.1 s of speech, need 1 s"))
    'no speech'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error")).lower()


def _person(path: Path, enrol: int) -> Person:
    if (path / "enrol").is_dir() and (path / "verify").is_dir():
        return Person(path.name, _files(path / "enrol"), _files(path / "verify"))
    files = _files(path)
    return Person(path.name, files[:enrol], files[enrol:])


def _files(path: Path) -> tuple[Path, ...]:
    return tuple(entry for entry in sorted(path.iterdir()) if _visible(entry) and entry.is_file())


def _visible(path: Path) -> bool:
    return not path.name.startswith(".")


def _at_least_two(people: list[Person]) -> list[Person]:
    if len(people) < 2:
        raise SettingsError(f"an evaluation needs at least two people, got {len(people)}; add a folder for each person")
    return people


def _digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        raise SettingsError(f"cannot read the sample {path.name}: {error.strerror}") from error
