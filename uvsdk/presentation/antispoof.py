"""A face classifier from the bundle as a presentation attack detector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image

from uvsdk.arrays import Float32
from uvsdk.bundle.presentation_graph import PresentationGraph
from uvsdk.errors import BundleError, SettingsError
from uvsdk.modality.contract import Captured, OpenedGraph, Session
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.scoring import Presentation


class Carrier(Protocol):
    """The part of :class:`uvsdk.bundle.Bundle` that is needed here."""

    @property
    def presentation(self) -> PresentationGraph | None:
        """The classifier, where the bundle carries one."""

    def session(self, name: str) -> Session:
        """The graph of that name."""


@dataclass(frozen=True, slots=True)
class FaceClassifier:
    """The bundle's ``presentation`` graph on the face that was found.

    What such a classifier catches is not known without attack presentations of the deployment's own cameras; see
    ``docs/presentation.md`` for what was measured of the one that can be had.

    Args:
        settings: what the graph wants to see, and its threshold.
        session: the graph.
        modality: always ``face``.
    """

    settings: PresentationGraph
    session: Session
    modality: str = "face"

    @classmethod
    def of(cls, bundle: Carrier) -> FaceClassifier:
        """The classifier that a bundle carries.

        Raises:
            SettingsError: it carries none; ``uvsdk presentation add`` adds one.
            BundleError: onnxruntime refuses it.
        """
        if bundle.presentation is None:
            raise SettingsError(
                "this bundle carries no presentation graph; add one with `uvsdk presentation add BUNDLE`"
            )
        bundle.session("presentation")  # says now what is wrong with it
        return cls(bundle.presentation, OpenedGraph(bundle, "presentation"))

    @property
    def name(self) -> str:
        """As the bundle calls it."""
        return self.settings.detector

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        """See :class:`uvsdk.presentation.PresentationAttackDetector`; the score is the graph's own.

        Raises:
            BundleError: the graph does not take the crop, or gives no number.
        """
        if not isinstance(captured, CapturedFace):
            raise SettingsError(f"{self.name} looks at a captured face, got {type(captured).__name__}")
        pixels = crop(captured, enlargement=self.settings.enlargement, size=self.settings.size)
        try:
            score = float(np.asarray(self.session.run(["y"], {"x": pixels[None]})[0])[0, self.settings.output])
        except Exception as error:  # onnxruntime's errors share no base class
            raise BundleError(f"the presentation graph does not take {pixels.shape}: {error}") from error
        if not math.isfinite(score):
            raise BundleError("the presentation graph gave a score that is not a number")
        low = score < self.settings.threshold
        reasons = ("the face looks like a picture or a screen: show your own face, in even light",) if low else ()
        return Presentation(self.name, score, self.settings.threshold, reasons, {"classifier_score": score})


def crop(captured: CapturedFace, *, enlargement: float, size: int) -> Float32:
    """A square about the middle of the face's box, float32 (size, size, 3) in [0, 1]; black beyond the picture.

    Args:
        captured: the photo and the face in it.
        enlargement: the square's side as a multiple of the longer side of the box.
        size: what it is resized to, bilinear.
    """
    box = captured.face.box.astype(np.float64)
    # Pillow counts from the corner of the first pixel, boxes from its centre.
    centre, half = box[:2] + box[2:] / 2 + 0.5, max(enlargement * float(box[2:].max()) / 2, 1.0)
    low, high = np.floor(centre - half).astype(int), np.ceil(centre + half).astype(int)
    cut = captured.photo.crop((int(low[0]), int(low[1]), int(high[0]), int(high[1])))
    inner = np.concatenate([centre - half - low, centre + half - low])
    left, top, right, bottom = inner.tolist()
    seen = cut.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    return np.asarray(seen, np.float32) / np.float32(255)
