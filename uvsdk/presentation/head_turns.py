"""Active liveness by face: look straight, left and right, in an order that nobody knew before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.errors import ChallengeError, SettingsError
from uvsdk.modality.contract import Captured
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.presentation.challenge import STRAIGHT, Challenge
from uvsdk.scoring import Presentation

_EYES, _NOSE = (0, 1), 2


@dataclass(frozen=True, slots=True, eq=False)
class TurnFrame:
    """One frame of a camera while the head turns.

    Args:
        at_s: Unix time of the frame.
        turn: see :func:`turn`.
        embedding: of the face in it, float32 (d,), unit norm.
    """

    at_s: float
    turn: float
    embedding: Float32

    def __post_init__(self) -> None:
        if not math.isfinite(self.at_s) or not math.isfinite(self.turn) or not np.isfinite(self.embedding).all():
            raise SettingsError("a frame's time, turn and embedding are finite numbers")

    @classmethod
    def of(cls, at_s: float, captured: CapturedFace, embedding: Float32) -> TurnFrame:
        """From a frame that the modality took (:func:`uvsdk.bundle.inference.embed`, ``captured`` and ``embedding``).

        The picture must not be mirrored, as previews of front cameras are.
        """
        return cls(at_s, turn(captured.face.landmarks), embedding)


def turn(landmarks: Float32) -> float:
    """How far the head is turned: where the nose falls between the eyes, as a part of their distance.

    0 is straight, +0.5 has the nose under the person's left eye, so above 0 the person looks to their own left. A flat
    picture that is tilted before the camera keeps its value: the nose moves together with the eyes.

    Args:
        landmarks: float32 (5, 2), see :class:`uvsdk.modality.face.detector.Detection`.

    >>> turn(np.array([[30, 50], [70, 50], [60, 70], [35, 90], [65, 90]], np.float32))
    0.25
    """
    right, left = (landmarks[eye].astype(np.float64) for eye in _EYES)
    between = left - right
    return float((landmarks[_NOSE] - right) @ between / max(float(between @ between), 1e-9)) - 0.5


@dataclass(frozen=True, slots=True)
class HeadTurns:
    """Whether a face turned as the challenge says, in one movement, and is the one that is verified.

    A photograph cannot answer, and neither can a film, unless it happens to show the same turns in the same order (of
    three turns one in eight does) or is made to: a face that a program animates passes.

    Args:
        challenge: as it was issued, from :meth:`uvsdk.presentation.Challenges.redeem`.
        frames: in the order in which they were taken.
        straight: |turn| up to which a face looks straight.
        turned: |turn| from which it is turned.
        similarity: least cosine of every frame's embedding with the probe's.
        held: frames in a row in which a step must be seen.
        pause_s: longest time between two frames; a cut could hide in a longer one.
        speed: largest change of the turn per second; a head takes a third of a second from the middle to one side.
        name: what its :class:`~uvsdk.scoring.Presentation` is called.
        modality: always ``face``.
    """

    challenge: Challenge
    frames: Sequence[TurnFrame]
    straight: float = 0.15
    turned: float = 0.30
    similarity: float = 0.25
    held: int = 2
    pause_s: float = 0.5
    speed: float = 3.0
    name: str = "face-head-turns"
    modality: str = "face"

    def __post_init__(self) -> None:
        if self.challenge.kind != "head-turns":
            raise ChallengeError(f"head turns answer a challenge of kind head-turns, got {self.challenge.kind}")
        if not 0 < self.straight < self.turned <= 1 or not -1 <= self.similarity <= 1 or self.held < 1:
            raise SettingsError("turned is further than straight, a cosine lies in [-1, 1], a step takes a frame")
        if not self.pause_s > 0 or not self.speed > 0:
            raise SettingsError("the longest pause and the largest speed are positive")

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        """See :class:`uvsdk.presentation.PresentationAttackDetector`.

        The score is the share of the challenge that was seen in order, 0 to 1, and -1 where anything else speaks
        against it; the threshold is 1.
        """
        if not isinstance(captured, CapturedFace):
            raise SettingsError(f"{self.name} looks at a captured face, got {type(captured).__name__}")
        seen = self._steps_seen()
        likeness = self._likeness(embedding)
        pause_s, speed = self._movement()
        late_s = max((self.challenge.lateness_s(frame.at_s) for frame in self.frames), default=0.0)
        reasons = []
        if late_s > 0:
            reasons.append(f"the answer missed the challenge's time by {late_s:.1f} s: ask for a new one")
        if pause_s > self.pause_s or pause_s < 0:
            reasons.append("the camera's frames have gaps or are out of order: keep the face in view throughout")
        if speed > self.speed:
            reasons.append("the head jumped from one side to the other: turn it slowly")
        if self.frames and likeness < self.similarity:
            reasons.append("not the same face throughout: only one person may be in view")
        against = bool(reasons)
        if seen < len(self.challenge.steps):
            wanted = self.challenge.steps[seen]
            reasons.append(f"step {seen + 1} of {len(self.challenge.steps)} was not seen: look {wanted}")
        score = -1.0 if against else seen / len(self.challenge.steps)
        measured = {
            "steps_seen": float(seen),
            "lowest_similarity": likeness,
            "longest_pause_s": pause_s,
            "highest_speed": speed,
            "late_s": late_s,
        }
        return Presentation(self.name, score, 1.0, tuple(reasons), measured)

    def _steps_seen(self) -> int:
        """How many steps were seen in order, each for ``held`` frames in a row.

        Turning to the wrong side ends it: else a film that turns everywhere would answer every challenge.
        """
        held: list[str] = []
        in_a_row, current = 0, ""
        for frame in self.frames:
            side = self._side(frame.turn)
            in_a_row = in_a_row + 1 if side == current else 1
            current = side
            if side and in_a_row == self.held and held[-1:] != [side]:
                held.append(side)
        steps = self.challenge.steps
        # Where the head was before it looked at the first step's side is nobody's business.
        begun = held[held.index(steps[0]) :] if steps[0] in held else []
        alike = [side == step for side, step in zip(begun, steps, strict=False)]
        return alike.index(False) if False in alike else len(alike)

    def _side(self, turned: float) -> str:
        if abs(turned) <= self.straight:
            return STRAIGHT
        if abs(turned) < self.turned:
            return ""
        return "left" if turned > 0 else "right"

    def _likeness(self, embedding: Float32) -> float:
        """The lowest cosine of a frame with the probe; 1 where there is no frame."""
        probe = embedding.astype(np.float64)
        return min((float(frame.embedding.astype(np.float64) @ probe) for frame in self.frames), default=1.0)

    def _movement(self) -> tuple[float, float]:
        """The longest time between two frames (negative where one is not later), and the fastest turn per second."""
        steps = [(after.at_s - before.at_s, abs(after.turn - before.turn)) for before, after in pairwise(self.frames)]
        if any(time_s <= 0 for time_s, _ in steps):
            return -1.0, 0.0
        return (
            max((time_s for time_s, _ in steps), default=0.0),
            max((moved / time_s for time_s, moved in steps), default=0.0),
        )
