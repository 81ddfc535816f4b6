"""People who speak at the same time, heard by a graph that a bundle may carry (``uvsdk export voice --overlap``).

The graph tells every 17 ms who of up to three people speaks, two of them at most at once
(:mod:`uvsdk.training.graphs.segmentation`). Two people one after the other are not its matter: the model itself hears
them apart (:mod:`uvsdk.modality.voice.speakers`).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import BundleError
from uvsdk.modality.contract import Captured, Session, run
from uvsdk.modality.voice import vad
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.modality.voice.speakers import with_people
from uvsdk.scoring import Quality, QualityPolicy, Requirement

NAME: Final = "overlap"
"""Of the graph in a bundle."""
INPUT: Final = "sound"
OUTPUT: Final = "speakers"
CLASSES: Final = ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
"""Who speaks in a frame, of three people that are numbered in each recording anew."""

_LONGEST_S, _SHORTEST_S = 10.0, 0.5
"""What the graph is given at once; it was taught on 10 s."""
_TOGETHER = [place for place, people in enumerate(CLASSES) if len(people) > 1]

OVERLAP = Requirement(
    "overlap_s",
    "two people at once for",
    "s",
    (-math.inf, 0.6),
    (-math.inf, 0.45),
    "record one person alone",
)
"""Chosen on half of the people of ``examples/reproduce/conditions``, which has what is refused of the others."""


def look(captured: Captured | None, session: Session, quality: Quality, policy: QualityPolicy) -> Quality:
    """The quality with how long two people speak at once; see :data:`uvsdk.modality.contract.Look`.

    Raises:
        LowQualityError: longer than ``policy`` lets pass.
        BundleError: the graph is another one.
    """
    assert isinstance(captured, CapturedVoice)
    return with_people(quality, OVERLAP, overlap_s(captured.pcm, session), policy)


def overlap_s(pcm: Float32, session: Session) -> float:
    """Seconds in which two people speak at once, as the graph expects them: its probabilities of two, added up.

    Args:
        pcm: a recording at 16 kHz, (n,).
        session: the graph.

    Raises:
        BundleError: the graph does not take sound or give who speaks.
    """
    return sum(_seconds(part, session) for part in parts(pcm))


def parts(pcm: Float32) -> list[Float32]:
    """A recording in as few parts as none is longer than 10 s, all of one length but for a sample; silence fills half a
    second where there is less.

    >>> [len(part) / 16_000 for part in parts(np.zeros(400_000, np.float32))]  # 25 s
    [8.333..., 8.333..., 8.333...]
    """
    shortest = round(_SHORTEST_S * vad.SAMPLE_RATE)
    if len(pcm) < shortest:
        pcm = np.pad(pcm, (0, shortest - len(pcm)))
    return np.array_split(pcm, -(-len(pcm) // round(_LONGEST_S * vad.SAMPLE_RATE)))


def _seconds(pcm: Float32, session: Session) -> float:
    found = np.asarray(run(session, [OUTPUT], {INPUT: np.ascontiguousarray(pcm, np.float32)[None]})[0], np.float64)
    if found.ndim != 3 or found.shape[::2] != (1, len(CLASSES)) or not found.shape[1] or not np.isfinite(found).all():
        raise BundleError(
            f"the bundle's graph {NAME} gives {found.shape}, expected finite (1, frames, {len(CLASSES)}); export the "
            "bundle again"
        )
    together = found[0][:, _TOGETHER].sum(axis=1)
    return float(together.mean()) * len(pcm) / vad.SAMPLE_RATE
