"""The same over a real server and real devices: ``python -m examples.reproduce.selfcalibration.deployment BUNDLE...``.

For every domain: ``uvsdk serve`` as a process, and devices in two processes that enrol with recordings or photographs,
join, answer the evaluation and adopt the release that it makes. Then samples of people who never took part are held
against the devices' templates, under the release before the evaluation (the shipped card) and under the one made by
it. See README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image

from examples.reproduce.selfcalibration import devices, domains
from examples.reproduce.selfcalibration.coordination import Coordination, enrolment_tokens
from examples.reproduce.selfcalibration.devices import CAPTURE, FMR, Owner, Step, Told
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import Embedded, embed
from uvsdk.errors import SampleError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.modality import Sample
from uvsdk.privacy.identifiers import hash_user_id, new_pepper
from uvsdk.scoring import Calibration, Decision
from uvsdk.scoring.conditions import conditions_of
from uvsdk.templates.template import Template
from uvsdk.verify import decide, threshold_for
from uvsdk_device import Runtime

HERE = Path(__file__).parent
DEVICES = {
    "read speech": 30,
    "read speech, 8 kHz, 10 dB": 30,
    "read speech, 1.5 s": 30,
    "letters": 12,
    "digits": 4,
    "press photographs": 30,
    "laboratory photographs": 20,
}
"""Who takes part: thirty, or what leaves some strangers."""

SAMPLES = 5
RATES = (FMR, 0.001)
MOST = 10
"""Samples of one person that are tried."""

WHOLE, OVER_REST = 4, 1
"""Probes of each device that also go the whole way, through the device's runtime and over REST, under each release."""

PROCESSES = 2
RESAMPLES = 2000
DEADLINE_S = 86_400.0
"""The laboratory measures while the evaluation is open already."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Probe:
    """One sample that is tried, and whose."""

    person: int
    file: Path
    embedded: Embedded


@dataclass(frozen=True, slots=True)
class Person:
    """Files of one person: those to enrol with (none of a stranger), and those to try."""

    name: str
    enrol: tuple[Path, ...]
    probes: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One domain at one false match rate. Shares are in per cent, intervals 95 %, over people (both sides).

    Args:
        domain: whose samples.
        devices: that took part in the evaluation.
        refused: of those, who did not take the release that it made: their own samples, or strangers, fail by it. They
            stay with the card, and are counted there alone.
        strangers: people who never took part.
        trials: of strangers against devices.
        genuine_trials: of the devices' people, with recordings that did not enrol.
        unusable: probes that could not be embedded, of strangers and others.
        not_enrolled: people whose samples made no template (too few that can be used, or not alike), so that the next
            took their place; they are strangers.
        left_out: of the others' samples that were handed in for enrolment.
        asked: false match rate.
        told_low, told_high: the interval that the release itself tells of its false match rate there.
        fmr, fmr_low, fmr_high: under the release made by the evaluation.
        fnmr, fnmr_low, fnmr_high: likewise.
        card_fmr, card_fmr_low, card_fmr_high: under the release before, which is calibrated by the shipped card.
        card_fnmr, card_fnmr_low, card_fnmr_high: likewise.
        card_outside: trials of which the shipped card's decision says that it does not speak for them, so that the bar
            was higher.
        card_bare: what the shipped threshold lets through without that higher bar.
        whole: trials that went the whole way besides, through a device's runtime or over REST.
        differing: of those, decided otherwise than by the embedding that was made once.
    """

    domain: str
    devices: int
    refused: int
    strangers: int
    trials: int
    genuine_trials: int
    unusable: int
    not_enrolled: int
    left_out: int
    asked: float
    told_low: float
    told_high: float
    fmr: float
    fmr_low: float
    fmr_high: float
    fnmr: float
    fnmr_low: float
    fnmr_high: float
    card_fmr: float
    card_fmr_low: float
    card_fmr_high: float
    card_fnmr: float
    card_fnmr_low: float
    card_fnmr_high: float
    card_outside: float
    card_bare: float
    whole: int
    differing: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every domain of the modalities of the bundles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", help="of uvsdk export")
    parser.add_argument("--domain", action="append", choices=tuple(DEVICES), help="only this one")
    parser.add_argument("--seed", type=int, default=2026, help="of who takes part (%(default)s)")
    parser.add_argument("--output", type=Path, default=HERE / "devices.csv")
    chosen = parser.parse_args(arguments)
    for path in chosen.bundles:
        voice = Bundle.open(path).manifest.modality == "voice"
        for name in chosen.domain or DEVICES:
            if name in (domains.VOICES if voice else domains.FACES):
                with tempfile.TemporaryDirectory() as folder:
                    start, spent = time.perf_counter(), _processor_s()
                    rows = Run(name, path, Path(folder), chosen.seed).rows()
                    print(f"{name}: {time.perf_counter() - start:.0f} s, {_processor_s() - spent:.0f} s of processor")
                save(chosen.output, name, rows)


class Run:
    """One domain in one folder."""

    def __init__(self, name: str, model: Path, folder: Path, seed: int) -> None:
        self.name, self.model, self.folder = name, model, folder
        self.rng = np.random.default_rng(seed)
        self.people, self.able = people_of(name, folder / "samples", self.rng)
        self.bundle = Bundle.open(model)
        self.pepper = new_pepper()
        (folder / "pepper").write_bytes(self.pepper)
        manifest = self.bundle.manifest
        self.config = TrainingConfig(
            deployment=name.replace(",", "").replace(" ", "-"),
            modality=manifest.modality,
            backbone=manifest.backbone,
            algorithm="fedaws",
            train=manifest.train,
            rounds=0,
            deadline_s=DEADLINE_S,
        )
        self.users: dict[str, str] = {}
        self.tokens: dict[str, str] = {}
        self.not_enrolled = self.left_out = self.whole = self.differing = 0

    def rows(self) -> list[Row]:
        """Enrol, evaluate, adopt and measure."""
        count = DEVICES[self.name]
        self.server = Coordination.start(self.folder / "server", self.model, self.config, people=count)
        try:
            members = self._enrolled(count)
            probes, unusable = self._embedded(members)
            whole = self._drawn(members, probes)
            assert self.bundle.calibration is not None  # exported bundles carry a card
            founding = self._measured(members, probes, whole, self.bundle.calibration.digest)
            evaluation = self._evaluated(members)
            print(self.server.command("releases", "evaluations"), end="")
            print(self.server.command("releases", "list"), end="")
            own = None
            if evaluation["outcome"] == "calibrated":
                own = self._measured(members, probes, whole, self.server.calibration())
        finally:
            self.server.stop()
        return self._compared(members, probes, unusable, founding, own)

    # Over the sockets

    def _enrolled(self, count: int) -> list[int]:
        """People whose devices have enrolled and joined, the first ``count`` who can."""
        members, waiting = list[int](), list(range(self.able))
        while len(members) < count and waiting:
            trying, waiting = waiting[: count - len(members)], waiting[count - len(members) :]
            self._admit(trying)
            told = self._devices("enrol", trying)
            for place, item in zip(trying, told, strict=True):
                if item.state in ("joined", "trained"):
                    members.append(place)
                    self.left_out += SAMPLES - item.samples
                else:
                    self.not_enrolled += 1
                    print(f"{self.name}: a person {item.state}: {item.detail}", flush=True)
        return members

    def _evaluated(self, members: list[int]) -> dict[str, object]:
        """The evaluation that everybody answers, and the release that everybody adopts."""
        if not self.server.newest_evaluation():
            self.server.request_evaluation()
        self._devices("take part", members)
        found = self.server.settled(timeout_s=300)
        for told in self._devices("take part", members):
            if any(state == "refused" for _, state in told.releases):
                print(f"{self.name}: a device refused: {told.detail}")
        print(f"{self.name}: evaluation {found['outcome']}, {found['arrived']} reports", flush=True)
        return found

    def _admit(self, places: list[int]) -> None:
        names = [self.people[place].name for place in places]
        deployment = self.config.deployment
        users = [hash_user_id(name, deployment=deployment, pepper=self.pepper) for name in names]
        self.users |= dict(zip(names, users, strict=True))
        self.tokens |= dict(zip(names, enrolment_tokens(self.server, users), strict=True))

    def _devices(self, step: Step, places: list[int]) -> list[Told]:
        """Two processes with every other device each; in the order of ``places``."""
        shares = [places[start::PROCESSES] for start in range(PROCESSES)]
        running = [self._process(step, share) for share in shares]
        told = [self._heard(process) for process in running]
        return [item for pair in zip_longest(*told) for item in pair if item is not None]

    def _process(self, step: Step, places: list[int]) -> subprocess.Popen[str]:
        people = [self.people[place] for place in places]
        owners = [Owner(item.name, self.tokens[item.name], tuple(map(str, item.enrol))) for item in people]
        values = {
            "step": step,
            "url": self.server.url,
            "pepper_file": str(self.folder / "pepper"),
            "model": str(self.model),
            "folder": str(self.folder / "stores"),
            "owners": [{"name": item.name, "token": item.token, "files": item.files} for item in owners],
        }
        words = [sys.executable, "-m", devices.__name__]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None  # it is a pipe
        process.stdin.write(json.dumps(values) + "\n")
        process.stdin.flush()
        return process

    @staticmethod
    def _heard(process: subprocess.Popen[str]) -> list[Told]:
        printed, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a process of devices ended with {process.returncode}")
        return [Told(**json.loads(line)) for line in printed.splitlines()]

    # At the laboratory's desk

    def _embedded(self, members: list[int]) -> tuple[list[Probe], int]:
        """Every sample that is tried, embedded once; and how many cannot be."""
        found, unusable = [], 0
        strangers = len(self.people) - len(members)
        most = MOST if strangers <= 50 else 2 if strangers <= 500 else 1
        for place, person in enumerate(self.people):
            for file in person.probes if place in members else (*person.enrol, *person.probes)[:most]:
                try:
                    found.append(Probe(place, file, embed(file, self.bundle, capture=CAPTURE)))
                except SampleError:
                    unusable += 1
        return found, unusable

    def _drawn(self, members: list[int], probes: list[Probe]) -> dict[int, list[Probe]]:
        """For each device the probes that go the whole way: one of its owner where there is one, else of strangers."""
        strangers = [probe for probe in probes if probe.person not in members]
        chosen = {}
        for place in members:
            own = [probe for probe in probes if probe.person == place][:1]
            order = self.rng.permutation(len(strangers))[: WHOLE - len(own)]
            chosen[place] = [*own, *(strangers[index] for index in order)]
        return chosen

    def _measured(self, members: list[int], probes: list[Probe], whole: dict[int, list[Probe]], by: str) -> Outcome:
        """Everybody's decisions on all probes but those of the other devices' people, where they verify by that
        calibration.
        """
        outcome = Outcome.empty(len(members), len(probes))
        for row, place in enumerate(members):
            name = self.people[place].name
            runtime = Runtime(devices.store_of(self.folder / "stores", name), retry=None)
            template, bundle = runtime.template(name), runtime.bundle
            assert bundle.calibration is not None  # every release here has one
            calibration = bundle.calibration
            if calibration.digest != by:
                outcome.refused += 1
                continue
            supported = [rate for rate in RATES if rate >= calibration.strictest(calibration.scale) * (1 - 1e-9)]
            limits = {rate: threshold_for(template, bundle, fmr=rate) for rate in supported}
            outcome.told = {rate: calibration.interval(limit.score) for rate, limit in limits.items()}
            against = [
                column for column, probe in enumerate(probes) if probe.person == place or probe.person not in members
            ]
            outcome.tried[row, against] = True
            for column in against:
                probe = probes[column]
                for rate, limit in limits.items():
                    decision = decide(
                        probe.embedded.embedding,
                        template,
                        bundle=bundle,
                        threshold=limit,
                        quality=probe.embedded.quality,
                        asked_fmr=rate,
                    )
                    outcome.accepted[rate][row, column] = decision.accepted
                    outcome.outside[row, column] = decision.basis.placement.verdict == "outside"
            bare = _bare(template, calibration, [probes[column].embedded for column in against])
            for rate, limit in limits.items():
                outcome.bare[rate][row, against] = bare >= limit.score
            for number, probe in enumerate(whole[place]):
                for rate in supported:
                    decided = outcome.accepted[rate][row, probes.index(probe)]
                    self._agrees(runtime.verify(name, probe.file, fmr=rate, capture=CAPTURE), bool(decided))
                    if number < OVER_REST:
                        answer = self.server.verify(self.users[name], probe.file.read_bytes(), fmr=rate)
                        self.whole += 1
                        self.differing += int(answer["accepted"] != decided)
        return outcome

    def _agrees(self, decision: Decision, accepted: bool) -> None:
        self.whole += 1
        self.differing += int(decision.accepted != accepted)

    def _compared(
        self, members: list[int], probes: list[Probe], unusable: int, founding: Outcome, own: Outcome | None
    ) -> list[Row]:
        person = np.array([probe.person for probe in probes])
        stranger = ~np.isin(person, members)
        rows = []
        for rate in RATES if own is None else (rate for rate in RATES if rate in own.told):
            before = founding.rates(rate, stranger, person)
            after = (float("nan"),) * 6 if own is None else own.rates(rate, stranger, person)
            told = (0.0, 1.0) if own is None else own.told[rate]
            trials = founding.tried[:, stranger]
            rows.append(
                Row(
                    self.name,
                    len(members),
                    0 if own is None else own.refused,
                    len(np.unique(person[stranger])),
                    int(trials.sum()),
                    int(founding.tried[:, ~stranger].sum()),
                    unusable,
                    self.not_enrolled,
                    self.left_out,
                    100 * rate,
                    100 * told[0],
                    100 * told[1],
                    *after,
                    *before,
                    100 * float(founding.outside[:, stranger].mean()),
                    100 * float(founding.bare[rate][:, stranger].mean()),
                    self.whole,
                    self.differing,
                )
            )
            print(rows[-1], flush=True)
        return rows


def _bare(template: Template, calibration: Calibration, probes: Sequence[Embedded]) -> Floats:
    """What decides, float64 (n,), without a higher bar outside of what the calibration speaks for."""
    rows = np.stack([probe.embedding for probe in probes])
    templates = np.broadcast_to(template.embedding, rows.shape)
    if calibration.ratio is None:
        return np.asarray((rows.astype(np.float64) * templates).sum(axis=1), np.float64)
    conditions = [conditions_of(probe.quality.measured, calibration.conditions) for probe in probes]
    found = calibration.llrs(templates, rows, template=[template.conditions] * len(rows), probe=conditions)
    return found.astype(np.float64)


@dataclass(slots=True)
class Outcome:
    """Decisions of devices (rows) on probes (columns), bool (devices, probes).

    Args:
        tried: which comparisons were made.
        outside: of which the calibration says that it does not speak for them.
        accepted: by false match rate.
        bare: likewise, without a higher bar outside.
        told: by rate, the interval of the false match rate that the calibration itself tells.
        refused: devices that verify by another calibration; nothing of them is here.
    """

    tried: Bools
    outside: Bools
    accepted: dict[float, Bools]
    bare: dict[float, Bools]
    told: dict[float, tuple[float, float]]
    refused: int = 0

    @classmethod
    def empty(cls, rows: int, columns: int) -> Outcome:
        """Nothing tried yet."""

        def nothing() -> Bools:
            return np.zeros((rows, columns), np.bool_)

        return cls(nothing(), nothing(), {rate: nothing() for rate in RATES}, {rate: nothing() for rate in RATES}, {})

    def rates(self, rate: float, stranger: Bools, person: NDArray[np.int64]) -> tuple[float, ...]:
        """False match rate and false non-match rate, each with its interval, in per cent."""
        let_in = share(self.accepted[rate][:, stranger], self.tried[:, stranger], person[stranger])
        own = ~stranger
        kept_out = share(~self.accepted[rate][:, own], self.tried[:, own], None)
        return (*let_in, *kept_out)


def share(hits: Bools, tried: Bools, person: NDArray[np.int64] | None) -> tuple[float, float, float]:
    """Share of the trials that hit, in per cent, with its 95 % interval over people: a bootstrap of the devices, and of
    the people of the probes as well where ``person`` says whose each column is (two-way: Owen, "The pigeonhole
    bootstrap", 2007). NaN where nothing was tried.
    """
    if not tried.any():
        return float("nan"), float("nan"), float("nan")
    columns = np.zeros(tried.shape[1], np.int64) if person is None else np.unique(person, return_inverse=True)[1]
    people = int(columns.max()) + 1
    counts = np.zeros((2, len(tried), people))
    for column, place in enumerate(columns):
        counts[0, :, place] += hits[:, column] & tried[:, column]
        counts[1, :, place] += tried[:, column]
    rng = np.random.default_rng(0)
    drawn = list[float]()
    for _ in range(RESAMPLES):
        rows = rng.multinomial(len(tried), np.full(len(tried), 1 / len(tried)))
        weights = np.ones(people) if person is None else rng.multinomial(people, np.full(people, 1 / people))
        hit, all_of = (rows @ part @ weights for part in counts)
        drawn.append(float(hit / all_of) if all_of else float("nan"))
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return 100 * float(counts[0].sum() / counts[1].sum()), 100 * float(low), 100 * float(high)


def people_of(name: str, folder: Path, rng: np.random.Generator) -> tuple[list[Person], int]:
    """Everybody's samples as files, in the order in which people are asked to take part, and how many can be.

    In random order, first those who have recordings beside the five that they enrol with, so that something can be
    said of genuine people.
    """
    items: dict[str, list[tuple[str, Sample]]] = {}
    for person, recording, sample in domains.DOMAINS[name]():
        items.setdefault(person, []).append((recording, sample))
    folder.mkdir(parents=True)
    found = []
    for number, own in enumerate(items.values()):
        order = rng.permutation(len(own)).tolist()
        able = len(own) >= SAMPLES
        enrolling = order[:SAMPLES] if able else []
        used = {own[place][0] for place in enrolling}
        fresh = [place for place in order if place not in enrolling and own[place][0] not in used]
        keep = sorted([*enrolling, *fresh[:MOST]])
        files = {place: written(own[place][1], folder / f"{number}-{place}") for place in keep}
        found.append(
            Person(
                f"person-{number}",
                tuple(files[place] for place in enrolling),
                tuple(files[place] for place in fresh[:MOST]),
            )
        )
    order = rng.permutation(len(found)).tolist()
    order.sort(key=lambda place: (not found[place].enrol, not found[place].probes))
    people = [found[place] for place in order]
    return people, sum(bool(person.enrol) for person in people)


def written(sample: Sample, path: Path) -> Path:
    """The sample as a file that an application hands in: a WAV of its samples, a PNG with some room for the face."""
    if isinstance(sample, tuple):
        wav = path.with_suffix(".wav")
        soundfile.write(wav, sample[0], sample[1], subtype="FLOAT")
        return wav
    picture = domains.opened(sample) if isinstance(sample, domains.Chip) else sample
    assert isinstance(picture, Image.Image)
    image = np.pad(np.asarray(picture), ((30, 30), (30, 30), (0, 0)), mode="edge")
    png = path.with_suffix(".png")
    Image.fromarray(image).save(png)
    return png


def save(path: Path, domain: str, rows: list[Row]) -> None:
    """Replace the rows of a domain."""
    names = [field.name for field in fields(Row)]
    kept: list[dict[str, object]] = []
    if path.exists():
        with path.open(newline="") as file:
            kept = [dict(row) for row in csv.DictReader(file) if row["domain"] != domain]
    for row in rows:
        values = {name: getattr(row, name) for name in names}
        kept.append({name: f"{value:.4g}" if isinstance(value, float) else value for name, value in values.items()})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)


def _processor_s() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    main()
