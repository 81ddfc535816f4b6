"""One run: the same people learn by three methods, one after the other, and what is released is tried each time."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import groups as grouping
import rich.progress
from coordination import Coordination
from crowd import Crowd
from data import People
from groups import Groups
from laboratory import Laboratory
from life import CLIPS, Lived, Strangers, Witness, pairs, problem
from people import Forget, Join, Progress, TakePart, TellProgress, VerifyOffline, Withdraw
from results import TITLES, Check, Learned, Row
from spread import Spread

from uvsdk import Bundle
from uvsdk.errors import UnknownUserError
from uvsdk.federation import recipes, roles
from uvsdk.federation.messages import TrainingConfig
from uvsdk.privacy.identifiers import hash_user_id

ALGORITHMS = ("positive_only", "fixed", "fedaws")
SHOWN = ALGORITHMS[-1]
"""Whose releases are tried one by one."""
SEED = 20
SEEDS = (20, 21, 22)
"""Of the trainings that show how far runs differ."""
DEPLOYMENT = "demo"
"""One name under each method, so that hashed ids, and with them who only evaluates, are the same."""

PEPPER = hashlib.sha256(f"demonstration {SEED}".encode()).digest()
"""Of the seed, so that hashed ids, and with them cohorts and who evaluates, are the same in every run."""

# Training must end; this bound is only met when something is broken.
_LONGEST_TRAINING_S = 3600.0
_LOOK_S = 0.5
_DEADLINE_S = 600.0
"""Of a round and of an evaluation. The first evaluation, which centres the model, begins while people still join, and
nobody answers before all have: on a machine with other work that is minutes."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How a modality is trained: a recipe of the library (docs/learning.md), and the model to begin with.

    Args:
        backbone: registry name.
        recipe: name.
        preprocessing: settings of the model that differ from the backbone's own.
    """

    backbone: str
    recipe: str
    preprocessing: dict[str, float] = field(default_factory=dict)


class Demonstration:
    """The people, their devices, and one server after the other."""

    def __init__(
        self,
        people: People,
        setup: Setup,
        rounds: int | None,
        model: Path,
        output: Path,
        groups: Groups,
        crowd: Crowd,
        progress: rich.progress.Progress,
    ) -> None:
        self._people = people
        self._groups = groups
        self._setup = setup
        self._rounds = rounds
        self._model = model
        self._founding = output / "founding.uvb"
        self._start = Bundle.open(model)
        self._output = output
        self._crowd = crowd
        self._progress = progress
        self._server: Coordination | None = None
        self._laboratory = Laboratory(people, self._start)
        self._users = users(people)
        self._known_witness: Witness | None = None
        self.learned = Learned()

    def config(self, algorithm: str) -> TrainingConfig:
        """Of one method's training."""
        return configured(self._people, self._setup, algorithm, self._rounds)

    def learn(self) -> None:
        """Measure the starting model, train by each method, and measure what comes out."""
        decoding = self._progress.add_task("decoding for the measurements", total=len(self._laboratory.files()))
        for _ in self._laboratory.prepare():
            self._progress.advance(decoding)
        begun = {"before": self._start, "centred": self._laboratory.centred(self._start, self._groups)}
        for name, bundle in begun.items():
            if bundle is not None:
                cosine = self._laboratory.mean_offdiagonal_cosine(bundle, self._groups.trained)
                self.learned.rows.append(self._row(name, bundle, cosine, 0, 0.0))
        self.learned.pairs = self._witness.pairs
        self._found()
        for algorithm in ALGORITHMS:
            self.learned.rows.append(self._train(algorithm))

    def leave(self) -> None:
        """After the last method: roll back, delete a person, and verify without a server."""
        server, witness = self._server, self._witness
        assert server is not None
        self._roll_back(server, witness)
        pair = witness.pairs[0]
        probe = witness.clips[pair.claimed][0]
        self._crowd.ask(pair.claimed, Forget(SHOWN))
        answer = server.verify(self._users[pair.claimed], probe)
        words = f"{answer.status_code} {problem(answer.json())}"
        self._check(f"REST, {pair.claimed} deleted", words, expected=answer.status_code == 404)
        refusal = self._crowd.ask(pair.claimed, VerifyOffline(probe))
        words = f"{type(refusal).__name__}: {refusal}"
        self._check(f"offline, {pair.claimed} deleted", words, expected=isinstance(refusal, UnknownUserError))
        server.stop()
        left = tuple(other for other in witness.pairs if other.claimed != pair.claimed)
        self._without_a_server(replace(witness, pairs=left))

    def stop(self) -> None:
        """End the server that still runs."""
        if self._server is not None:
            self._server.stop()

    def spreads(self) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
        """The equal error rates of each method under each of :data:`SEEDS`, trained in this process: of people who
        trained, and of those who never did.
        """
        found = {}
        spread = Spread.of(self._start, self._laboratory, self._groups)
        for algorithm in ALGORITHMS:
            self._progress.console.print(f"{TITLES[algorithm]}: the same rounds in one process, seeds {SEEDS}")
            sides = [spread.trained_errors(replace(self.config(algorithm), seed=seed)) for seed in SEEDS]
            found[algorithm] = (
                tuple(side.trained for side in sides if side.trained is not None),
                tuple(side.strangers for side in sides if side.strangers is not None),
            )
        return found

    # One method

    def _train(self, algorithm: str) -> Row:
        self.stop()
        config = self.config(algorithm)
        names = self._groups.joined
        server = Coordination.start(
            self._output / algorithm, self._founding, config, [self._users[name] for name in names]
        )
        self._server = server
        begun = time.monotonic()
        task = self._progress.add_task(f"{TITLES[algorithm]}: joining", total=config.rounds)
        self._join(server, algorithm)
        if server.evaluators() != len(self._groups.evaluate):
            raise RuntimeError(f"{server.evaluators()} people only evaluate, {len(self._groups.evaluate)} were drawn")
        self._crowd.ask_all(TakePart(algorithm), names)
        self.learned.cosines[algorithm] = self._follow(server, algorithm, task, begun)
        seconds = time.monotonic() - begun
        bundle = server.bundle()
        bundle.save(self._output / f"{algorithm}.uvb")
        if algorithm == SHOWN:
            self.learned.evaluations = server.evaluations()
        else:
            # Each deployment is left properly: the device keeps keys as long as a server may know its owner.
            self._crowd.ask_all(Withdraw(algorithm), names)
        cosine = self.learned.cosines[algorithm][-1][1]
        return self._row(algorithm, bundle, cosine, config.rounds, seconds)

    def _row(self, name: str, bundle: Bundle, cosine: float, rounds: int, seconds: float) -> Row:
        laboratory, groups = self._laboratory, self._groups
        outcomes, single = laboratory.outcomes(bundle, groups), laboratory.of_single_clips(bundle, groups)
        return Row(name, outcomes, single, cosine, rounds, seconds)

    def _join(self, server: Coordination, algorithm: str) -> None:
        """The first eight train, whatever is drawn of the others; so the groups are the same in every run.

        Where releases are tried, those who are claimed join next and are tried before everybody else joins: with
        eight who evaluate the founding release may not be the last one.
        """
        tokens = dict(zip(self._groups.joined, server.enrolment_tokens, strict=True))
        first = self._groups.trained[: roles.LEAST_TRAINERS]
        claimed = [pair.claimed for pair in self._witness.pairs] if algorithm == SHOWN else []
        then = [name for name in claimed if name not in first]
        others = [name for name in self._groups.joined if name not in {*first, *then}]
        for names in (first, then, others):
            if names is others and algorithm == SHOWN:
                self._try_new(server)
            self._crowd.ask_each(
                {
                    name: Join(algorithm, server.url, tokens[name], PEPPER, self._model, algorithm == SHOWN)
                    for name in names
                }
            )

    def _follow(
        self, server: Coordination, algorithm: str, task: rich.progress.TaskID, begun: float
    ) -> list[tuple[int, float]]:
        """Until training rests; gives (round, mean off-diagonal cosine of the class matrix)."""
        cosines: list[tuple[int, float]] = []
        finished = False
        while not finished:
            time.sleep(_LOOK_S)
            told = self._crowd.ask_all(TellProgress(), self._groups.joined).values()
            progress = [item for item in told if isinstance(item, Progress)]
            finished = all(item.finished for item in progress)
            committed = server.newest_round()
            if committed and (not cosines or cosines[-1][0] != committed):
                cosines.append((committed, server.mean_offdiagonal_cosine()))
                done = min(committed, self.config(algorithm).rounds)
                self._progress.update(task, completed=done, description=f"{TITLES[algorithm]}: rounds")
            if algorithm == SHOWN:
                self._try_new(server)
            if time.monotonic() - begun > _LONGEST_TRAINING_S:
                raise SystemExit(f"training by {algorithm} does not end; the server's last words:\n{server.log}")
        refusals = [reason for item in progress for reason in (*item.refusals, *item.refused_releases)]
        if refusals:
            self._progress.console.print(f"{len(refusals)} updates or releases were refused, e.g.: {refusals[0]}")
        return cosines

    def _found(self) -> None:
        """The model that the servers begin with, calibrated as an operator does who has recordings of volunteers: here
        the enrolment samples of those who evaluate, or of all where those are too few for a rate of 1 %. The one
        threshold that somebody pools scores for.
        """
        enough = len(self._groups.evaluate) >= grouping.LEAST_EVALUATORS
        volunteers = self._groups.evaluate if enough else self._groups.joined
        calibration = self._laboratory.calibration(
            self._start, volunteers, f"enrolment samples of {len(volunteers)} volunteers, pooled by the operator"
        )
        self._start.with_calibration(calibration).save(self._founding)

    # What is released

    @property
    def _witness(self) -> Witness:
        """Whom to try, chosen by the model that everybody starts with."""
        if self._known_witness is None:
            found = pairs(self._groups, self._laboratory.most_consistent(self._start))
            wanted = {name for pair in found for name in (pair.claimed, pair.impostor)}
            clips = {
                person.name: [path.read_bytes() for path in self._laboratory.usable(person.verify)[:CLIPS]]
                for person in self._people.people
                if person.name in wanted
            }
            self._known_witness = Witness(self._crowd, SHOWN, found, clips, self._users)
        return self._known_witness

    def _try_new(self, server: Coordination) -> None:
        """Try what has been released since the last look; of two at once only the one that verifies can be."""
        known = {lived.number for lived in self.learned.lived}
        new = [release for release in server.releases() if release["number"] not in known]
        for release in new[:-1]:
            self._tell(Lived(release, ()))
        if new:
            self._tell(self._lived(server, new[-1]))

    def _lived(self, server: Coordination, release: dict[str, object]) -> Lived:
        lived = self._witness.try_all(server, release)
        limits, evaluation = lived.thresholds, lived.evaluation
        if limits is None or evaluation is None or limits[0] != limits[1]:
            return lived
        outcome = self._laboratory.outcomes(server.release_bundle(lived.number), self._groups).strangers
        if outcome is None:
            return lived
        scores = outcome.trials.impostor
        return replace(lived, strangers=Strangers(float((scores >= limits[0]).mean()), len(scores)))

    def _tell(self, lived: Lived) -> None:
        self.learned.lived.append(lived)
        self._progress.console.print(lived.words)

    def _roll_back(self, server: Coordination, witness: Witness) -> None:
        if len(self.learned.lived) == 1:
            # The gate has kept every candidate: an operator who wants it all the same releases the last one.
            answer = server.promote()
            if answer.status_code == 201:
                self._try_new(server)
        before = {lived.release["bundle"]: lived for lived in self.learned.lived}
        answer = server.roll_back()
        if answer.status_code != 201:
            # Nothing was released but what it was founded with, and nobody could measure anything else.
            self._check("rolled back", problem(answer.json()), expected=len(self.learned.lived) == 1)
            return
        self._try_new(server)
        now = self.learned.lived[-1]
        then = before.get(now.release["bundle"])
        if then is None or not then.attempts:
            return
        # While people were tried their devices may have gone on to the next release, or not come to this one yet.
        sides = [
            {(item.pair, item.genuine, item.route): replace(item, release=0) for item in of.switched}
            for of in (now, then)
        ]
        both = sides[0].keys() & sides[1].keys()
        same = bool(both) and all(sides[0][key] == sides[1][key] for key in both)
        words = f"scores and thresholds of release {now.number} are those of release {then.number}"
        count = "" if len(both) == len(then.attempts) else f", of {len(both)} attempts that both decided"
        self._check("rolled back", f"{words if same else f'not all {words}'}{count}", expected=same)

    def _without_a_server(self, witness: Witness) -> None:
        lived = replace(self.learned.lived[-1], attempts=witness.try_offline())
        genuine, impostors = (lived.count("offline", genuine=kind) for kind in (True, False))
        words = f"genuine {genuine} accepted, impostors {impostors}"
        self._check("offline, server stopped", words, expected=not lived.objection)

    def _check(self, what: str, outcome: str, *, expected: bool) -> None:
        self.learned.checks.append(Check(what, outcome, expected))


def configured(people: People, setup: Setup, algorithm: str, rounds: int | None) -> TrainingConfig:
    """The training of one method."""
    joining, _ = grouping.order([person.name for person in people.people], SEED)
    values: dict[str, object] = {
        "deployment": DEPLOYMENT,
        "modality": people.modality,
        "backbone": setup.backbone,
        "algorithm": algorithm,
        "recipe": setup.recipe,
        "deadline_s": _DEADLINE_S,
        "evaluation_share": grouping.share(len(joining)),
        "evaluate_every": 20,
        "seed": SEED,
    }
    return recipes.configured(values | ({"rounds": rounds} if rounds else {}))


def users(people: People) -> dict[str, str]:
    """Name -> hashed id."""
    return {person.name: hash_user_id(person.name, deployment=DEPLOYMENT, pepper=PEPPER) for person in people.people}


def grouped(people: People, setup: Setup) -> Groups:
    """Who trains, who only evaluates, and who never takes part."""
    joining, outside = grouping.order([person.name for person in people.people], SEED)
    return grouping.assign(joining, outside, users(people), configured(people, setup, SHOWN, None))
