"""Which comparisons an evaluation makes of people, from a folder or a list of files to
:class:`~uvsdk.evaluation.trials.Trials`.

Two protocols. *Enrol and verify*: a template per person from their enrolment samples, every other sample a probe
against every template. *All pairs*: every sample against every other, each pair once. In both, no sample is ever
scored against a template that contains it: a file may have one role only, and a probe whose bytes equal one of its
person's enrolment samples is set aside and counted. Samples that cannot be processed are failures to acquire, people
left without an enrolment sample are failures to enrol; both are counted, neither hides in an error rate.

Comparisons that a list names one by one are in :mod:`uvsdk.evaluation.pairs`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from uvsdk.arrays import Float32, Float64, Int64
from uvsdk.bundle import Bundle, inference
from uvsdk.bundle.inference import Embedded
from uvsdk.errors import EnrolmentError, SettingsError
from uvsdk.evaluation import lines
from uvsdk.evaluation.acquisition import Acquired, Embedder, Failure, Progress, acquire
from uvsdk.evaluation.conditions import Sides
from uvsdk.evaluation.trials import Trials
from uvsdk.modality import Capture
from uvsdk.scoring.conditions import together


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


@dataclass(frozen=True, slots=True, eq=False)
class ProtocolOutcome:
    """The trials of one protocol and what had to stay out of them.

    Args:
        trials: every comparison that was made.
        samples: how many samples were tried.
        failures: samples that could not be acquired.
        not_enrolled: people without a template since none of their enrolment samples could be used.
        repeated: probes (of a list: trials) set aside since they would compare a sample with itself.
        protocol: in words.
        left_out: listed trials that could not be made since one of their samples failed.
        sides: the samples behind each trial.
        timings_s: stage -> seconds of each usable sample.
        folds: int64 (N,), the fold of each trial, where the protocol has folds.
    """

    trials: Trials
    samples: int
    failures: tuple[Failure, ...]
    not_enrolled: tuple[str, ...]
    repeated: int
    protocol: str
    left_out: int = 0
    sides: Sides | None = None
    timings_s: Mapping[str, Float64] = field(default_factory=dict)
    folds: Int64 | None = None

    @property
    def failure_to_acquire_rate(self) -> float:
        """Share of the tried samples that could not be acquired."""
        return len(self.failures) / self.samples

    @property
    def failures_by_reason(self) -> dict[str, int]:
        """Kind of failure -> how many samples, the most frequent first."""
        counts: dict[str, int] = {}
        for failure in self.failures:
            counts[failure.kind] = counts.get(failure.kind, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def read_folder(root: Path, *, enrol: int = 3) -> list[Person]:
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


def is_list_of_people(path: Path) -> bool:
    """Whether a file is a list for :func:`read_list`: by its name, or by the heading in its first line."""
    if path.suffix.lower() == ".csv":
        return True
    with closing(lines.read(path)) as rows:
        return "person" in lines.commas(next(rows, (0, ""))[1])


def read_list(list_file: Path, *, root: Path | None = None) -> list[Person]:
    """People from a CSV file with the columns ``person``, ``role`` (``enrol`` or ``verify``) and ``path``.

    A file that is listed twice for one role counts once. Paths are relative to ``root``, without one to the list.

    Raises:
        SettingsError: a column is missing, lines are malformed (each is named), or fewer than two people are listed.
    """
    roles: dict[str, dict[str, set[Path]]] = {}
    malformed = lines.MalformedLines(list_file)
    with closing(lines.read(list_file)) as rows:
        columns = lines.commas(next(rows, (0, ""))[1])
        if not {"person", "role", "path"} <= set(columns):
            raise SettingsError(
                f"{list_file.name} needs the columns person, role, path, got {', '.join(columns) or 'none'}"
            )
        for number, line in rows:
            values = lines.commas(line)
            row = dict(zip(columns, values, strict=False))
            if len(values) != len(columns):
                malformed.add(number, f"{len(values)} fields under {len(columns)} columns")
            elif row["role"] not in ("enrol", "verify"):
                malformed.add(number, f"the role is enrol or verify, got {row['role']!r}")
            elif not row["person"] or not row["path"]:
                malformed.add(number, "a person or a path is empty")
            else:
                paths = roles.setdefault(row["person"], {"enrol": set(), "verify": set()})
                paths[row["role"]].add((root or list_file.parent) / row["path"])
    malformed.check()
    return _at_least_two(
        [
            Person(name, tuple(sorted(paths["enrol"])), tuple(sorted(paths["verify"])))
            for name, paths in sorted(roles.items())
        ]
    )


def bundle_embedder(bundle: Bundle, *, capture: Capture | None = None) -> Embedder:
    """The embedder that enrolment and verification use; it reports quality and speed as well."""

    def embed(path: Path) -> Embedded:
        return inference.embed(path, bundle, capture=capture)

    return embed


def enrol_and_verify(
    people: Sequence[Person], embed: Embedder, *, jobs: int = 1, progress: Progress | None = None
) -> ProtocolOutcome:
    """Every probe against every person's template (normalised mean of the enrolment embeddings).

    Raises:
        EnrolmentError: fewer than two people have a template, or no genuine trial could be made.
    """
    outcome = _against_templates(people, embed, jobs, progress)
    own = outcome.trials.is_genuine
    if not own.any() or own.all():
        raise EnrolmentError(
            f"{int(own.sum())} genuine and {int((~own).sum())} impostor trials could be made of {len(people)} people "
            f"({len(outcome.failures)} of {outcome.samples} samples could not be used{_foremost(outcome)}); an "
            "evaluation needs two people with a template, and a probe of one of them"
        )
    return outcome


def all_pairs(
    people: Sequence[Person], embed: Embedder, *, jobs: int = 1, progress: Progress | None = None
) -> ProtocolOutcome:
    """Every sample as a template of one against every other sample, each pair once, whatever the files' roles.

    Files of one person with the same bytes count once.

    Raises:
        EnrolmentError: no person has two usable samples, or only one person has any.
    """
    wanted: list[tuple[int, Path]] = []
    repeated = 0
    for index, person in enumerate(people):
        files = sorted({*person.enrol, *person.verify})
        fresh = list({digest(path) or str(path): path for path in reversed(files)}.values())[::-1]
        repeated += len(files) - len(fresh)
        wanted += [(index, path) for path in fresh]
    acquisition = acquire([(people[i].name, path) for i, path in wanted], embed, jobs=jobs, progress=progress)
    vectors = [sample.embedding for sample in acquisition.found if sample is not None]
    first, second = np.triu_indices(len(vectors), 1)
    usable = zip(wanted, acquisition.found, strict=True)
    owners = np.array([index for (index, _), sample in usable if sample is not None], np.int64)
    genuine = int((owners[first] == owners[second]).sum())
    if genuine == 0 or genuine == len(first):
        raise EnrolmentError(
            f"{len(vectors)} usable samples of {len(set(owners.tolist()))} people give {genuine} genuine and "
            f"{len(first) - genuine} impostor pairs; an evaluation needs two people, one of them with two samples"
        )
    rows = np.asarray(vectors, np.float32)
    matrix = rows.astype(np.float64)
    measured = [sample.measured for sample in acquisition.found if sample is not None]
    return ProtocolOutcome(
        Trials((matrix @ matrix.T)[first, second], owners[first], owners[second], tuple(p.name for p in people)),
        len(wanted),
        acquisition.failures,
        (),
        repeated,
        "all pairs: every sample against every other, each pair once",
        sides=Sides(measured, measured, first, second, True, rows, rows),
        timings_s=acquisition.timings_s,
    )


def _against_templates(
    people: Sequence[Person], embed: Embedder, jobs: int, progress: Progress | None
) -> ProtocolOutcome:
    wanted: list[tuple[int, Path]] = []
    is_probe: list[bool] = []
    repeated = 0
    for index, person in enumerate(people):
        known = {digest(path) for path in person.enrol} - {None}
        fresh = [path for path in person.verify if digest(path) not in known]
        repeated += len(person.verify) - len(fresh)
        wanted += [(index, path) for path in (*person.enrol, *fresh)]
        is_probe += [False] * len(person.enrol) + [True] * len(fresh)
    acquisition = acquire([(people[i].name, path) for i, path in wanted], embed, jobs=jobs, progress=progress)
    enrolment: dict[int, list[Acquired]] = {}
    probes: list[int] = []
    for place, sample in enumerate(acquisition.found):
        if sample is not None and is_probe[place]:
            probes.append(place)
        elif sample is not None:
            enrolment.setdefault(wanted[place][0], []).append(sample)
    templates = [_template([sample.embedding for sample in samples]) for samples in enrolment.values()]
    found = [sample for place in probes if (sample := acquisition.found[place]) is not None]
    scores = np.zeros(0)
    if found and templates:
        scores = (np.stack([sample.embedding for sample in found]).astype(np.float64) @ np.stack(templates).T).ravel()
    probe_subject = np.array([wanted[place][0] for place in probes], np.int64)
    return ProtocolOutcome(
        Trials(
            scores,
            np.tile(np.array(list(enrolment), np.int64), len(probes)),
            np.repeat(probe_subject, len(templates)),
            tuple(person.name for person in people),
        ),
        len(wanted),
        acquisition.failures,
        tuple(person.name for index, person in enumerate(people) if index not in enrolment),
        repeated,
        "enrol and verify: every probe against every person's template",
        sides=Sides(
            [together([sample.measured for sample in samples]) for samples in enrolment.values()],
            [sample.measured for sample in found],
            np.tile(np.arange(len(templates)), len(probes)),
            np.repeat(np.arange(len(probes)), len(templates)),
            False,
            np.asarray(templates, np.float32),
            np.asarray([sample.embedding for sample in found], np.float32),
        ),
        timings_s=acquisition.timings_s,
    )


def _template(embeddings: Sequence[Float32]) -> Float64:
    mean = np.mean(np.asarray(embeddings, np.float64), axis=0)
    unit: Float64 = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return unit


def _foremost(outcome: ProtocolOutcome) -> str:
    """The most frequent reason of the failures, as an insertion."""
    reasons = outcome.failures_by_reason
    return f", most often: {next(iter(reasons))}" if reasons else ""


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


def digest(path: Path) -> bytes | None:
    """SHA-256 of a file's bytes; ``None`` where it cannot be read, which the acquisition then accounts for."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None
