"""What the device's commands print of an enrolment, a decision and a search, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from uvsdk.enroll import Enrollment
from uvsdk.identify import Identification
from uvsdk.rest.verification import basis_document
from uvsdk.scoring import Decision, Presentation
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.releases import read_standing


def enrolment_lines(enrolment: Enrollment, files: Sequence[str]) -> Iterator[str]:
    """Each file's fate, the template, what is missing and what to expect."""
    for sample in enrolment.samples:
        alike = "" if sample.similarity is None else f", similarity {sample.similarity:.2f} with the others"
        if sample.accepted:
            yield f"used: {files[sample.index]}{alike}"
            for advice in () if sample.quality is None else sample.quality.advice:
                yield f"  advice: {advice}"
        else:
            yield f"not used: {files[sample.index]}: {sample.reason}"
    template = enrolment.template
    limit = "none (the model is not calibrated)" if template.threshold is None else f"{template.threshold.score:.3f}"
    word = {"new": "enrolled", "replaced": "enrolled anew", "extended": "extended"}[enrolment.outcome]
    yield f"{word} from {template.samples} samples, model {template.model_version[:12]}, threshold {limit}"
    yield f"complete to {enrolment.completeness.percent} %"
    for missing in enrolment.completeness.missing:
        yield f"  missing: {missing}"
    if enrolment.expected_fnmr is not None:
        yield f"expected false non-match rate: {enrolment.expected_fnmr.words}"
    if enrolment.participation is not None:
        yield f"training: {enrolment.participation.state} {enrolment.participation.detail}".rstrip()


def decision_lines(decision: Decision) -> Iterator[str]:
    """Accepted or rejected, by what, and what the detectors said."""
    word = "accepted" if decision.accepted else "rejected"
    limit = decision.threshold
    what = "log likelihood ratio" if limit.scale == "llr" else "score"
    yield f"{word}: {what} {decision.value:.3f}, threshold {limit.score:.3f}"
    yield f"basis: {decision.basis.words}"
    yield from _presentation_lines(decision.presentations)
    for advice in decision.quality.advice:
        yield f"advice: {advice}"


def identification_lines(found: Identification) -> Iterator[str]:
    """Who it is, or that it is nobody, and the best candidates."""
    limit = found.threshold
    if found.outcome == "ambiguous":
        yield f"ambiguous: {found.tied} people share the best score; were they enrolled twice?"
    else:
        yield f"identified: {found.user_id}" if found.outcome == "identified" else "rejected: nobody of them"
    yield f"threshold {limit.score:.3f} among {found.people} people"
    yield f"basis: {found.basis.words}"
    for candidate in found.candidates:
        yield f"{candidate.score:.3f}  {candidate.user_id}"
    yield from _presentation_lines(found.presentations)
    for advice in found.quality.advice:
        yield f"advice: {advice}"


def release_lines(store: EncryptedStore, *, only_refused: bool = False) -> Iterator[str]:
    """Which releases verify here, which one is kept to go back to, and which were refused since."""
    from uvsdk import modality

    for name in modality.names():
        standing = read_standing(store, name)
        for followed in standing.followed:
            deployment = followed.deployment.split("/")[0]
            newest = 0
            for place, signed in enumerate(followed.adopted):
                release = signed.release
                newest = max(newest, release.number if place == 0 else 0)
                verifies = place == 0 and followed.deployment == standing.in_use
                what = "verifies here" if verifies else "is kept to go back to"
                if not only_refused:
                    yield f"{deployment} release {release.number} {what}: model {release.model_version[:12]}, {name}"
            for refusal in followed.refusals:
                if refusal.number > newest:
                    yield f"{deployment} release {refusal.number} was refused: {refusal.reason}"


def _presentation_lines(presentations: Sequence[Presentation]) -> Iterator[str]:
    for item in presentations:
        seen = "bona fide" if item.bona_fide else "attack"
        reasons = f": {'; '.join(item.reasons)}" if item.reasons else ""
        yield f"{item.detector}: {seen}, score {item.score:.3f}, threshold {item.threshold:.3f}{reasons}"


def identification_json(found: Identification) -> dict[str, Any]:
    """The same as a JSON object."""
    limit = found.threshold
    return {
        "outcome": found.outcome,
        "user": found.user_id,
        "candidates": [{"user": item.user_id, "score": item.score} for item in found.candidates],
        "people": found.people,
        "tied": found.tied,
        "threshold": {
            "score": limit.score,
            "fpir": limit.fpir,
            "people": limit.people,
            "trials": limit.trials,
            "interval": list(limit.interval),
            "measured_on": limit.measured_on,
        },
        "basis": basis_document(found.basis, told=True),
        "model_version": found.model_version,
        "presentations": [
            {
                "detector": item.detector,
                "bona_fide": item.bona_fide,
                "score": item.score,
                "threshold": item.threshold,
                "reasons": list(item.reasons),
            }
            for item in found.presentations
        ],
        "quality": {"measured": found.quality.measured, "advice": list(found.quality.advice)},
        "timings_s": found.timings_s,
    }
