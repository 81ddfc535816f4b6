"""What a decision says that it rests on: in the library, fused, over REST, and where the domain is another."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle, shipped
from uvsdk.errors import ThresholdError, UncalibratedDomainError
from uvsdk.rest.verification import decision_document
from uvsdk.scoring import Basis, Calibration, Decision, Placement, Threshold, fuse
from uvsdk.scoring.domain import Domain
from uvsdk.templates.template import Template
from uvsdk.verify import decide, threshold_at, threshold_for
from uvsdk_server.routes.verify import BasisAnswer

SECRETS = {"template", "probe", "limit", "rise", "cosine_rise", "statistics", "reasons"}


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """The shipped one, calibrated by numbers: people who differ in the first two of its 16 dimensions."""
    plain = shipped()
    directions = np.eye(2, 16, dtype=np.float32)
    domain = Domain(np.zeros(16, np.float32), directions, np.array([0.4, 0.4]), 0.2, 40, np.array([0.5, 1.0, 4.0]))
    calibration = Calibration.from_scores(
        np.linspace(-0.5, 0.3, 1000, dtype=np.float32),
        model_version=plain.version,
        source="forty people",
        people=40,
        measured_unix_s=1_790_000_000.0,
        domain=domain,
    )
    return plain.with_calibration(calibration)


def row(*coordinates: float) -> Float32:
    found = np.zeros(16, np.float32)
    found[: len(coordinates)] = coordinates
    return np.asarray(found / np.linalg.norm(found), np.float32)


def template_of(bundle: Bundle, embedding: Float32, threshold: Threshold | None = None) -> Template:
    return Template(embedding, bundle.version, "handwriting", 3, threshold)


def test_inside_the_threshold_is_the_one_that_was_measured(bundle: Bundle) -> None:
    limit = threshold_at(bundle, 0.01)
    decision = decide(row(1.0), template_of(bundle, row(0.8, 0.6)), bundle=bundle, threshold=limit, release=3)
    basis = decision.basis
    assert decision.threshold == limit
    assert (basis.source, basis.people, basis.trials, basis.release) == ("forty people", 40, 1000, 3)
    assert (basis.asked_fmr, basis.fmr, basis.placement.verdict) == (0.01, 0.01, "inside")
    assert basis.words == (
        "false match rate 0.01 measured on forty people, 1,000 impostor trials, 2026-09-21, release 3; "
        "template and probe lie within what was measured"
    )


def test_outside_more_is_asked_and_nothing_is_claimed(bundle: Bundle) -> None:
    limit = threshold_at(bundle, 0.01)
    # Both lie along a dimension in which those people hardly differ: D = 1 / (0.2 / 14 + 1 / 16) = 13 and more.
    far = row(0.0, 0.0, 1.0)
    decision = decide(far, template_of(bundle, far), bundle=bundle, threshold=limit)
    placement = decision.basis.placement
    assert placement.template == pytest.approx(1 / (0.2 / 14 + 1 / 16))
    assert (placement.verdict, placement.reasons) == ("outside", ("template", "probe"))
    assert decision.threshold.score == pytest.approx(min(limit.score + placement.cosine_rise, 1.0), abs=1e-5)
    assert (decision.threshold.trials, decision.threshold.interval) == (0, (0.0, 1.0))
    assert "aimed for, not measured here" in decision.basis.words
    assert "measured on" not in decision.basis.words.split(";")[0]
    with pytest.raises(UncalibratedDomainError, match="forty people"):
        decide(far, template_of(bundle, far), bundle=bundle, threshold=limit, strict_domain=True)


def test_a_threshold_set_by_hand_claims_nothing_and_is_not_raised(bundle: Bundle) -> None:
    far, hand = row(0.0, 0.0, 1.0), Threshold(0.5, 0.01, 0)
    decision = decide(far, template_of(bundle, far), bundle=bundle, threshold=hand, strict_domain=True)
    assert decision.threshold == hand
    assert (decision.basis.source, decision.basis.placement.verdict) == ("", "unknown")
    assert decision.basis.words == "a threshold set by hand; nothing was measured"


def test_a_calibration_that_does_not_know_its_people(bundle: Bundle) -> None:
    assert bundle.calibration is not None
    older = bundle.with_calibration(replace(bundle.calibration, domain=None, people=0, measured_unix_s=0.0))
    far = row(0.0, 0.0, 1.0)
    limit = threshold_at(older, 0.01)
    decision = decide(far, template_of(older, far), bundle=older, threshold=limit, strict_domain=True)
    assert (decision.threshold, decision.basis.placement.verdict) == (limit, "unknown")


def test_asked_and_supported_rate(bundle: Bundle) -> None:
    template = template_of(bundle, row(1.0), threshold_at(bundle))
    by_default = decide(row(1.0), template, bundle=bundle, threshold=threshold_for(template, bundle))
    assert (by_default.basis.asked_fmr, by_default.basis.fmr) == (None, 0.003)
    with pytest.raises(ThresholdError, match="30000 impostor trials"):
        threshold_for(template, bundle, fmr=1e-4)
    lowest = threshold_for(template, bundle, fmr=1e-4, fallback=True)
    assert lowest.fmr == 0.003
    decision = decide(row(1.0), template, bundle=bundle, threshold=lowest, asked_fmr=1e-4)
    assert (decision.basis.asked_fmr, decision.basis.fmr) == (1e-4, 0.003)
    assert decision.basis.words.startswith("false match rate 0.003 (asked 0.0001) measured on")
    # A rate that the trials support is the one that is taken.
    assert threshold_for(template, bundle, fmr=0.002 + 0.001, fallback=True).fmr == 0.003


def test_fused_it_rests_on_the_weakest() -> None:
    limit = Threshold(3.0, 0.01, 1000, scale="llr")
    voice = Basis("a choir", 40, 780, 20.0, 2, None, 0.01, Placement("inside"))
    face = Basis("a team", 30, 435, 10.0, 2, None, 0.01, Placement("outside", 9.0, 1.0, 4.0, ("template",), 0.2))
    parts = [Decision(0.8, limit, "v", llr=3.0, basis=voice), Decision(0.7, limit, "f", llr=2.0, basis=face)]
    basis = fuse(parts, fmr=0.02).basis
    assert basis == Basis(
        "a choir and a team", 30, 435, 10.0, 2, 0.02, 0.02, Placement("outside", reasons=("template",))
    )
    unknown = replace(parts[1], basis=replace(face, placement=Placement(), release=0))
    assert fuse([parts[0], unknown]).basis.placement.verdict == "unknown"
    assert fuse([parts[0], unknown]).basis.release == 0
    assert fuse([parts[0], replace(parts[1], basis=Basis())]).basis.source == ""


def test_the_document_tells_no_scores(bundle: Bundle) -> None:
    """Whoever lacks the scope learns nothing that two templates with one verdict differ in."""
    limit = threshold_at(bundle, 0.01)
    probe = row(0.0, 0.0, 1.0)
    documents = [
        decision_document(decide(probe, template_of(bundle, row(*other)), bundle=bundle, threshold=limit), told=False)
        for other in ((0.0, 1.0), (0.6, 0.8))
    ]
    assert documents[0] == documents[1]
    basis = documents[0]["basis"]
    assert isinstance(basis, dict)
    assert (basis["domain"], basis["reasons"], basis["statistics"]) == ("outside", None, None)
    assert "rise" not in json.dumps(documents[0])
    told = decision_document(decide(probe, template_of(bundle, probe), bundle=bundle, threshold=limit))["basis"]
    assert isinstance(told, dict)
    assert told["reasons"] == ["template", "probe"]
    assert set(told["statistics"]) <= SECRETS
    for document in (basis, told):
        assert set(document) == set(BasisAnswer.model_fields)
        BasisAnswer.model_validate(document)
