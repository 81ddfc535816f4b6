"""``POST /v1/verify``: what may be asked, and the decision as it is answered, by server and agent alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from uvsdk.scoring import Basis, Decision, Presentation

FIELDS: Final[Mapping[str, str]] = {
    "user": "whose template the probe is compared with: a hashed id to the server, the application's to the agent",
    "sample": "a recording or picture, the file's bytes in base64; in a multipart form, the file",
    "fmr": "false match rate, at most the one in force",
    "fallback": "where the trials cannot support that rate, the strictest they measure; never laxer than in force",
    "quality": "what the sample must reach before it is matched",
    "faces": "whose face is meant where a picture has several",
}
"""Field of a request -> what it says; all but the first two may be left out."""


_OF_A_THRESHOLD: Final = ("score", "fmr", "trials", "interval", "scale")
_OF_A_PLACEMENT: Final = ("template", "probe", "limit", "rise", "cosine_rise")


def decision_document(decision: Decision, *, told: bool = True) -> dict[str, object]:
    """A decision as ``POST /v1/verify`` answers it.

    Where the caller is not ``told`` the evidence ``score``, ``llr`` and ``threshold`` are ``null`` and detectors say
    only whether they saw an attack: as many scores as the embedding has dimensions are the template, and a detector's
    would teach an attacker to pass. Of ``basis`` they learn all but where template and probe lie: the distances are
    functions of the embeddings, and what a template lacks is the person's. ``llr`` is ``null`` as well where the model
    is not calibrated for it; ``threshold.scale`` says which of ``score`` and ``llr`` was compared with
    ``threshold.score``.
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
        "basis": basis_document(decision.basis, told=told),
    }


def basis_document(basis: Basis, *, told: bool) -> dict[str, object]:
    """What a decision or a search rests on; arguments as for :func:`decision_document`."""
    placement = basis.placement
    statistics = {name: getattr(placement, name) for name in _OF_A_PLACEMENT}
    rates = ("asked_fmr", "fmr") if basis.fpir is None else ("asked_fpir", "fpir")
    return {
        "words": basis.words,
        "source": basis.source,
        "people": basis.people,
        "trials": basis.trials,
        "measured_unix_s": basis.measured_unix_s,
        "release": basis.release,
        **{name: getattr(basis, name) for name in rates},
        "domain": placement.verdict,
        "reasons": list(placement.reasons) if told else None,
        "statistics": statistics if told else None,
    }


def _presentation(item: Presentation, *, told: bool) -> dict[str, object]:
    said = {"detector": item.detector, "bona_fide": item.bona_fide}
    return {**asdict(item), **said} if told else said
