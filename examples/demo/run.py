"""The whole job on real people: device processes enrol and learn together, the model tells genuine from impostor.

Usage: python examples/demo/run.py --output FOLDER [--data FOLDER] [--rounds N] [--backbone NAME]

Starts the coordination server and one process per person, which talks to it over HTTP only. Trains three ways
(positive-only, fixed embeddings, FedAwS) by one recipe; about half of the people only evaluate, and by their word a
candidate is released or not and gets its threshold; a few are kept out of everything, the strangers that a
verification is there to reject. After each release of the last deployment the same few people are verified and
impostors tried, over REST and offline. Then a roll-back, a deletion, the same trainings from other seeds in this
process, and report.html and report.json.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import leash
import sentences
import tables
from crowd import Crowd
from data import handwriting, people
from demonstration import SEED, SHOWN, Demonstration, Setup, configured, grouped
from page import write
from results import Run
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from uvsdk import Bundle, UvsdkError

SETUPS = {
    # A single syllable, which is measured too, is 0.4 s of speech, less than the half second that the encoder asks for.
    "voice": Setup("campplus+centred", "voice-centred", {"minimum_speech_s": 0.2}),
    "face": Setup("faceapi-resnet", "face-head"),
    "handwriting": Setup("digits-cnn", "handwriting"),
}

DOWNLOADED = Path("demo-data")
"""What is fetched or made for the demonstration, and stays for the next run."""


class _NoModelError(UvsdkError):
    """The model to start from cannot be made; the message says why."""


def main() -> int:
    """Run the demonstration.

    The exit status is 1 where more impostors are let in than the false match rate allows, where server and device
    disagree, or where a deleted person is still known. A genuine person who is turned away is what the releases'
    FNMR says will happen, and is shown.
    """
    arguments = _arguments()
    start = time.monotonic()
    console = Console()
    output: Path = arguments.output
    # What earlier runs made goes, the downloaded recordings stay.
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    crowd_data = people(arguments.data, DOWNLOADED)
    if arguments.data is None and crowd_data.modality == "voice":
        crowd_data = sentences.spoken(crowd_data, DOWNLOADED / "sentences")
    setup = SETUPS[crowd_data.modality]
    if arguments.backbone:
        setup = replace(setup, backbone=arguments.backbone)
    train = configured(crowd_data, setup, SHOWN, arguments.rounds).train
    try:
        model = _export(setup, output, train)
    except _NoModelError as error:
        if arguments.data is not None or arguments.backbone or crowd_data.modality == "handwriting":
            raise SystemExit(str(error)) from None
        console.print(f"no voices: {error}\nusing handwriting instead, for which nothing is fetched")
        crowd_data = handwriting(DOWNLOADED / "handwriting")
        setup = SETUPS[crowd_data.modality]
        model = _export(setup, output, configured(crowd_data, setup, SHOWN, arguments.rounds).train)
    groups = grouped(crowd_data, setup)
    console.print(f"{len(crowd_data.people)} people: {crowd_data.source}")
    console.print(
        f"{len(groups.trained)} train, {len(groups.evaluate)} only evaluate, {len(groups.outside)} never take part"
    )
    by_name = {person.name: person for person in crowd_data.people}
    joined = [by_name[name] for name in groups.joined]
    with _stores(output) as stores, Crowd(joined, stores) as crowd, _progress(console) as progress:
        demonstration = Demonstration(crowd_data, setup, arguments.rounds, model, output, groups, crowd, progress)
        try:
            demonstration.learn()
            demonstration.leave()
        finally:
            demonstration.stop()
        devices_s = crowd.processor_s()
    # After the device processes have ended: these trainings take torch into this process.
    spreads = demonstration.spreads()
    learned = demonstration.learned
    learned.rows = [replace(row, spread=spreads.get(row.name)) for row in learned.rows]
    run = Run(
        people=crowd_data,
        groups=groups,
        backbone=setup.backbone,
        learned=learned,
        seconds=time.monotonic() - start,
        processor_s=devices_s + _processor_s(),
        command=_command(arguments),
        seed=SEED,
    )
    _show(run, output, console)
    return 0 if run.as_expected else 1


def _show(run: Run, output: Path, console: Console) -> None:
    summaries = run.summaries()
    write(run, summaries, output)
    for table in tables.models(run, summaries):
        console.print(table.printed())
    if run.people.caveat:
        console.print(run.people.caveat)
    for line in run.learned.evaluations:
        console.print(line)
    console.print(tables.releases(run).printed())
    for check in run.learned.checks:
        verdict = "[green]as expected[/]    " if check.expected else "[red]not as expected[/]"
        console.print(f"{verdict}  {check.what}: {check.outcome}")
    for lived in run.learned.lived:
        if lived.objection:
            console.print(f"[red]not as expected[/]  release {lived.number}: {lived.objection}")
    console.print(
        f"{run.seconds:.0f} s, {run.processor_s:.0f} processor seconds; plots in {output / 'report.html'}, numbers in "
        f"{output / 'report.json'}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="made anew by every run")
    parser.add_argument("--data", type=Path, help="a folder of audio or images per person")
    parser.add_argument("--rounds", type=int, help="rounds of each method")
    parser.add_argument("--backbone", help="another backbone of the modality (uvsdk export --help lists them)")
    return parser.parse_args()


def _command(arguments: argparse.Namespace) -> str:
    command = f"make demo{f' DATA={arguments.data}' if arguments.data else ''}"
    extra = [f"--{name} {value}" for name in ("rounds", "backbone") if (value := getattr(arguments, name))]
    return f"{command} DEMO_ARGUMENTS={shlex.quote(' '.join(extra))}" if extra else command


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


@contextlib.contextmanager
def _stores(output: Path) -> Iterator[Path]:
    """The folder of the devices' encrypted stores; what a kill leaves of it goes with the next run."""
    folder = output / "devices"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _processor_s() -> float:
    """Of this process and of those it has waited for, the devices aside: another process forked them."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _export(setup: Setup, output: Path, train: str) -> Path:
    """In a process of its own, so that this one never holds torch's threads when it starts others."""
    target = output / "start.uvb"
    command = [sys.executable, "-m", "uvsdk", "export", setup.backbone, "--output", str(target), "--download"]
    command += ["--train", train] if train != "all" else []
    command += [part for name, value in setup.preprocessing.items() for part in ("--set", f"{name}={value}")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise _NoModelError(f"the starting model could not be made:\n{done.stderr.strip()}")
    # Without a card, where one is shipped: it was measured on other recordings.
    Bundle.open(target).with_calibration(None).save(target)
    return target


if __name__ == "__main__":
    try:
        with leash.put_away():
            sys.exit(main())
    except UvsdkError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; nothing of it runs any more")
