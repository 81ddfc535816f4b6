"""One contract: what may be asked, what is answered, and what an error is, for the server and the agent."""

from __future__ import annotations

import dataclasses
from http import HTTPStatus

import pytest

from uvsdk import errors
from uvsdk.rest.problems import STATUS, Problem
from uvsdk.rest.verification import FIELDS, decision_document
from uvsdk.scoring import Decision, Presentation, Quality, Threshold
from uvsdk_device.agent import _VerifyRequest
from uvsdk_server.routes.verify import VerifyAnswer, VerifyRequest

DECISION = Decision(
    0.7,
    Threshold(0.5, 0.01, 300, (0.001, 0.02), calibration="c" * 64),
    "m" * 64,
    Quality(measured={"speech_s": 3.0}, advice=("speak longer",)),
    {"model": 0.01},
    presentations=(Presentation("face-antispoof", 0.9, 0.5, ("too flat",), {"depth": 0.1}),),
)


def test_both_take_the_same_fields_and_the_server_embeddings_as_well() -> None:
    assert {item.name for item in dataclasses.fields(_VerifyRequest)} == set(FIELDS)
    assert set(VerifyRequest.model_fields) == set(FIELDS) | {"embedding", "model_version"}


@pytest.mark.parametrize("told", [True, False])
def test_the_decision_is_the_document_that_the_description_promises(told: bool) -> None:
    document = decision_document(DECISION, told=told)
    assert set(document) == set(VerifyAnswer.model_fields)
    described = VerifyAnswer.model_validate(document).model_dump(mode="json", exclude_unset=True)
    assert described["presentations"] == [
        {
            "detector": "face-antispoof",
            "bona_fide": True,
            **({"score": 0.9, "threshold": 0.5, "reasons": ["too flat"], "measured": {"depth": 0.1}} if told else {}),
        }
    ]
    assert described["threshold"] == (
        {"score": 0.5, "fmr": 0.01, "trials": 300, "interval": [0.001, 0.02], "scale": "cosine"} if told else None
    )
    assert (described["score"], described["accepted"]) == (0.7 if told else None, True)


def test_an_error_is_answered_as_its_most_derived_class() -> None:
    problem = Problem.of(errors.TooManyAttemptsError("wait", 1.2), "agent")
    assert problem is not None
    assert (problem.status, problem.kind, problem.headers) == (429, "too-many-attempts", {"Retry-After": "2"})
    measured = Problem.of(errors.LowQualityError("too short", {"speech_s": 0.4}), "server")
    assert measured is not None
    assert measured.document() == {
        "type": "urn:uvsdk:problem:low-quality",
        "title": HTTPStatus(422).phrase,  # differs between versions of Python
        "status": 422,
        "detail": "too short",
        "measured": {"speech_s": 0.4},
    }


def test_what_only_one_of_them_can_meet_is_only_that_ones() -> None:
    assert Problem.of(errors.SealError("open"), "agent") is None
    assert Problem.of(errors.ServerUnreachableError("away"), "server") is None
    assert Problem.of(ValueError("bug"), "server") is None


def test_a_new_kind_of_sample_error_needs_no_list() -> None:
    class TooFewStepsError(errors.SampleError):
        pass

    problem = Problem.of(TooFewStepsError("walk on"), "server")
    assert problem is not None
    assert (problem.status, problem.kind) == (422, "too-few-steps")
    assert "too-few-steps" not in STATUS
