"""Labeled Faces in the Wild, View 2, with a bundle of this repository: aligned chips, original photographs, ORL.

``python -m examples.reproduce.lfw.run`` measures every model of :data:`MODELS` and writes results.csv; ``--model NAME``
one of them, ``--bundle FILE --name NAME`` any other face bundle.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from examples.reproduce import data, record
from examples.reproduce.lfw import unpack
from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.evaluation import lfw, pairs, protocols
from uvsdk.evaluation.acquisition import Embedder
from uvsdk.evaluation.protocols import ProtocolOutcome
from uvsdk.evaluation.summary import Summary, summarise
from uvsdk.modality import Capture
from uvsdk.modality.face import alignment
from uvsdk.training.graphs.sface import Precision, sface_bundle

HERE = Path(__file__).parent
PARTS = ("aligned", "originals", "orl")
SEED = 0


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(MODELS), action="append", help="only this model (default: all)")
    parser.add_argument("--bundle", type=Path, help="a face bundle to measure in place of these")
    parser.add_argument("--name", help="what to call it in the results (default: the backbone's name)")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part (default: all)")
    parser.add_argument("--quality", choices=("strict", "standard", "off"), default="standard")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv")
    chosen = parser.parse_args(arguments)
    capture = Capture(quality=chosen.quality, faces="largest")
    parts = tuple(chosen.part or PARTS)
    if chosen.bundle is not None:
        bundle = Bundle.open(chosen.bundle)
        measure(bundle, chosen.name or bundle.manifest.backbone, parts, capture, chosen.output)
        return
    for name in chosen.model or tuple(MODELS):
        measure(MODELS[name](), name, parts, capture, chosen.output)


def measure(bundle: Bundle, name: str, parts: Sequence[str], capture: Capture, output: Path) -> None:
    """Measure the parts with one model and record them under its name."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if {"aligned", "originals"} & set(parts):
            packed = unpack.load()
            # The photographs are of one fold; the threshold that decides it comes from the chips of the others.
            chips = _timed(f"{name} aligned", lambda: aligned(bundle, packed, root))
            if "aligned" in parts:
                _save(output, name, "folds 1-5, aligned chips", summarise(chips, seed=SEED), {})
            if "originals" in parts:
                found = _timed(f"{name} originals", lambda: originals(bundle, packed, root, capture))
                extra = {"accuracy": _accuracy_with(found, _others_threshold(chips))}
                setting = f"fold 1, photographs, quality {capture.quality}"
                _save(output, name, setting, summarise(found, seed=SEED), extra)
        if "orl" in parts:
            found = _timed(f"{name} orl", lambda: orl(bundle, root, capture))
            _save(output, name, f"ORL, all pairs, quality {capture.quality}", summarise(found, seed=SEED), {})


def aligned(bundle: Bundle, packed: unpack.Packed, root: Path) -> ProtocolOutcome:
    """Folds 1 to 5 from the chips, which are laid on the bundle's own template where it has another."""
    listed = lfw.read(unpack.aligned(packed, root))
    return pairs.score(listed, lambda name: lfw.locate(root / "aligned", name), chip_embedder(bundle)).outcome()


def originals(bundle: Bundle, packed: unpack.Packed, root: Path, capture: Capture) -> ProtocolOutcome:
    """Fold 1 from the photographs: decode, detect, align, embed."""
    listed = lfw.read(unpack.originals(packed, root))
    embed = protocols.bundle_embedder(bundle, capture=capture)
    return pairs.score(listed, lambda name: lfw.locate(root / "originals", name), embed).outcome()


def orl(bundle: Bundle, root: Path, capture: Capture) -> ProtocolOutcome:
    """All pairs of the 400 photographs of 40 people, by the same way as :func:`originals`."""
    path = data.folder() / "orl_faces.npz"
    if not path.exists():
        raise data.MissingDataError(f"{path} is absent (examples/reproduce/lfw/README.md says what it is)")
    with np.load(path) as archive:
        images, subjects = archive["images"], archive["subject"]
    for number, (image, subject) in enumerate(zip(images, subjects.tolist(), strict=True)):
        file = root / "orl" / f"s{subject:02}" / f"{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    people = protocols.read_folder(root / "orl", enrol=1)
    return protocols.all_pairs(people, protocols.bundle_embedder(bundle, capture=capture))


def chip_embedder(bundle: Bundle) -> Embedder:
    """From the file of a chip to its embedding, see :func:`chip_embedding`."""
    return lambda path: chip_embedding(bundle, path.read_bytes())


def chip_embedding(bundle: Bundle, jpeg: bytes) -> Float32:
    """From a chip on the ArcFace template to its embedding, without detection."""
    return bundle.embedding(chip_views(bundle, jpeg))


def chip_views(bundle: Bundle, jpeg: bytes) -> Float32:
    """From a chip on the ArcFace template to views on the bundle's own."""
    reader, settings = modality.get("face"), bundle.manifest.preprocessing
    source = alignment.TEMPLATES["arcface"]
    target = alignment.TEMPLATES[str(settings.get("template", "arcface"))]
    size = int(settings.get("size") or target.size)
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    chip = np.asarray(image) if target is source else alignment.warp(image, target.fit(source.points, size), size)
    return reader.views(chip, settings)


def _others_threshold(chips: ProtocolOutcome) -> float:
    """The threshold that folds 2 to 5 of the chips give for fold 1."""
    assert chips.folds is not None
    others, own = chips.folds != 0, chips.trials.is_genuine
    return lfw.best_threshold(chips.trials.scores[others & own], chips.trials.scores[others & ~own])


def _accuracy_with(outcome: ProtocolOutcome, threshold: float) -> float:
    return 100 * float(np.mean((outcome.trials.scores >= threshold) == outcome.trials.is_genuine))


def _save(output: Path, name: str, setting: str, summary: Summary, extra: dict[str, float]) -> None:
    eer = summary.intervals["eer"]
    figures: dict[str, float] = {"eer": 100 * eer.value, "eer_low": 100 * eer.low, "eer_high": 100 * eer.high}
    if summary.accuracy is not None:
        figures["accuracy"] = 100 * summary.accuracy.mean
        figures["accuracy_standard_error"] = 100 * summary.accuracy.standard_error
        figures |= {f"accuracy_fold_{n}": 100 * rate for n, rate in enumerate(summary.accuracy.by_fold, 1)}
    for metric, found in summary.intervals.items():
        if metric.startswith("fnmr_at_fmr"):
            figures |= {f"tar{metric[4:].replace('fmr', 'far')}": 100 - 100 * found.value}
    rows = [record.Row(name, setting, SEED, metric, value, "percent") for metric, value in {**extra, **figures}.items()]
    counts = {
        "failures_to_acquire": len(summary.outcome.failures),
        "samples": summary.outcome.samples,
        "genuine_trials": summary.curve.genuine,
        "impostor_trials": summary.curve.impostor,
    }
    rows += [record.Row(name, setting, SEED, metric, value, "count") for metric, value in counts.items()]
    record.append(output, rows)
    print(f"{name}, {setting}: " + ", ".join(f"{row.metric} {row.value:.4g}" for row in rows), flush=True)
    for reason, count in summary.outcome.failures_by_reason.items():
        print(f"  {reason}: {count}")


def _timed(what: str, measure: Callable[[], ProtocolOutcome]) -> ProtocolOutcome:
    started = time.process_time()
    outcome = measure()
    spent = time.process_time() - started
    print(f"{what}: {1e3 * spent / outcome.samples:.1f} ms of processor time a sample", flush=True)
    return outcome


def _sface(precision: Precision) -> Bundle:
    return sface_bundle(download=True, precision=precision)


def _faceapi() -> Bundle:
    import torch

    from uvsdk.training import backbones
    from uvsdk.training.export import export_bundle

    torch.set_num_threads(1)
    return export_bundle(backbones.get("faceapi-resnet").load(download=True), download=True)


MODELS: dict[str, Callable[[], Bundle]] = {
    "sface-int8": lambda: _sface("int8"),
    "sface-float32": lambda: _sface("float32"),
    "faceapi-resnet": _faceapi,
}


if __name__ == "__main__":
    main()
