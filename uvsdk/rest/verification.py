"""``POST /v1/verify``: what may be asked, and the decision as it is answered, by server and agent alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from uvsdk.scoring import Decision, Presentation

FIELDS: Final[Mapping[str, str]] = {
    "user": "whose template the probe is compared with: a hashed id to the server, the application's to the agent",
    "sample": "a recording or picture, the file's bytes in base64; in a multipart form, the file",
    "fmr": "false match rate, at most the one in force",
    "quality": "what the sample must reach before it is matched",
    "faces": "whose face is meant where a picture has several",
}
"""Field of a request -> what it says; all but the first two may be left out."""


_OF_A_THRESHOLD: Final = ("score", "fmr", "trials", "interval", "scale")


def decision_document(decision: Decision, *, told: bool = True) -> dict[str, object]:
    """A decision as ``POST /v1/verify`` answers it.

    Where the caller is not ``told`` the evidence ``score``, ``llr`` and ``threshold`` are ``null`` and detectors say
    only whether they saw an attack: as many scores as the embedding has dimensions are the template, and a detector's
    would teach an attacker to pass. ``llr`` is ``null`` as well where the model is not calibrated for it;
    ``threshold.scale`` says which of ``score`` and ``llr`` was compared with ``threshold.score``.
    """
    threshold = decision.threshold
    return {
        "accepted": decision.accepted,
        "fmr": threshold.fmr,
        "score": decision.score if told else None,
        "llr": decision.llr if told else None,
        "threshold": {name: getattr(threshold, name) for name in _OF_A_THRESHOLD} if told else None,
        "model_version": decision.model_version,
        "quality": asdict(decision.quality),
        "presentations": [_presentation(item, told=told) for item in decision.presentations],
    }


def _presentation(item: Presentation, *, told: bool) -> dict[str, object]:
    said = {"detector": item.detector, "bona_fide": item.bona_fide}
    return {**asdict(item), **said} if told else said
