"""A face classifier as a model bundle carries it: beside the model, and no part of its version."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from uvsdk.errors import BundleError


@dataclass(frozen=True, slots=True)
class PresentationGraph:
    """A graph that looks at a face and says how bona fide it is, with what its input must be.

    Adding, replacing or removing it leaves the model version as it is, so no template is invalidated.

    Args:
        detector: what its :class:`~uvsdk.scoring.Presentation` is called, e.g. ``"face-antispoof"``.
        graph: ONNX: ``x`` float32 (n, size, size, 3) RGB in [0, 1] -> ``y`` (n, k).
        size: sides of the crop in pixels, 16 to 1024.
        enlargement: sides of the crop as a multiple of the longer side of the face's box, 0.5 to 4.
        output: which column of ``y`` is the score; higher means more surely bona fide.
        threshold: a face at or above it is bona fide.
        source: where it comes from, under which licence, and what is known of it.

    Raises:
        BundleError: a setting outside its range.
    """

    detector: str
    graph: bytes = field(repr=False)
    size: int
    enlargement: float
    output: int
    threshold: float
    source: str

    def __post_init__(self) -> None:
        if not self.detector or not 16 <= self.size <= 1024 or not 0.5 <= self.enlargement <= 4.0 or self.output < 0:
            raise BundleError(
                f"a presentation graph has a name, a crop of 16 to 1024 pixels, 0.5 to 4 times as wide as the face, "
                f"and an output, got {self}"
            )
        if not math.isfinite(self.threshold):
            raise BundleError(f"a threshold is a finite number, got {self.threshold}")

    def describe(self) -> dict[str, str | int | float]:
        """Everything but the graph, for the manifest."""
        return {
            "detector": self.detector,
            "size": self.size,
            "enlargement": float(self.enlargement),
            "output": self.output,
            "threshold": float(self.threshold),
            "source": self.source,
        }

    @classmethod
    def read(cls, described: Mapping[str, object], graph: bytes) -> PresentationGraph:
        """The inverse of :meth:`describe`. Raises :class:`BundleError` for what is missing or of another type."""

        def typed(key: str, *kinds: type) -> object:
            value = described.get(key)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise BundleError(f"the manifest's presentation has {value!r} as {key}; fetch the bundle again")
            return value

        return cls(
            detector=str(typed("detector", str)),
            graph=graph,
            size=int(str(typed("size", int))),
            enlargement=float(str(typed("enlargement", int, float))),
            output=int(str(typed("output", int))),
            threshold=float(str(typed("threshold", int, float))),
            source=str(typed("source", str)),
        )
