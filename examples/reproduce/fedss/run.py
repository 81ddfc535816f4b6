"""FedSS over the number of classes that a device asks for, with several speakers on a device (Tables 1 and 2).

``python -m examples.reproduce.fedss.run`` makes every run that results.csv lacks and draws plot.png; ``--validate``
makes one run measured on validation utterances instead, with settings to try, and adds it to tuning.csv.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from examples.reproduce import data, record
from examples.reproduce.record import Row
from examples.reproduce.speakers import protocol
from uvsdk.arrays import Float32
from uvsdk.evaluation import ranking
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records.codec import Scalar
from uvsdk.simulation import Engine, Simulation, Tensors

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
RESULTS, TUNING, PLOT = HERE / "results.csv", HERE / "tuning.csv", HERE / "plot.png"

SEEDS = (0, 1, 2)
CLASSES, HELD, PUBLIC, UNSEEN = 160, 5, 30, 40
"""Speakers that train, speakers on one device, those of the former by whose speech the trunk's input is standardised,
speakers never trained on.
"""

TRAIN, VALIDATION, TEST, RETRIEVED = 20, 5, 10, 20
"""Utterances of a speaker: to train on, to choose settings by, to test on; of an unseen one to retrieve among."""

_SPLIT_SEED = 2024
_EMBED_BATCH = 64

ASKED = (7, 10, 16, 32, 80)
"""|S| of FedSS: 4.4, 6.3, 10, 20 and 50 % of the classes, from |P| + 2 on."""

# 600 rounds of 16 devices, 8 utterances each, one step. The deltas of one step are tiny, so tau of the server's Adam
# is too: each coordinate of the trunk then moves at the full rate. The columns have the paper's momentum.
_SHARED: Mapping[str, Scalar] = {
    "rounds": 600,
    "cohort_size": 16,
    "batch_size": 8,
    "local_steps": 1,
    "learning_rate": 0.1,
    "optimiser": "adam",
    "server_learning_rate": 2e-3,
    "server_adaptivity": 1e-8,
    "warmup_rounds": 60,
    "cooldown_rounds": 300,
    # All devices are honest: weighted as the paper has it, and never clipped.
    "weighting": "samples",
    "clipping": "off",
}
_COLUMNS: Mapping[str, Scalar] = {
    "initialisation": "random",
    "foreign_cap": 0.0,
    "vector_rate": 0.2,
    "scale": 12.0,
    "samples_cap": 1000,
}
_SAMPLED: Mapping[str, Scalar] = {**_COLUMNS, "pool": "users", "anchors": 0}


# A quarter of the rounds, each of four local steps: here devices drift, and collapse where nothing keeps them apart.
_FOUR: Mapping[str, Scalar] = {
    "rounds": 150,
    "local_steps": 4,
    "cohort_size": 8,
    "batch_size": 16,
    "warmup_rounds": 15,
    "cooldown_rounds": 75,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One line of the table: a method, |S| or another setting's name, and what differs from what all share; ``held``
    speakers on a device.
    """

    method: str
    setting: str
    algorithm: Mapping[str, Scalar]
    config: Mapping[str, Scalar] = field(default_factory=dict)
    held: int = HELD

    def training(self, seed: int) -> TrainingConfig:
        """The configuration of one run."""
        return TrainingConfig(
            deployment="speakers",
            modality="tensors",
            backbone="speaker-statistics",
            algorithm=self.method,
            algorithm_settings=dict(self.algorithm),
            **{"seed": seed, **_SHARED, **self.config},  # type: ignore[arg-type]
        )


def _fedss(setting: str, asked: int, held: int = HELD, **more: Scalar) -> Plan:
    return Plan("fedss", setting, {**_SAMPLED, "negatives": asked - held, **more})


PLANS = (
    *(_fedss(f"S={asked}", asked) for asked in ASKED),
    *(_fedss(f"negatives S={asked}", asked, loss="negatives") for asked in (7, 16, 80)),
    _fedss("positives", HELD, loss="positives"),
    Plan("softmax", "", _COLUMNS),
    *(
        replace(plan, setting=f"{plan.setting} ten on a device, four steps".strip(), config=_FOUR, held=2 * HELD)
        for plan in (
            _fedss("S=16", 16, 2 * HELD),
            _fedss("negatives S=16", 16, 2 * HELD, loss="negatives"),
            Plan("softmax", "", _COLUMNS),
        )
    ),
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Utterances by role: float32 (speakers, utterances, 200, 40)."""

    train: Tensor
    validation: Tensor
    test: Tensor
    unseen: Tensor


def load() -> Corpus:
    """Read and split the corpus; the split is the same for every seed of a training."""
    speech = data.speakers()
    rng = np.random.default_rng(_SPLIT_SEED)
    order = rng.permutation(len(np.unique(speech.speaker)))
    rows = [rng.permutation(np.flatnonzero(speech.speaker == speaker)) for speaker in order]

    def group(speakers: slice, first: int, count: int) -> Tensor:
        return torch.from_numpy(np.stack([speech.features[row[first : first + count]] for row in rows[speakers]]))

    seen = slice(0, CLASSES)
    return Corpus(
        train=group(seen, 0, TRAIN),
        validation=group(seen, TRAIN, VALIDATION),
        test=group(seen, TRAIN + VALIDATION, TEST),
        unseen=group(slice(CLASSES, CLASSES + UNSEEN), 0, RETRIEVED),
    )


def population(corpus: Corpus, held: int) -> Tensors:
    """Devices of ``held`` speakers each; a speaker's class is named by the place, so that W's rows are in its order."""
    devices = {f"device-{first // held:02d}": range(first, first + held) for first in range(0, CLASSES, held)}
    return Tensors(
        {name: corpus.train[these.start : these.stop].flatten(0, 1) for name, these in devices.items()},
        classes={name: np.repeat(np.arange(held), TRAIN) for name in devices},
        class_names={name: tuple(f"speaker-{place:03d}" for place in these) for name, these in devices.items()},
        augment=protocol.crop,
    )


def train(plan: Plan, corpus: Corpus, seed: int, threads: int) -> tuple[Simulation, float]:
    """The trained federation and the seconds that took."""
    trunk = protocol.statistics_trunk(corpus.train[:PUBLIC].flatten(0, 1), seed)
    simulation = Simulation(plan.training(seed), trunk, population(corpus, plan.held), engine=Engine(threads=threads))
    started = time.perf_counter()
    simulation.run()
    return simulation, time.perf_counter() - started


def embed(trunk: nn.Module, utterances: Tensor) -> Float32:
    """Unit embeddings, float32 (speakers x utterances, d), speaker by speaker."""
    trunk.eval()
    with torch.no_grad():
        parts = torch.split(utterances.flatten(0, 1), _EMBED_BATCH)
        rows: Float32 = torch.cat([nn.functional.normalize(trunk(part), dim=1) for part in parts]).numpy()
    return rows


def top1(simulation: Simulation, utterances: Tensor) -> float:
    """Percent of utterances whose nearest class vector is their speaker's."""
    names, vectors = simulation.class_matrix()
    if names != tuple(f"speaker-{place:03d}" for place in range(CLASSES)):
        raise SystemExit(f"the class matrix has {len(names)} rows, expected one for each of {CLASSES} speakers")
    scores = embed(simulation.trunk, utterances) @ vectors.T
    relevant = owners(utterances)[:, None] == np.arange(CLASSES)
    return 100 * ranking.precision_at_k(scores, relevant, k=1)


def retrieval(simulation: Simulation, utterances: Tensor, suffix: str = "") -> dict[str, float]:
    """MAP@10, with R = 10 as the paper has it, and MAP@R with R the number of relevant ones, in percent."""
    rows, labels = embed(simulation.trunk, utterances), owners(utterances)
    similarity = rows @ rows.T
    return {
        f"MAP@10{suffix}": 100 * ranking.map_at_r(similarity, labels, reference_labels=labels, r=10, same_set=True),
        f"MAP@R{suffix}": 100 * ranking.map_at_r(similarity, labels, reference_labels=labels, r="class", same_set=True),
    }


def owners(utterances: Tensor) -> NDArray[np.int64]:
    """The place of each utterance's speaker."""
    return np.repeat(np.arange(utterances.shape[0]), utterances.shape[1])


def test(plan: Plan, corpus: Corpus, seed: int, threads: int) -> None:
    """Train as planned, measure on test utterances and unseen speakers, and record it."""
    simulation, seconds = train(plan, corpus, seed, threads)
    figures = {
        "top1": top1(simulation, corpus.test),
        **retrieval(simulation, corpus.unseen),
        **retrieval(simulation, corpus.test, "_seen"),
        "mean_cosine": ranking.collapse(simulation.class_matrix()[1]).mean_cosine,
        "training_time": seconds,
    }
    record.append(RESULTS, _rows(plan.method, plan.setting, seed, figures))
    print(plan.method, plan.setting, seed, {name: round(value, 3) for name, value in figures.items()}, flush=True)


def validate(plan: Plan, change: str, corpus: Corpus, seed: int, threads: int) -> None:
    """Train and record what settings are chosen by: validation utterances of the speakers that train."""
    simulation, seconds = train(plan, corpus, seed, threads)
    figures = {
        "top1_validation": top1(simulation, corpus.validation),
        "mean_cosine": ranking.collapse(simulation.class_matrix()[1]).mean_cosine,
        "training_time": seconds,
    }
    record.append(TUNING, _rows(plan.method, f"{plan.setting} {change}".strip(), seed, figures))
    print(plan.method, plan.setting, change, {name: round(value, 3) for name, value in figures.items()}, flush=True)


def plot() -> None:
    """FedSS over |S| beside the methods that have no |S|."""
    rows = record.read(RESULTS)
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for panel, metric in zip(panels, ("top1", "MAP@10"), strict=True):
        for prefix, label in (("S=", "FedSS"), ("negatives S=", "negatives only")):
            points = {}
            for row in rows:
                size = row.setting.removeprefix(prefix)
                if row.method == "fedss" and row.setting.startswith(prefix) and size.isdigit() and row.metric == metric:
                    points.setdefault(int(size), []).append(row.value)
            asked = sorted(points)
            spread = [np.std(points[size], ddof=1) if len(points[size]) > 1 else 0.0 for size in asked]
            panel.errorbar(asked, [np.mean(points[size]) for size in asked], spread, marker="o", capsize=3, label=label)
        for method, setting, style in (("softmax", "", "--"), ("fedss", "positives", ":")):
            values = [row.value for row in rows if (row.method, row.setting, row.metric) == (method, setting, metric)]
            if values:
                label = "full softmax" if method == "softmax" else "positives only"
                panel.axhline(float(np.mean(values)), linestyle=style, color="grey", label=label)
        panel.set(
            xlabel=f"classes on a device, of {CLASSES}", ylabel=f"{metric}, percent", xscale="log", ylim=(0, None)
        )
        panel.set_xticks(ASKED, [str(size) for size in ASKED])
        panel.minorticks_off()
    panels[0].legend(loc="lower right", fontsize="small")
    figure.savefig(PLOT, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", help="only this method")
    parser.add_argument("--setting", help="only this line of the method")
    parser.add_argument("--seed", type=int, choices=SEEDS, help="only this seed")
    parser.add_argument("--validate", action="store_true", help="one run measured on the validation utterances")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="try another setting")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    corpus = load()
    wanted = [plan for plan in PLANS if chosen.method in (None, plan.method) and chosen.setting in (None, plan.setting)]
    if chosen.validate:
        for plan in wanted:
            validate(_tried(plan, chosen.set), " ".join(chosen.set), corpus, chosen.seed or 0, chosen.threads)
        return
    for seed in SEEDS if chosen.seed is None else (chosen.seed,):
        for plan in wanted:
            if not record.has(RESULTS, plan.method, plan.setting, seed):
                test(plan, corpus, seed, chosen.threads)
    plot()


def _tried(plan: Plan, changes: Sequence[str]) -> Plan:
    config, algorithm = dict(plan.config), dict(plan.algorithm)
    for change in changes:
        name, _, text = change.partition("=")
        target = algorithm if name.startswith("algorithm.") else config
        try:
            target[name.removeprefix("algorithm.")] = json.loads(text)
        except json.JSONDecodeError:
            target[name.removeprefix("algorithm.")] = text
    return replace(plan, algorithm=algorithm, config=config)


def _rows(method: str, setting: str, seed: int, figures: Mapping[str, float]) -> list[Row]:
    units = {"mean_cosine": "cosine", "training_time": "seconds"}
    return [
        Row(method, setting, seed, metric, value, units.get(metric, "percent")) for metric, value in figures.items()
    ]


if __name__ == "__main__":
    main()
