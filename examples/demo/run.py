"""The whole job on real people: device processes enrol and learn together, the model tells genuine from impostor.

Usage: python examples/demo/run.py --output FOLDER [--data FOLDER] [--rounds N] [--backbone NAME]

Starts the coordination server and one process per person, which talks to it over HTTP only. Trains three ways
(positive-only, fixed embeddings, FedAwS) by one recipe; about half of the people only evaluate, and by their word a
candidate is released or not and gets its threshold. Measures each model on samples nobody trained on, verifies one
genuine person and one impostor over REST and offline, deletes a person, trains twice more from other seeds in this
process, and writes report.html and report.json.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile
from coordination import Coordination
from crowd import Crowd
from data import People, Person, people
from laboratory import Laboratory
from people import Forget, Join, Refresh, Trained, VerifyOffline, Withdraw
from results import TITLES, Check, Row, Run, terminal_table, write
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from spread import trained_error

from uvsdk import Bundle, Decision, UvsdkError
from uvsdk.errors import UnknownUserError
from uvsdk.federation import recipes
from uvsdk.federation.messages import TrainingConfig
from uvsdk.privacy.identifiers import hash_user_id

ALGORITHMS = ("positive_only", "fixed", "fedaws")
SEED = 20
SEEDS = (20, 21, 22)
"""Of the trainings that show how far runs differ."""
# Training must end; this bound is only met when something is broken.
LONGEST_TRAINING_S = 3600.0


@dataclass(frozen=True, slots=True)
class Setup:
    """How a modality is trained: a recipe of the library (docs/learning.md), and the model to begin with."""

    backbone: str
    recipe: str
    preprocessing: tuple[str, ...] = ()


SETUPS = {
    # A spoken letter is 0.4 s of speech, less than the half second that the encoder asks for by default.
    "voice": Setup("ge2e", "letters", ("minimum_speech_s=0.2",)),
    "face": Setup("faceapi-resnet", "face-head"),
    "handwriting": Setup("digits-cnn", "handwriting"),
}

EVALUATES = 0.9
"""Share of those who join after eight others train: of twenty people about ten, for eight are the fewest whose word
supports a false match rate of 1 %."""


def main() -> int:
    """Run the demonstration.

    The exit status is 1 where an impostor is let in or a deleted person is still known. A genuine person who is
    turned away is what the table's FNMR says will happen, and is shown.
    """
    arguments = _arguments()
    start = time.monotonic()
    console = Console()
    output: Path = arguments.output
    # What earlier runs made goes, the downloaded recordings stay.
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    crowd_data = people(arguments.data, Path("demo-data"))
    setup = SETUPS[crowd_data.modality]
    backbone = arguments.backbone or setup.backbone
    template = _configured(crowd_data, backbone, setup, "fedaws", arguments.rounds)
    console.print(f"{len(crowd_data.people)} people: {crowd_data.source}")
    model = output / "start.uvb"
    _export(backbone, model, setup.preprocessing, template.train)
    with (
        tempfile.TemporaryDirectory(prefix="uvsdk-demo-") as devices,
        Crowd(crowd_data.people, Path(devices)) as crowd,
        Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress,
    ):
        demonstration = Demonstration(crowd_data, backbone, setup, arguments.rounds, model, output, crowd, progress)
        try:
            rows, cosines = demonstration.learn()
            checks = demonstration.verify_one_by_one()
        finally:
            demonstration.stop()
    # After the device processes have ended: these trainings take torch into this process.
    spreads = demonstration.spreads(console)
    command = f"make demo{f' DATA={arguments.data}' if arguments.data else ''}"
    extra = [f"--{name} {value}" for name in ("rounds", "backbone") if (value := getattr(arguments, name))]
    if extra:
        command += f" DEMO_ARGUMENTS={shlex.quote(' '.join(extra))}"
    rows = [replace(row, spread=spreads.get(row.name)) for row in rows]
    run = Run(
        crowd_data,
        backbone,
        tuple(rows),
        cosines,
        tuple(checks),
        time.monotonic() - start,
        command,
        SEED,
        events=demonstration.events,
    )
    summaries = run.summaries()
    write(run, summaries, output)
    console.print(terminal_table(run, summaries))
    if crowd_data.caveat:
        console.print(crowd_data.caveat)
    for event in run.events:
        console.print(event)
    for check in checks:
        verdict = "[green]as expected[/]    " if check.expected else "[yellow]not as expected[/]"
        console.print(f"{verdict}  {check.what}: {check.outcome}")
    console.print(f"{run.seconds:.0f} s; plots in {output / 'report.html'}, numbers in {output / 'report.json'}")
    return 0 if all(check.expected or check.may_fail for check in checks) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="made anew by every run")
    parser.add_argument("--data", type=Path, help="a folder of audio or images per person")
    parser.add_argument("--rounds", type=int, help="rounds of each method")
    parser.add_argument("--backbone", help="another backbone of the modality (uvsdk export --help lists them)")
    return parser.parse_args()


def _export(backbone: str, target: Path, preprocessing: tuple[str, ...], train: str) -> None:
    """In a process of its own, so that this one never holds torch's threads when it starts others."""
    command = [sys.executable, "-m", "uvsdk", "export", backbone, "--output", str(target), "--download"]
    command += ["--train", train] if train != "all" else []
    command += [part for setting in preprocessing for part in ("--set", setting)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the starting model could not be made:\n{done.stderr}")


class Demonstration:
    """One run: the same people learn by three methods, one after the other."""

    def __init__(
        self,
        crowd_data: People,
        backbone: str,
        setup: Setup,
        rounds: int | None,
        model: Path,
        output: Path,
        crowd: Crowd,
        progress: Progress,
    ) -> None:
        self._people = crowd_data
        self._backbone = backbone
        self._setup = setup
        self._rounds = rounds
        self._model = model
        self._output = output
        self._crowd = crowd
        self._progress = progress
        # Of the seed, so that hashed ids, and with them cohorts and who evaluates, are the same in every run.
        self._pepper = hashlib.sha256(f"demonstration {SEED}".encode()).digest()
        self.events: tuple[str, ...] = ()
        self._laboratory = Laboratory(crowd_data, Bundle.open(model))
        self._server: Coordination | None = None
        self._final: Bundle | None = None

    def learn(self) -> tuple[list[Row], dict[str, list[tuple[int, float]]]]:
        """Measure the starting model, train by each method, and measure what comes out."""
        decoding = self._progress.add_task("decoding for the measurements", total=len(self._laboratory.samples()))
        for _ in self._laboratory.prepare():
            self._progress.advance(decoding)
        start = Bundle.open(self._model)
        cosine = self._laboratory.mean_offdiagonal_cosine(start)
        rows = [Row("before", self._laboratory.outcome(start), cosine, 0, 0.0)]
        cosines: dict[str, list[tuple[int, float]]] = {}
        for algorithm in ALGORITHMS:
            row, cosines[algorithm] = self._train(algorithm)
            rows.append(row)
        return rows, cosines

    def verify_one_by_one(self) -> list[Check]:
        """A genuine person and an impostor over REST; again after the person was deleted; offline, server stopped."""
        server, final = self._server, self._final
        assert server is not None
        assert final is not None
        by_name = {person.name: person for person in self._people.people}
        people = [by_name[name] for name in self._laboratory.most_consistent(final)[:3]]
        self._crowd.ask_all(Refresh("fedaws"))
        probes = [_probe(person, self._people.modality) for person in people]
        user = hash_user_id(people[0].name, deployment=_deployment("fedaws"), pepper=self._pepper)
        checks = [
            _rest_check(f"REST, genuine ({people[0].name})", server, user, probes[0], accepted=True),
            _rest_check(
                f"REST, impostor ({people[1].name} as {people[0].name})", server, user, probes[1], accepted=False
            ),
        ]
        self._crowd.ask(people[0].name, Forget("fedaws"))
        answer = server.verify(user, probes[0])
        gone = answer.status_code == 404
        checks.append(Check(f"REST, {people[0].name} deleted", f"{answer.status_code} {_kind(answer.json())}", gone))
        refusal = self._crowd.ask(people[0].name, VerifyOffline("fedaws", probes[0]))
        text = f"{type(refusal).__name__}: {refusal}"
        checks.append(Check(f"offline, {people[0].name} deleted", text, isinstance(refusal, UnknownUserError)))
        server.stop()
        for what, probe, accepted in (
            (f"genuine ({people[1].name})", probes[1], True),
            (f"impostor ({people[2].name} as {people[1].name})", probes[2], False),
        ):
            decision = self._crowd.ask(people[1].name, VerifyOffline("fedaws", probe))
            assert isinstance(decision, Decision)
            text = _outcome(decision.accepted, decision.score, decision.threshold.score)
            checks.append(
                Check(f"offline, server stopped, {what}", text, decision.accepted == accepted, may_fail=accepted)
            )
        return checks

    def stop(self) -> None:
        """End the server that still runs."""
        if self._server is not None:
            self._server.stop()

    def _train(self, algorithm: str) -> tuple[Row, list[tuple[int, float]]]:
        self.stop()
        config = self._config(algorithm)
        count = len(self._people.people)
        names = [person.name for person in self._people.people]
        users = [hash_user_id(name, deployment=config.deployment, pepper=self._pepper) for name in names]
        server = Coordination.start(self._output / algorithm, self._model, config, users)
        self._server = server
        begun = time.monotonic()
        task = self._progress.add_task(f"{TITLES[algorithm]}: joining", total=config.rounds)
        self._crowd.tell_each(
            {
                name: Join(algorithm, server.url, token, self._pepper, self._model, algorithm == "fedaws")
                for name, token in zip(names, server.enrolment_tokens, strict=True)
            }
        )
        cosines: list[tuple[int, float]] = []
        trained: list[Trained] = []
        while len(trained) < count:
            trained += [answer for _, answer in self._crowd.answers(timeout_s=0.5) if isinstance(answer, Trained)]
            committed = server.newest_round()
            if committed and (not cosines or cosines[-1][0] != committed):
                cosines.append((committed, server.mean_offdiagonal_cosine()))
                self._progress.update(
                    task, completed=min(committed, config.rounds), description=f"{TITLES[algorithm]}: rounds"
                )
            if time.monotonic() - begun > LONGEST_TRAINING_S:
                raise SystemExit(f"training by {algorithm} does not end; the server's last words:\n{server.log}")
        seconds = time.monotonic() - begun
        refusals = [reason for part in trained for reason in part.refusals]
        if refusals:
            updates = sum(part.rounds for part in trained)
            self._progress.console.print(f"{len(refusals)} of {updates} updates did not count, e.g.: {refusals[0]}")
        bundle = server.bundle()
        self._final = bundle
        bundle.save(self._output / f"{algorithm}.uvb")
        self.events = server.life()
        if not server.released_is_calibrated():
            # Too few people, or none of whom enough can be told: the operator hands in what the laboratory knows.
            calibration = self._laboratory.calibration(bundle, "enrolment samples of the demonstration's people")
            server.calibrate(bundle.with_calibration(calibration))
            self.events += ("no release of this deployment's own could be calibrated: the operator handed in scores",)
        if algorithm != ALGORITHMS[-1]:
            # Each deployment is left properly: the device keeps keys as long as a server may know its owner.
            self._crowd.ask_all(Withdraw(algorithm))
        row = Row(algorithm, self._laboratory.outcome(bundle), cosines[-1][1], config.rounds, seconds)
        return row, cosines

    def _config(self, algorithm: str) -> TrainingConfig:
        return _configured(self._people, self._backbone, self._setup, algorithm, self._rounds)

    def spreads(self, console: Console) -> dict[str, tuple[float, ...]]:
        """The equal error rate of each method under each of :data:`SEEDS`, trained in this process."""
        found: dict[str, tuple[float, ...]] = {}
        start = Bundle.open(self._model)
        for algorithm in ALGORITHMS:
            console.print(f"{TITLES[algorithm]}: the same rounds in one process, seeds {SEEDS}")
            config = self._config(algorithm)
            found[algorithm] = tuple(
                trained_error(replace(config, seed=seed), start, self._laboratory) for seed in SEEDS
            )
        return found


def _configured(people: People, backbone: str, setup: Setup, algorithm: str, rounds: int | None) -> TrainingConfig:
    values: dict[str, object] = {
        "deployment": _deployment(algorithm),
        "modality": people.modality,
        "backbone": backbone,
        "algorithm": algorithm,
        "recipe": setup.recipe,
        "deadline_s": 120.0,
        "evaluation_share": EVALUATES,
        "evaluate_every": 20,
        "seed": SEED,
    }
    return recipes.configured(values | ({"rounds": rounds} if rounds else {}))


def _deployment(algorithm: str) -> str:
    return f"demo-{algorithm}"


def _probe(person: Person, modality: str) -> bytes:
    """What a person hands in to be verified: one image, or a phrase of five verification clips in a row."""
    if modality != "voice":
        return person.verify[0].read_bytes()
    clips = [soundfile.read(path, dtype="float32", always_2d=True) for path in person.verify[:5]]
    rate = clips[0][1]
    joined = np.concatenate([pcm.mean(axis=1) for pcm, clip_rate in clips if clip_rate == rate])
    spoken = io.BytesIO()
    soundfile.write(spoken, joined, rate, format="WAV", subtype="PCM_16")
    wav: bytes = spoken.getvalue()
    return wav


def _rest_check(what: str, server: Coordination, user: str, sample: bytes, *, accepted: bool) -> Check:
    answer = server.verify(user, sample)
    body = answer.json()
    if answer.status_code != 200:
        return Check(what, f"{answer.status_code} {_kind(body)}", False)
    text = _outcome(body["accepted"], body["score"], body["threshold"]["score"])
    return Check(what, text, body["accepted"] == accepted, may_fail=accepted)


def _outcome(accepted: bool, score: float, threshold: float) -> str:
    return f"{'accepted' if accepted else 'rejected'} (score {score:.3f}, threshold {threshold:.3f})"


def _kind(problem: dict[str, object]) -> str:
    return str(problem.get("type", "")).rsplit(":", 1)[-1] + f": {problem.get('detail', '')}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UvsdkError as error:
        sys.exit(f"demo: {error}")
