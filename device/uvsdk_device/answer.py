"""A decision as JSON, for the agent's answers and ``uvsdk verify --json``."""

from __future__ import annotations

from dataclasses import asdict

from uvsdk.scoring import Decision, Presentation


def decision_json(decision: Decision, *, told: bool = True) -> dict[str, object]:
    """A decision as the server's and the agent's ``POST /v1/verify`` answer it, with the stages' seconds.

    Where the caller is not ``told`` the evidence it is as the server answers it without the scope ``scores``:
    ``score``, ``llr`` and ``threshold`` are ``null``, detectors say only whether they saw an attack, and there are no
    seconds.

    ``llr`` is ``null`` where the model is not calibrated for it; ``threshold.scale`` says which of ``score`` and
    ``llr`` was compared with ``threshold.score``.
    """
    threshold = decision.threshold
    if not told:
        return {
            "accepted": decision.accepted,
            "fmr": threshold.fmr,
            "score": None,
            "llr": None,
            "threshold": None,
            "model_version": decision.model_version,
            "quality": asdict(decision.quality),
            "presentations": [
                {"detector": item.detector, "bona_fide": item.bona_fide} for item in decision.presentations
            ],
        }
    return {
        "accepted": decision.accepted,
        "fmr": threshold.fmr,
        "score": decision.score,
        "llr": decision.llr,
        "threshold": {
            "score": threshold.score,
            "fmr": threshold.fmr,
            "trials": threshold.trials,
            "interval": list(threshold.interval),
            "scale": threshold.scale,
        },
        "model_version": decision.model_version,
        "quality": asdict(decision.quality),
        "presentations": [_presentation_json(item) for item in decision.presentations],
        "timings_s": dict(decision.timings_s),
    }


def _presentation_json(presentation: Presentation) -> dict[str, object]:
    return {**asdict(presentation), "bona_fide": presentation.bona_fide}
