"""Who trains, who tunes, who is tested, and how a trunk is measured: the 200-speaker corpus.

130 speakers train, 30 others choose settings, 40 others are tested; no speaker is in two of these. Of a speaker who
trains, 20 utterances are used for it and 10 others for the error rates of people seen in training; of everybody else
40 utterances. The split is drawn once and is the same for every seed of a training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from examples.reproduce import data
from examples.reproduce.record import Row
from examples.reproduce.trunks import SpeakerStatistics
from uvsdk.arrays import Float32
from uvsdk.evaluation import bootstrap, metrics, ranking
from uvsdk.evaluation.trials import Trials
from uvsdk.simulation import Tensors

TRAIN, PUBLIC, VALIDATION, TEST = 130, 30, 30, 40
"""Speakers that train, those of them whose speech is public in the rows that say so, that tune, that are tested."""

UTTERANCES, HELD_OUT, COMPARED, ENROLLED = 20, 10, 40, 5
"""Utterances of a speaker to train on, to test a seen speaker on, to test an unseen one on, to enrol with."""

STRANGERS = "strangers_5"
"""How figures are called of those who trained, five utterances enrolled, against impostors who did not."""

CROP = 100
"""Frames (of 10 ms) in a training view; error rates are those of all 200 frames of an utterance."""

_SPLIT_SEED = 2024
_EMBED_BATCH = 64
_FMR = 0.01


@dataclass(frozen=True, slots=True)
class Group:
    """Utterances of some speakers: float32 (speakers, utterances, 200, 40) and the speakers' names."""

    names: tuple[str, ...]
    features: Tensor

    def first(self, speakers: int) -> Group:
        """The first ``speakers`` of them."""
        return Group(self.names[:speakers], self.features[:speakers])

    def population(self) -> Tensors:
        """A device for each speaker, whose training views are random crops."""
        return Tensors(dict(zip(self.names, self.features, strict=True)), augment=crop)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The corpus by role; ``seen`` holds other utterances of those who train."""

    train: Group
    seen: Group
    validation: Group
    test: Group

    def public(self) -> Group:
        """The speakers of a public warm start: the first of those who train."""
        return self.train.first(PUBLIC)


def load() -> Corpus:
    """Read and split the corpus."""
    speech = data.speakers()
    rng = np.random.default_rng(_SPLIT_SEED)
    order = rng.permutation(len(np.unique(speech.speaker)))
    # An utterance's number says what was read and when, so roles are dealt out at random, speaker by speaker.
    rows = [rng.permutation(np.flatnonzero(speech.speaker == speaker)) for speaker in order]

    def group(speakers: slice, utterances: slice) -> Group:
        chosen = np.stack([row[utterances] for row in rows[speakers]])
        names = tuple(f"speaker-{speaker:03d}" for speaker in order[speakers])
        return Group(names, torch.from_numpy(speech.features[chosen]))

    train = slice(0, TRAIN)
    return Corpus(
        train=group(train, slice(0, UTTERANCES)),
        seen=group(train, slice(UTTERANCES, UTTERANCES + HELD_OUT)),
        validation=group(slice(TRAIN, TRAIN + VALIDATION), slice(0, COMPARED)),
        test=group(slice(TRAIN + VALIDATION, TRAIN + VALIDATION + TEST), slice(0, COMPARED)),
    )


def crop(features: Tensor, rng: np.random.Generator) -> Tensor:
    """A random training view of each utterance: (B, 200, 40) to (B, 100, 40)."""
    starts = torch.from_numpy(rng.integers(0, features.shape[1] - CROP + 1, len(features)))
    frames = starts[:, None] + torch.arange(CROP)
    return features[torch.arange(len(features))[:, None], frames]


def statistics_trunk(public: Tensor, seed: int, *, code: int = 0) -> SpeakerStatistics:
    """An untrained :class:`SpeakerStatistics`, standardised by views of 1 s of public utterances (n, 200, 40)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SpeakerStatistics(crop(public, np.random.default_rng(0)), code=code)


def embed(trunk: nn.Module, group: Group) -> Float32:
    """Unit embeddings of whole utterances, float32 (speakers, utterances, d)."""
    trunk.eval()
    with torch.no_grad():
        parts = torch.split(group.features.flatten(0, 1), _EMBED_BATCH)
        rows: Float32 = torch.cat([nn.functional.normalize(trunk(part), dim=1) for part in parts]).numpy()
    return rows.reshape(*group.features.shape[:2], -1)


def single_trials(embeddings: Float32) -> Trials:
    """Every utterance against every other, each pair once; ``embeddings`` (speakers, utterances, d)."""
    speakers, utterances, _ = embeddings.shape
    flat = embeddings.reshape(speakers * utterances, -1)
    first, second = np.triu_indices(len(flat), 1)
    scores = (flat @ flat.T)[first, second]
    return _trials(scores, first // utterances, second // utterances, speakers)


def enrolled_trials(embeddings: Float32) -> Trials:
    """Five utterances enrolled (the normalised mean), all others of everybody as probes."""
    speakers, utterances, dimension = embeddings.shape
    templates = embeddings[:, :ENROLLED].mean(axis=1)
    templates /= np.maximum(np.linalg.norm(templates, axis=1, keepdims=True), 1e-12)
    probes = embeddings[:, ENROLLED:].reshape(-1, dimension)
    scores = templates @ probes.T
    owners = np.repeat(np.arange(speakers), utterances - ENROLLED)
    return _trials(scores.ravel(), np.repeat(np.arange(speakers), len(probes)), np.tile(owners, speakers), speakers)


def stranger_trials(seen: Float32, unseen: Float32) -> Trials:
    """Five utterances of everybody who trained enrolled, their others as genuine probes; impostors never took part.

    Args:
        seen: float32 (speakers, utterances, d), of those who trained.
        unseen: float32 (strangers, utterances, d), all of them impostors.

    >>> two = np.eye(2, dtype=np.float32)[:, None].repeat(6, axis=1)  # six utterances each, of which five enrol
    >>> found = stranger_trials(two, np.eye(2, dtype=np.float32)[None])
    >>> found.genuine.tolist(), found.impostor.tolist()
    ([1.0, 1.0], [1.0, 0.0, 0.0, 1.0])
    """
    speakers, dimension = len(seen), seen.shape[2]
    templates = seen[:, :ENROLLED].mean(axis=1)
    templates /= np.maximum(np.linalg.norm(templates, axis=1, keepdims=True), 1e-12)
    own = np.einsum("sd,sud->su", templates, seen[:, ENROLLED:])
    others = templates @ unseen.reshape(-1, dimension).T
    places = np.arange(speakers)
    strangers = speakers + np.repeat(np.arange(len(unseen)), unseen.shape[1])
    return _trials(
        np.concatenate([own.ravel(), others.ravel()]),
        np.concatenate([np.repeat(places, own.shape[1]), np.repeat(places, others.shape[1])]),
        np.concatenate([np.repeat(places, own.shape[1]), np.tile(strangers, speakers)]),
        speakers + len(unseen),
    )


def eer_of(trunk: nn.Module, group: Group) -> float:
    """Equal error rate in percent, one utterance against one: what settings are chosen by, on validation speakers."""
    return 100 * metrics.eer(single_trials(embed(trunk, group)).curve())


def validation(trunk: nn.Module, corpus: Corpus) -> dict[str, float]:
    """Error rates of the validation speakers, in percent."""
    embeddings = embed(trunk, corpus.validation)
    return {
        "eer_validation": 100 * metrics.eer(single_trials(embeddings).curve()),
        "eer_validation_5": 100 * metrics.eer(enrolled_trials(embeddings).curve()),
    }


def evaluate(trunk: nn.Module, corpus: Corpus) -> dict[str, float]:
    """Every figure of one trained trunk, by metric; takes about two seconds.

    Error rates are in percent. ``mean_cosine`` is that of test utterances of different speakers: near 1 in collapse.
    """
    unseen, seen = embed(trunk, corpus.test), embed(trunk, corpus.seen)
    found = {}
    for metric, trials in (
        ("unseen", single_trials(unseen)),
        ("unseen_5", enrolled_trials(unseen)),
        ("seen", single_trials(seen)),
        ("seen_5", enrolled_trials(seen)),
        (STRANGERS, stranger_trials(seen, unseen)),
    ):
        points = trials.curve()
        found[f"eer_{metric}"] = 100 * metrics.eer(points)
        found[f"fnmr_at_fmr1_{metric}"] = 100 * metrics.fnmr_at_fmr(points, _FMR).fnmr
    flat = unseen.reshape(-1, unseen.shape[-1])
    found["mean_cosine"] = ranking.collapse(flat, np.repeat(np.arange(len(unseen)), unseen.shape[1])).mean_cosine
    return found


def intervals(trunk: nn.Module, corpus: Corpus, *, resamples: int = 200) -> dict[str, tuple[float, float]]:
    """95 % intervals of the figures of unseen people, in percent, by a bootstrap over the 40 test speakers."""
    unseen = embed(trunk, corpus.test)
    statistics = {"eer": metrics.eer, "fnmr_at_fmr1": partial(_fnmr, rate=_FMR)}
    found = {}
    for name, trials in (("unseen", single_trials(unseen)), ("unseen_5", enrolled_trials(unseen))):
        for metric, interval in bootstrap.intervals(trials, statistics, resamples=resamples).items():
            found[f"{metric}_{name}"] = (100 * interval.low, 100 * interval.high)
    return found


def rows(method: str, setting: str, seed: int, figures: Mapping[str, float]) -> list[Row]:
    """``figures`` by metric as rows of a results file."""
    return [Row(method, setting, seed, metric, value, _unit(metric)) for metric, value in figures.items()]


def _unit(metric: str) -> str:
    if metric.startswith(("eer", "fnmr")):
        return "percent"
    return {"mean_cosine": "cosine", "training_time": "seconds", "rounds": "rounds"}[metric]


def _fnmr(points: metrics.Curve, rate: float) -> float:
    return metrics.lowest_within(points, rate).fnmr


def _trials(scores: Float32, template: NDArray[np.int64], probe: NDArray[np.int64], speakers: int) -> Trials:
    return Trials(scores.astype(np.float64), template, probe, tuple(str(place) for place in range(speakers)))
