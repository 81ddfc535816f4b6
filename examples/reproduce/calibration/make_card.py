"""The cards that ``uvsdk export`` attaches: ``python -m examples.reproduce.calibration.make_card voice.uvb face.uvb``.

Voices: every recording of the three LibriSpeech parts (261 people). Faces: the originals of LFW's first fold. What is
written is numbers about scores; the averages in it are over all of these people, and no embedding of one is kept.
``python -m examples.reproduce.calibration.table`` then tells the README of them.
"""

from __future__ import annotations

import argparse
import calendar
import datetime
import tarfile
import tempfile
from pathlib import Path

import uvsdk
from examples.reproduce import data
from uvsdk.bundle import Bundle, cards
from uvsdk.evaluation import calibrating
from uvsdk.evaluation.observations import observe
from uvsdk.evaluation.protocols import Person
from uvsdk.modality import get

FOLDER = Path(uvsdk.__file__).parent / "data" / "cards"
WORDS = {
    "voice": "{people} people of LibriSpeech (read English, CC BY 4.0)",
    "face": "{people} people of LFW, fold 1 (press photos)",
}


def main() -> None:
    """Measure and write one card for each bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+", help="of uvsdk export")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder for the cards")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--date", type=datetime.date.fromisoformat, default=datetime.datetime.now(datetime.UTC).date())
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for path in arguments.bundles:
        bundle = Bundle.open(path)
        modality = bundle.manifest.modality
        with tempfile.TemporaryDirectory() as folder:
            people = voices() if modality == "voice" else faces(Path(folder))
            seen, failures = observe(people, bundle, seed=arguments.seed)
        found = calibrating.fit(
            seen,
            model_version=bundle.version,
            source=WORDS[modality].format(people=seen.people),
            directions=get(modality).directions,
            seed=arguments.seed,
            now=calendar.timegm(arguments.date.timetuple()) * 1.0,
        )
        name, body = cards.make(found.calibration, bundle.manifest)
        (arguments.output / name).write_bytes(body)
        print(
            f"{name}  {len(body) / 1e3:.0f} kB  {modality}: {len(seen.embeddings)} embeddings, {len(failures)} failed"
        )
        print(f"  {found.calibration.account}")


def voices() -> list[Person]:
    """Every speaker; every recording may be a template and a probe."""
    root = data.folder() / "speech_librispeech"
    files: dict[str, list[Path]] = {}
    for path in sorted(root.glob("*/*/*.flac")):
        files.setdefault(path.parent.name, []).append(path)
    return [Person(name, tuple(paths), ()) for name, paths in sorted(files.items())]


def faces(folder: Path) -> list[Person]:
    """Everybody in the first fold of LFW."""
    with tarfile.open(data.folder() / "lfw_fold1_originals.tar") as archive:
        archive.extractall(folder, filter="data")
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.jpg")):
        files.setdefault(path.stem.rsplit("_", 1)[0], []).append(path)
    return [Person(name, tuple(paths), ()) for name, paths in sorted(files.items())]


if __name__ == "__main__":
    main()
