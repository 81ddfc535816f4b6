"""What a modality is, what it needs of a model bundle, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

import numpy as np

from uvsdk.arrays import Array, Float32
from uvsdk.errors import BundleError, SettingsError
from uvsdk.modality.sample import Capture, Sample
from uvsdk.scoring import Quality, QualityPolicy
from uvsdk.scoring.cells import Division
from uvsdk.scoring.conditions import Condition

Preprocessing = Mapping[str, str | int | float | bool | None]
"""What a bundle's manifest says about the features its graph was trained on."""

Augmentation = Mapping[str, str | int | float | bool | None]
"""Settings of a modality's :class:`Augment` by name; without any nothing is augmented."""
UNCHANGED: Final[Augmentation] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sample that is ready for the model.

    Args:
        features: what training and inference both start from; its shape and dtype are the modality's.
        quality: what was measured on the way.
        timings_s: stage (``decode``, ``detect``, ``features``) -> seconds.
        captured: the decoded sample itself, for presentation attack detectors:
            :class:`uvsdk.modality.voice.frames.CapturedVoice`, :class:`uvsdk.modality.face.chips.CapturedFace`, or
            ``None``. It is never stored.
        review: what the model's rows for the views, float32 (n, d), and for their spans, float32 (k, d) or ``None``
            where its graph gives none, add to the quality; it raises :class:`uvsdk.errors.LowQualityError` where they
            show that the sample will not do. ``None``: nothing.
    """

    features: Array
    quality: Quality
    timings_s: dict[str, float]
    captured: Captured | None = None
    review: Callable[[Float32, Float32 | None], Quality] | None = None


class Captured(Protocol):
    """A decoded sample; each modality has its own record."""

    @property
    def modality(self) -> str:
        """Which modality decoded it."""


class GraphInput(Protocol):
    """One input that a graph declares; a free axis is a name or None in its shape."""

    @property
    def shape(self) -> Sequence[int | str | None]:
        """The declared size of every axis."""


class Session(Protocol):
    """The part of ``onnxruntime.InferenceSession`` that the modalities use."""

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Array], /) -> Sequence[Array]:
        """The named outputs for these inputs."""

    def get_inputs(self) -> Sequence[GraphInput]:
        """What the graph declares."""


class Described(Protocol):
    """The part of a manifest that the modalities read."""

    @property
    def preprocessing(self) -> Preprocessing:
        """Feature settings by name."""


class Graphs(Protocol):
    """The part of :class:`uvsdk.bundle.Bundle` that the modalities use."""

    @property
    def manifest(self) -> Described:
        """What the bundle says about itself."""

    def session(self, name: str) -> Session:
        """The auxiliary graph of that name."""


class Sessions(Protocol):
    """The part of :class:`uvsdk.bundle.Bundle` that runs graphs."""

    def session(self, name: str) -> Session:
        """The graph of that name, as this process has opened it."""


@dataclass(frozen=True, slots=True)
class OpenedGraph:
    """One graph of a bundle, for whoever keeps it longer than a call: a forked child must not use its parent's session.

    Args:
        bundle: opens it, once in each process.
        name: of the graph.
    """

    bundle: Sessions
    name: str

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Array], /) -> Sequence[Array]:
        """The named outputs for these inputs."""
        return self.bundle.session(self.name).run(output_names, input_feed)

    def get_inputs(self) -> Sequence[GraphInput]:
        """What the graph declares."""
        return self.bundle.session(self.name).get_inputs()


class Prepare(Protocol):
    """The first step of a :class:`Modality`."""

    def __call__(self, sample: Sample, bundle: Graphs, *, capture: Capture = ...) -> Prepared:
        """Decode, check and reduce a sample to features. Raises :class:`uvsdk.errors.SampleError`."""


Worsen: TypeAlias = Callable[
    [Captured | None, Mapping[str, float], np.random.Generator, Sequence[Captured | None]], dict[str, Sample]
]
"""A decoded sample, what was measured of it, randomness and samples of other people -> its worse copies by name; one
that would be the sample itself (already that short, already that small) is left out."""


@dataclass(frozen=True, slots=True)
class Graph:
    """An auxiliary graph that a bundle carries beside the one that embeds.

    Args:
        file: an ONNX file in the modality's folder, or without a suffix a name in the catalogue of weights.
        source: where the file comes from and under which licence; the catalogue says it of what it lists.
    """

    file: str
    source: str = ""


Look: TypeAlias = Callable[[Captured | None, Session, Quality, QualityPolicy], Quality]
"""A decoded sample, a graph, the quality so far and what is refused -> the quality with what the graph saw; it raises
:class:`uvsdk.errors.LowQualityError` where the sample will not do."""


@dataclass(frozen=True, slots=True)
class Augment:
    """Training views as other conditions than those of the samples would have given them.

    Args:
        settings: a frozen dataclass, which raises :class:`SettingsError` for what is out of range.
        view: features, the bundle's settings, an instance of ``settings`` and randomness -> one training view, of the
            shape that :attr:`Modality.crop` gives.
    """

    settings: Callable[..., object]
    view: Callable[[Array, Preprocessing, object, np.random.Generator], Float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Modality:
    """One kind of sample: how it becomes features, how these become what a model is fed, and what is known of it.

    Training and verification call the same functions, so there is one feature path. Its name is its folder's.

    Args:
        prepare: a sample to features.
        views: features and the bundle's settings -> the inference views that the graph is fed, (n, ...), n >= 1.
        crop: the same with randomness -> one training view, of the shape of one row of the views.
        augment: training views under other conditions; ``None`` where there are none to be had.
        graphs: the auxiliary graphs that its bundles carry.
        checks: of samples, by the names of graphs that a bundle may carry besides. They decide no embedding: a bundle
            with one and the same without are one model version.
        highest: the largest value in a view.
        conditions: what a calibration looks at, of all that :attr:`prepare` measures.
        cells: by what the error rates of a deployment's own people are told apart, of all that is measured.
        reported: what evaluations report error rates by, of all that is measured -> its heading.
        worsen: a sample to copies as worse conditions would have given it; ``None`` where there are no such conditions.
        directions: along which such conditions move an embedding; that many a calibration takes out at most.
        advice: what makes the next sample of an enrolment differ from those before, in words for the person.
        classifier: ``module:name`` of the presentation attack detector that runs a bundle's graph ``presentation``,
            see :func:`uvsdk.presentation.detector.detectors_of`; empty where there is none.

    >>> def prepare(sample, bundle, *, capture=None):
    ...     values = np.array(sample.split(), np.float32)
    ...     return Prepared(values, Quality({"length": float(np.linalg.norm(values))}), {})
    >>> numbers = Modality(
    ...     prepare=prepare,
    ...     views=lambda features, preprocessing: features[None],
    ...     crop=lambda features, preprocessing, rng: features,
    ... )
    >>> numbers.prepare(b"3 0 4", None).quality.measured
    {'length': 5.0}
    """

    prepare: Prepare
    views: Callable[[Array, Preprocessing], Float32]
    crop: Callable[[Array, Preprocessing, np.random.Generator], Float32]
    augment: Augment | None = None
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    checks: Mapping[str, Look] = field(default_factory=dict)
    highest: float = 1.0
    conditions: tuple[Condition, ...] = ()
    cells: tuple[Division, ...] = ()
    reported: Mapping[str, str] = field(default_factory=dict)
    worsen: Worsen | None = None
    directions: int = 0
    advice: str = "make some another day"
    classifier: str = ""

    def training_view(
        self,
        features: Array,
        preprocessing: Preprocessing,
        rng: np.random.Generator,
        *,
        augmentation: Augmentation = UNCHANGED,
    ) -> Float32:
        """What a training step is given of a sample: :attr:`crop`, or what the settings in ``augmentation`` make of it.

        Raises:
            SettingsError: settings that this modality does not have.
            BundleError: the features are of another model.
        """
        if not augmentation:
            return self.crop(features, preprocessing, rng)
        augment, settings = self.augmenting(augmentation)
        return augment.view(features, preprocessing, settings, rng)

    def augmenting(self, augmentation: Augmentation) -> tuple[Augment, object]:
        """How views are augmented, and the settings as its record.

        Raises:
            SettingsError: no such settings, out of range, or nothing of this modality can be augmented.
        """
        if self.augment is None:
            raise SettingsError("there is no augmentation of this modality; leave augmentation out")
        try:
            return self.augment, self.augment.settings(**augmentation)
        except TypeError as error:
            raise SettingsError(f"augmentation: {error}") from error


def run(session: Session, outputs: Sequence[str], inputs: Mapping[str, Array]) -> Sequence[Array]:
    """The outputs of an auxiliary graph.

    Raises:
        BundleError: it does not take these inputs or give these outputs, as a bundle of an earlier version may not.
    """
    try:
        return session.run(outputs, inputs)
    except Exception as error:  # onnxruntime's errors share no base class
        raise BundleError(
            f"the bundle's graph for {', '.join(outputs[:3])} does not fit this version of uvsdk; export the bundle "
            f"again ({str(error)[:200]})"
        ) from error


def number(preprocessing: Preprocessing, key: str, *, default: float) -> float:
    """The number under ``key``. Raises :class:`BundleError` where the manifest holds something else there.

    >>> number({"mels": 40}, "mels", default=80)
    40.0
    """
    value = preprocessing.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BundleError(f"preprocessing {key!r} must be a number, got {value!r}; export the bundle again")
    return float(value)


def word(preprocessing: Preprocessing, key: str, *, default: str, allowed: Sequence[str]) -> str:
    """The word under ``key``, one of ``allowed``. Raises :class:`BundleError` otherwise.

    >>> word({}, "scale", default="power", allowed=("power", "log"))
    'power'
    """
    value = preprocessing.get(key, default)
    if not isinstance(value, str) or value not in allowed:
        raise BundleError(f"preprocessing {key!r} must be one of {', '.join(allowed)}, got {value!r}")
    return value
