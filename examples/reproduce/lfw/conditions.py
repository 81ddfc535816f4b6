"""How often a person is not recognised from a worse photograph, condition by condition, at the released threshold.

``python -m examples.reproduce.lfw.conditions`` embeds the photographs of fold 1's genuine pairs as they are and made
worse, and ORL's by how far the head is turned, with and without the mirror image; it writes conditions.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from examples.reproduce import data, record
from examples.reproduce.lfw import photographs, run, unpack
from examples.reproduce.lfw.worse import WORSE
from uvsdk.arrays import Bool, Float, Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import Embedded, embed
from uvsdk.errors import LowQualityError, SampleError
from uvsdk.modality import Capture
from uvsdk.modality.face import quality
from uvsdk.modality.face.chips import MINIMUM_FACE_PIXELS, CapturedFace
from uvsdk.training.graphs.sface import sface_bundle

HERE = Path(__file__).parent
SEED = 0
METHODS = ("sface-int8", "sface-int8 with mirror image")
# Turns of the head by where the tip of the nose falls between the eyes; a bundle's cells part at 0.18.
TURNS = {"turn below 0.09": (0.0, 0.09), "turn 0.09 to 0.18": (0.09, 0.18), "turn above 0.18": (0.18, np.inf)}


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """One photograph's way through the model.

    Args:
        rows: float32 (2, d), the unit embedding and the one averaged with the mirror image's; none where there is no
            single face.
        passes: whether the default quality policy takes it.
        yaw: how far the head is turned.
    """

    rows: Float32 | None
    passes: bool
    yaw: float = 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "conditions.csv")
    output = parser.parse_args(arguments).output
    bundle, packed = sface_bundle(download=True), unpack.load()
    thresholds = released(bundle, packed)
    for method, threshold in zip(METHODS, thresholds, strict=True):
        record.append(output, [record.Row(method, "threshold", SEED, "fmr_1e-3", threshold, "cosine")])
    templates, pairs = _templates(bundle, packed)
    for condition, worsen in WORSE.items():
        rng = np.random.default_rng(SEED)
        probes = {}
        for name, (photograph, captured, _) in templates.items():
            probes[name] = see(worsen(photograph.picture, captured.face, rng), bundle)
        record.append(output, _rows(condition, templates, probes, pairs, thresholds))
        print(condition, flush=True)
    record.append(output, orl(bundle, thresholds))


def released(bundle: Bundle, packed: unpack.Packed) -> tuple[float, float]:
    """The threshold of :func:`examples.reproduce.lfw.photographs.released`, without and with the mirror image."""
    firsts = [indices[0] for indices in photographs.chips_by_person(packed, folds=(1, 2, 3, 4)).values()]
    both = np.stack([_both(run.chip_views(bundle, packed.chip(index)), bundle) for index in firsts])
    plain, mirrored = (photographs.threshold_of(both[:, way], bundle.version) for way in (0, 1))
    return plain, mirrored


def see(picture: Image.Image, bundle: Bundle) -> Seen:
    """Embed under the policy ``off``, and say what the default would have said."""
    try:
        seen = embed(picture, bundle, capture=Capture(quality="off"))
    except SampleError:
        return Seen(None, passes=False)
    assert isinstance(seen.captured, CapturedFace)
    views = np.ascontiguousarray(seen.captured.chip.transpose(2, 0, 1), np.float32)[None]
    return Seen(_both(views, bundle), _passes(seen), seen.quality.measured["yaw"])


def _both(views: Float32, bundle: Bundle) -> Float32:
    rows = bundle.embed(np.concatenate([views, views[..., ::-1]]))
    mean = rows.sum(axis=0)
    return np.stack([rows[0], mean / np.linalg.norm(mean)])


def _passes(seen: Embedded) -> bool:
    measured = seen.quality.measured
    try:
        quality.judge(measured, "standard")
    except LowQualityError:
        return False
    return measured["face_pixels"] >= MINIMUM_FACE_PIXELS


_Templates = dict[str, tuple[photographs.Photograph, CapturedFace, Seen]]


def _templates(bundle: Bundle, packed: unpack.Packed) -> tuple[_Templates, list[tuple[str, str]]]:
    """The photographs of fold 1's genuine pairs with the face that is meant, and the pairs, either way round."""
    chosen = packed.pairs[(packed.fold == 0) & (packed.same == 1)]
    names = [tuple(Path(packed.names[index]).name for index in pair) for pair in chosen.tolist()]
    wanted = {name for pair in names for name in pair}
    found: _Templates = {}
    for photograph in photographs.originals():
        if photograph.name in wanted:
            # LFW's subject stands in the middle, whoever else is there.
            meant = embed(photograph.picture, bundle, capture=Capture(quality="off", faces="largest"))
            assert isinstance(meant.captured, CapturedFace)
            views = np.ascontiguousarray(meant.captured.chip.transpose(2, 0, 1), np.float32)[None]
            found[photograph.name] = (photograph, meant.captured, Seen(_both(views, bundle), passes=True))
    return found, [pair for first, second in names for pair in ((first, second), (second, first))]


def _rows(
    condition: str,
    templates: _Templates,
    probes: dict[str, Seen],
    pairs: list[tuple[str, str]],
    thresholds: tuple[float, float],
) -> list[record.Row]:
    names = list(templates)
    place = {name: index for index, name in enumerate(names)}
    people = np.array([templates[name][0].person for name in names])
    enrolled = np.stack([rows for name in names if (rows := templates[name][2].rows) is not None])
    seen = [probes[name] for name in names]
    genuine = np.array([(place[first], place[second]) for first, second in pairs])
    return _measure(condition, enrolled, seen, people, genuine, thresholds)


def _measure(
    condition: str,
    enrolled: Float32,
    seen: list[Seen],
    people: np.ndarray,
    genuine: np.ndarray,
    thresholds: tuple[float, float],
) -> list[record.Row]:
    """Rows of one condition.

    Args:
        condition: its name.
        enrolled: float32 (t, 2, d), templates, plain and with the mirror image.
        seen: n probes.
        people: (t,) whose each template is; probe i is of the person of template i.
        genuine: int64 (g, 2), template and probe.
        thresholds: plain, with the mirror image.
    """
    found: Bool = np.array([probe.rows is not None for probe in seen])
    passes: Bool = np.array([probe.passes for probe in seen]) & found
    empty = np.zeros(enrolled.shape[1:], np.float32)
    probes = np.stack([empty if probe.rows is None else probe.rows for probe in seen])
    rows: list[record.Row] = []
    for way, (method, threshold) in enumerate(zip(METHODS, thresholds, strict=True)):
        matched = np.einsum("td,pd->tp", enrolled[:, way], probes[:, way]) >= threshold
        template, probe = genuine.T
        missed = ~matched[template, probe]
        figures: dict[str, float] = {}
        for name, among in (("fnmr", passes), ("fnmr_off", found)):
            used = among[probe]
            figures |= _interval(name, missed[used].astype(float), people[template][used])
        turned_away = (missed | ~passes[probe]).astype(float)
        figures |= _interval("turned_away", turned_away, people[template])
        figures |= _interval("refused", (~passes[probe]).astype(float), people[template])
        strangers = (people[:, None] != people[None]) & passes[None]
        figures["fmr"] = 100 * float(matched[strangers].mean()) if strangers.any() else 0.0
        rows += [record.Row(method, condition, SEED, name, value, "percent") for name, value in figures.items()]
        counts = {"genuine_trials": len(genuine), "genuine_used": passes[probe].sum(), "impostor_used": strangers.sum()}
        rows += [record.Row(method, condition, SEED, name, float(value), "count") for name, value in counts.items()]
    return rows


def _interval(name: str, failed: Float, people: np.ndarray) -> dict[str, float]:
    if not len(failed):
        return {}
    value, low, high = photographs.share(failed, people)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def orl(bundle: Bundle, thresholds: tuple[float, float]) -> list[record.Row]:
    """The straightest photograph of each of ORL's 40 people against the nine others, by how far they are turned."""
    path = data.folder() / "orl_faces.npz"
    if not path.exists():
        raise data.MissingDataError(f"{path} is absent (examples/reproduce/lfw/README.md says what it is)")
    with np.load(path) as archive:
        images, subjects = archive["images"], archive["subject"]
    seen = [see(Image.fromarray(image).convert("RGB"), bundle) for image in images]
    turned = np.array([abs(probe.yaw) if probe.rows is not None else np.inf for probe in seen])
    straight = [
        int(own[np.argmin(turned[own])]) for own in (np.flatnonzero(subjects == s) for s in np.unique(subjects))
    ]
    rows: list[record.Row] = []
    for name, (low, high) in TURNS.items():
        others = np.setdiff1d(np.flatnonzero((turned >= low) & (turned < high)), straight)
        chosen = [*straight, *others.tolist()]
        empty = np.zeros((2, bundle.manifest.dimension), np.float32)
        enrolled = np.stack([empty if (row := seen[index].rows) is None else row for index in chosen])
        # Templates stand first; the rows after them are probes alone.
        people = subjects[chosen]
        genuine = np.array([(int(np.flatnonzero(people == subjects[i])[0]), 40 + at) for at, i in enumerate(others)])
        probes = [seen[index] if at >= 40 else Seen(None, passes=False) for at, index in enumerate(chosen)]
        enrolled[40:] = 0.0
        rows += _measure(f"ORL, {name}", enrolled, probes, people, genuine, thresholds)
    return rows


if __name__ == "__main__":
    main()
