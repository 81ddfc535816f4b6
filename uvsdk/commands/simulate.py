"""``uvsdk simulate``: a whole federation in one process, on a folder of people or on the digits of scikit-learn."""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uvsdk.bundle.manifest import PARTS
from uvsdk.cli import Command, setting

if TYPE_CHECKING:
    from uvsdk.federation.messages import TrainingConfig
    from uvsdk.simulation import Simulation
    from uvsdk.simulation.experiment import Measured, People

CHECKPOINT, CONFIG, ROUNDS = "checkpoint.uvs", "config.json", "rounds.csv"
MODEL, EVALUATION = "model.uvb", "evaluation.csv"
BACKBONE, PART = "digits-cnn", 0.2
_FLAGS = {
    "rounds": "rounds",
    "seed": "seed",
    "train": "train",
    "cohort": "cohort_size",
    "local_steps": "local_steps",
    "batch_size": "batch_size",
    "learning_rate": "learning_rate",
}
# What --resume takes from config.json, so that the rounds to come are those of an undisturbed run.
_FIXED = (
    *("algorithm", "data", "backbone", "held_out", "unseen", "config", "recipe", "set", *_FLAGS, "failure_rate"),
    *("batching", "chunk", "evaluators"),
)


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a simulation was started with; ``config.json`` holds it, and ``--resume`` reads it there."""

    data: str
    backbone: str
    held_out: float
    unseen: float
    failure_rate: float
    batching: str
    chunk: int
    config: TrainingConfig
    evaluators: float = 0.0


def _configure(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is trained")
    what.add_argument("--list", action="store_true", help="list every method, a line each, and stop")
    what.add_argument("--algorithm", metavar="NAME", help="a method of --list")
    what.add_argument("--data", metavar="FOLDER|digits", help="a folder of samples for each person, or digits")
    what.add_argument("--backbone", metavar="NAME|BUNDLE", help="a backbone, or a .uvb to start from (digits-cnn)")
    what.add_argument("--train", choices=PARTS, help="all of the backbone, its last block, or its head alone (all)")
    what.add_argument("--held-out", type=float, metavar="PART", help="of each one's samples, for the test (0.2)")
    what.add_argument("--unseen", type=float, metavar="PART", help="of the people, without a device (0.2)")
    how = parser.add_argument_group("how, over the settings of --config and the defaults of a deployment")
    how.add_argument("--config", type=Path, metavar="FILE", help="training settings, JSON or TOML")
    how.add_argument("--recipe", metavar="NAME", help="settings by name (docs/learning.md), under those of --config")
    how.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE", help="of the algorithm")
    how.add_argument("--rounds", type=int, metavar="N", help="rounds to commit")
    how.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same model (0)")
    how.add_argument("--cohort", type=int, metavar="N", help="devices in a round, 0 for all")
    how.add_argument("--local-steps", type=int, metavar="N", help="steps a device makes in a round")
    how.add_argument("--batch-size", type=int, metavar="N", help="samples in a step")
    how.add_argument("--learning-rate", type=float, metavar="RATE", help="of the devices")
    how.add_argument(
        "--evaluators", type=float, metavar="PART", help="of the people with devices only evaluate candidates (0)"
    )
    how.add_argument("--failure-rate", type=float, metavar="PART", help="of a round's devices fail (0)")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--output", type=Path, metavar="DIR", help="write rounds, checkpoint, model and evaluation there"
    )
    where.add_argument("--resume", action="store_true", help="go on from the checkpoint in --output, bit for bit")
    where.add_argument("--checkpoint-every", type=int, default=10, metavar="N", help="rounds (10)")
    where.add_argument("--tensorboard", action="store_true", help="write for TensorBoard too, into --output")
    where.add_argument("--batching", metavar="HOW", help="auto, large, stacked or loop (auto)")
    where.add_argument("--chunk", type=int, metavar="N", help="devices trained at once (what fits 256 MB)")
    where.add_argument("--threads", type=int, default=1, metavar="N", help="threads of torch (1)")
    where.add_argument("--ray", metavar="ADDRESS|local", help="spread devices over a ray cluster, or over processes")
    where.add_argument("--workers", type=int, default=1, metavar="N", help="processes of --ray (1)")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        return _list()
    _check(arguments)
    from uvsdk.errors import SettingsError
    from uvsdk.simulation import Engine, Simulation
    from uvsdk.simulation.experiment import evaluate, load, population_of, reader_of, trunk_of

    setup = _resumed(arguments) if arguments.resume else _started(arguments)
    if not setup.config.rounds:
        raise SettingsError("rounds is 0, which trains nobody; a simulation needs at least 1 (--rounds)")
    config, seed = setup.config, setup.config.seed or 0
    trunk, bundle = trunk_of(setup.backbone, seed=seed, train=config.train)
    if config.modality not in ("", bundle.manifest.modality):
        raise SettingsError(
            f"the settings are for {config.modality}, the backbone {bundle.manifest.backbone} is for "
            f"{bundle.manifest.modality}; name another --recipe or --backbone"
        )
    config = replace(config, modality=bundle.manifest.modality, backbone=bundle.manifest.backbone)
    people = load(setup.data, bundle, held_out=setup.held_out, unseen=setup.unseen, seed=seed)
    print(_described(people, config, len(bundle.theta)))
    population, reader = population_of(people, bundle, config.augmentation), reader_of(bundle)
    engine = Engine(setup.batching, setup.chunk, setup.failure_rate, arguments.threads)
    with ExitStack() as stack:
        workers: Any = None
        if arguments.ray:
            from uvsdk.simulation.ray_backend import RayWorkers

            remote = RayWorkers(
                trunk, population, address=arguments.ray, workers=arguments.workers, threads=arguments.threads
            )
            workers = stack.enter_context(remote)
        evaluators = _evaluators(setup, population.users)
        simulation = Simulation(config, trunk, population, engine, workers=workers, evaluators=evaluators)
        before = evaluate(simulation, people, reader=reader)
        if arguments.resume:
            path = arguments.output / CHECKPOINT
            simulation = Simulation.restore(path, trunk, population, engine=engine, workers=workers, config=config)
        _train(simulation, arguments, replace(setup, config=config))
    after = evaluate(simulation, people, reader=reader)
    print(_table(before, after))
    if arguments.output is not None:
        bundle.with_theta(simulation.theta).save(arguments.output / MODEL)
        _write_evaluation(arguments.output / EVALUATION, before, after)
        print(f"Wrote {', '.join((ROUNDS, CONFIG, CHECKPOINT, MODEL, EVALUATION))} into {arguments.output}")
    return 0


def _list() -> int:
    import importlib

    from uvsdk.federation import algorithms
    from uvsdk.simulation import references

    for title, package, names in (
        ("Federated methods (--algorithm)", algorithms, algorithms.names()),
        ("References on pooled or single people's data (see examples/reproduce)", references, references.names()),
    ):
        print(f"{title}:")
        for name in names:
            words = (importlib.import_module(f"{package.__name__}.{name}").__doc__ or "").strip().splitlines()[0]
            print(f"  {name:<16} {words}")
    return 0


def _evaluators(setup: _Setup, users: Sequence[str]) -> frozenset[str]:
    """Those who only evaluate, drawn as a server draws them."""
    from uvsdk.errors import SettingsError
    from uvsdk.federation import roles
    from uvsdk.release.gate import LEAST_PEOPLE

    if not setup.evaluators:
        return frozenset()
    config = replace(setup.config, evaluation_share=setup.evaluators)
    found = roles.split(users, seed=setup.config.seed or 0, config=config)
    if len(found) < LEAST_PEOPLE:
        raise SettingsError(
            f"of {len(users)} people with devices {len(found)} would only evaluate, {LEAST_PEOPLE} are the least; "
            f"{roles.LEAST_TRAINERS} train before anybody is drawn. Raise --evaluators, or bring more people"
        )
    return found


def _check(arguments: argparse.Namespace) -> None:
    from uvsdk.errors import SettingsError

    if arguments.output is None and (arguments.resume or arguments.tensorboard):
        raise SettingsError("--resume and --tensorboard need --output DIR")
    if arguments.checkpoint_every < 1:
        raise SettingsError(f"--checkpoint-every is at least 1, got {arguments.checkpoint_every}")
    if arguments.resume:
        given = [
            f"--{name.replace('_', '-')}"
            for name in _FIXED
            if name != "rounds" and getattr(arguments, name) not in (None, [])
        ]
        if given:
            raise SettingsError(f"--resume goes on with what {CONFIG} says; leave out {', '.join(given)}")
    elif arguments.data is None:
        raise SettingsError("name the --data: a folder with a folder of samples for each person, or digits")


def _started(arguments: argparse.Namespace) -> _Setup:
    """The setup of the command line, over the settings of ``--config``, over those of a recipe, over the defaults."""
    from uvsdk.errors import SettingsError
    from uvsdk.federation import algorithms, recipes
    from uvsdk.federation.messages import TrainingConfig
    from uvsdk.simulation import references

    values: dict[str, Any] = {"deployment": "simulation", "modality": "", "backbone": BACKBONE, "seed": 0}
    values |= _file(arguments.config) if arguments.config else {}
    values |= {"algorithm": arguments.algorithm} if arguments.algorithm else {}
    values |= {"recipe": arguments.recipe} if arguments.recipe else {}
    values = recipes.resolved(values)
    values |= {field: value for flag, field in _FLAGS.items() if (value := getattr(arguments, flag)) is not None}
    values["algorithm_settings"] = {**values.get("algorithm_settings", {}), **dict(arguments.set)}
    if "algorithm" not in values:
        raise SettingsError(f"name the --algorithm: one of {', '.join(algorithms.names())}")
    if values["algorithm"] in references.names():
        raise SettingsError(f"{values['algorithm']} is a reference without rounds; examples/reproduce runs it")
    unknown = set(values) - {field.name for field in fields(TrainingConfig)}
    if unknown:
        raise SettingsError(f"unknown training settings {sorted(unknown)} in {arguments.config}")
    try:
        config = TrainingConfig(**values)
    except TypeError as error:
        raise SettingsError(f"not training settings: {error}") from error
    backbone = arguments.backbone or config.backbone
    algorithms.settings(config.algorithm, config.algorithm_settings)
    return _Setup(
        data=arguments.data,
        backbone=backbone,
        held_out=PART if arguments.held_out is None else arguments.held_out,
        unseen=PART if arguments.unseen is None else arguments.unseen,
        failure_rate=arguments.failure_rate or 0.0,
        batching=arguments.batching or "auto",
        chunk=arguments.chunk or 0,
        config=config,
        evaluators=arguments.evaluators or 0.0,
    )


def _file(path: Path) -> dict[str, Any]:
    from uvsdk.errors import SettingsError

    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{path} cannot be read as {'TOML' if path.suffix == '.toml' else 'JSON'}: {error}"
        ) from error
    if not isinstance(found, dict):
        raise SettingsError(f"{path} holds no settings by name")
    return found


def _resumed(arguments: argparse.Namespace) -> _Setup:
    """The setup that ``config.json`` in the output folder holds; more rounds may be asked for."""
    from uvsdk.errors import SettingsError
    from uvsdk.federation.messages import TrainingConfig

    values = _file(arguments.output / CONFIG)
    try:
        config = TrainingConfig(**values.pop("config"))
        setup = _Setup(**values, config=config)
    except (KeyError, TypeError) as error:
        raise SettingsError(f"{arguments.output / CONFIG} was not written by uvsdk simulate") from error
    if setup.evaluators:
        raise SettingsError("a training that evaluators lead keeps its best state in memory: start it anew")
    return setup if arguments.rounds is None else replace(setup, config=replace(config, rounds=arguments.rounds))


def _train(simulation: Simulation, arguments: argparse.Namespace, setup: _Setup) -> None:
    """The rounds that are left, with their records; a checkpoint now and then, at the end, and when interrupted."""
    from uvsdk.errors import SettingsError
    from uvsdk.simulation.evaluations import Evaluations
    from uvsdk.simulation.progress import Progress
    from uvsdk.simulation.records import RoundRecord
    from uvsdk.simulation.sinks import CsvSink, TensorBoardSink

    folder: Path | None = arguments.output
    sinks: list[Any] = []
    with ExitStack() as stack:
        if folder is not None:
            text = json.dumps(asdict(setup), indent=2, sort_keys=True) + "\n"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / CONFIG).write_text(text, encoding="utf-8")
            except OSError as error:
                raise SettingsError(f"--output {folder} cannot be written: {error.strerror}") from error
            sinks.append(CsvSink(folder / ROUNDS, after=simulation.round_id))
            if arguments.tensorboard:
                board = TensorBoardSink(folder, after=simulation.round_id)
                stack.callback(board.close)
                sinks.append(board)
            stack.callback(simulation.save, folder / CHECKPOINT)
        progress = stack.enter_context(Progress(simulation.committed, simulation.config.rounds))

        evaluations = Evaluations(simulation) if setup.evaluators else None

        def note(record: RoundRecord) -> None:
            if evaluations is not None:
                evaluations(record)
            for sink in (*sinks, progress):
                sink(record)
            if folder is not None and record.round_id % arguments.checkpoint_every == 0:
                simulation.save(folder / CHECKPOINT)

        simulation.run(on_round=note)
    if evaluations is not None:
        print(
            f"{len(evaluations.concluded)} evaluations by {len(simulation.evaluators)} people: {evaluations.returns} "
            f"returns to the best, {evaluations.releases} releases; the step ended at {simulation.step:g} of its length"
        )


def _described(people: People, config: TrainingConfig, parameters: int) -> str:
    samples = sum(len(features) for features in people.train.values())
    aside = sum(len(features) for features in people.held_out.values())
    cohort = min(config.cohort_size or len(people.train), len(people.train))
    lines = [
        f"{config.algorithm} on {config.backbone} ({_trained(config)}{parameters:,} parameters), seed {config.seed}",
        f"{len(people.train)} devices, {samples} samples, {aside} more held out; {len(people.unseen)} people unseen",
        f"{config.rounds} rounds of {cohort} devices; local steps: {config.local_steps} of {config.batch_size} samples",
    ]
    if people.unusable:
        lines.append(f"{people.unusable} samples could not be used")
    return "\n".join(lines)


def _trained(config: TrainingConfig) -> str:
    return "" if config.train == "all" else f"its {config.train}, "


def _table(before: list[Measured], after: list[Measured]) -> str:
    if not after:
        return "No evaluation: nobody has samples that were held out, and fewer than two people are unseen."
    lines = ["EER, 95 % bootstrap interval over people:"]
    for when, found in (("before", before), ("after", after)):
        for item in found:
            eer = item.eer
            interval = "no interval, too few" if math.isnan(eer.low) else f"{eer.low:.2%} – {eer.high:.2%}"
            lines.append(
                f"  {when:<7} {item.people:<9} {eer.value:7.2%}  ({interval})  "
                f"{item.subjects} people, {item.genuine:,} genuine and {item.impostor:,} impostor trials"
            )
    return "\n".join(lines)


def _write_evaluation(path: Path, before: list[Measured], after: list[Measured]) -> None:
    import csv

    columns = ("model", "people", "metric", "value", "low", "high", "subjects", "genuine_trials", "impostor_trials")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for when, found in (("before", before), ("after", after)):
            for item in found:
                eer = (item.eer.value, item.eer.low, item.eer.high)
                interval = ["" if math.isnan(value) else f"{value:.6f}" for value in eer]
                writer.writerow([when, item.people, "eer", *interval, item.subjects, item.genuine, item.impostor])


COMMAND = Command("simulate", "train a whole federation in one process and measure it", _configure, _run)
