"""The whole job on real people: device processes enrol and learn together, the model tells genuine from impostor.

Usage: python examples/demo/run.py --output FOLDER [--data FOLDER] [--rounds N] [--backbone NAME]

Starts the coordination server and one process per person, which talks to it over HTTP only. Trains three ways
(positive-only, fixed embeddings, FedAwS), measures each on samples nobody trained on, verifies one genuine person and
one impostor over REST and offline, deletes a person, and writes report.html and report.json.
"""

from __future__ import annotations

import argparse
import io
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
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

from uvsdk import Bundle, Decision, UvsdkError
from uvsdk.errors import UnknownUserError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.privacy.identifiers import hash_user_id

ALGORITHMS = ("positive_only", "fixed", "fedaws")
SEED = 20
# Training must end; this bound is only met when something is broken.
LONGEST_TRAINING_S = 3600.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a modality is trained. Chosen on enrolment samples alone (README), never on a verification sample."""

    backbone: str
    rounds: int
    cohort_size: int
    batch_size: int
    server_learning_rate: float
    warmup_rounds: int
    preprocessing: tuple[str, ...] = ()


RECIPES = {
    # A spoken letter is 0.4 s of speech, less than the half second that the encoder asks for by default.
    "voice": Recipe(
        "ge2e",
        rounds=24,
        cohort_size=10,
        batch_size=4,
        server_learning_rate=4e-4,
        warmup_rounds=4,
        preprocessing=("minimum_speech_s=0.2",),
    ),
    "face": Recipe(
        "faceapi-resnet", rounds=20, cohort_size=10, batch_size=2, server_learning_rate=1e-4, warmup_rounds=3
    ),
    "handwriting": Recipe(
        "digits-cnn", rounds=60, cohort_size=0, batch_size=8, server_learning_rate=2e-3, warmup_rounds=6
    ),
}


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
    recipe = RECIPES[crowd_data.modality]
    backbone = arguments.backbone or recipe.backbone
    console.print(f"{len(crowd_data.people)} people: {crowd_data.source}")
    model = output / "start.uvb"
    _export(backbone, model, recipe.preprocessing)
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
        demonstration = Demonstration(
            crowd_data, backbone, recipe, arguments.rounds or recipe.rounds, model, output, crowd, progress
        )
        try:
            rows, cosines = demonstration.learn()
            checks = demonstration.verify_one_by_one()
        finally:
            demonstration.stop()
    command = f"make demo{f' DATA={arguments.data}' if arguments.data else ''}"
    extra = [f"--{name} {value}" for name in ("rounds", "backbone") if (value := getattr(arguments, name))]
    if extra:
        command += f" DEMO_ARGUMENTS={shlex.quote(' '.join(extra))}"
    run = Run(crowd_data, backbone, tuple(rows), cosines, tuple(checks), time.monotonic() - start, command, SEED)
    summaries = run.summaries()
    write(run, summaries, output)
    console.print(terminal_table(run, summaries))
    if crowd_data.caveat:
        console.print(crowd_data.caveat)
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


def _export(backbone: str, target: Path, preprocessing: tuple[str, ...]) -> None:
    """In a process of its own, so that this one never holds torch's threads when it starts others."""
    command = [sys.executable, "-m", "uvsdk", "export", backbone, "--output", str(target), "--download"]
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
        recipe: Recipe,
        rounds: int,
        model: Path,
        output: Path,
        crowd: Crowd,
        progress: Progress,
    ) -> None:
        self._people = crowd_data
        self._backbone = backbone
        self._recipe = recipe
        self._rounds = rounds
        self._model = model
        self._output = output
        self._crowd = crowd
        self._progress = progress
        self._pepper = secrets.token_bytes(32)
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
        calibration = self._laboratory.calibration(bundle, "enrolment samples of the demonstration's people")
        self._final = bundle.with_calibration(calibration)
        self._final.save(self._output / f"{algorithm}.uvb")
        server.calibrate(self._final)
        if algorithm != ALGORITHMS[-1]:
            # Each deployment is left properly: the device keeps keys as long as a server may know its owner.
            self._crowd.ask_all(Withdraw(algorithm))
        row = Row(algorithm, self._laboratory.outcome(bundle), cosines[-1][1], config.rounds, seconds)
        return row, cosines

    def _config(self, algorithm: str) -> TrainingConfig:
        recipe = self._recipe
        return TrainingConfig(
            deployment=_deployment(algorithm),
            modality=self._people.modality,
            backbone=self._backbone,
            algorithm=algorithm,
            local_steps=1,
            batch_size=recipe.batch_size,
            learning_rate=0.1,
            gradient_clip=10.0,
            weighting="capped",  # as when the report was made; a deployment of strangers' devices weights them alike
            # The deltas of one small step lie far below FedOpt's 1e-3, which would turn adam into plain momentum.
            server_adaptivity=1e-8,
            optimiser="adam",
            server_learning_rate=recipe.server_learning_rate,
            warmup_rounds=recipe.warmup_rounds,
            rounds=self._rounds,
            cohort_size=min(recipe.cohort_size, len(self._people.people)),
            deadline_s=120.0,
            seed=SEED,
        )


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
