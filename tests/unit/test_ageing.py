"""Templates that follow their person, in two dimensions, and an adversary who would walk them away."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import unit
from uvsdk.arrays import Float32
from uvsdk.enrolment import ageing
from uvsdk.enrolment.ageing import AgeingPolicy, History, Step
from uvsdk.errors import ModelMismatchError, SampleError, SettingsError, TemplateFormatError
from uvsdk.records.codec import pack, unpack
from uvsdk.scoring import Basis, Decision, Placement, Presentation, Threshold
from uvsdk.templates.template import Template
from uvsdk.verify import compare

LIMIT = Threshold(0.5, 0.01, 10_000)
STRONG = Threshold(0.8, 0.001, 10_000)
LIVE = (Presentation("by hand", 1.0, 0.5),)
ATTACK = (Presentation("by hand", 0.0, 0.5),)
DAY_S = 86_400.0


def at(*degrees: float) -> Float32:
    angle = math.radians(degrees[0])
    return np.array([math.cos(angle), math.sin(angle)], np.float32)


def template(vector: Float32) -> Template:
    return Template(vector, "m", "voice", 3, LIMIT)


ANA = template(at(0))


def try_step(
    history: History | None,
    probe: Float32,
    *,
    now_s: float = DAY_S,
    policy: AgeingPolicy | None = None,
    presentations: tuple[Presentation, ...] = LIVE,
    enrolled: Template = ANA,
    strong: Threshold = STRONG,
    basis: Basis | None = None,
) -> Step:
    """Verify ``probe`` against the template in use, as a runtime does, and age by it."""
    score = compare(probe, ageing.template_of(enrolled, history))
    decision = Decision(score, LIMIT, "m", presentations=presentations, basis=basis or Basis())
    return ageing.step(
        enrolled,
        history,
        probe=probe,
        decision=decision,
        strong=strong,
        policy=policy or AgeingPolicy(),
        now_s=now_s,
    )


def test_one_step_by_hand() -> None:
    # 0.9 (1, 0) + 0.1 (cos 30, sin 30) = (0.9 + 0.1 sqrt(3) / 2, 0.05): an angle of atan(0.05 / 0.9866) = 2.9 degrees.
    moved = math.degrees(math.atan2(0.05, 0.9 + 0.05 * math.sqrt(3)))
    assert moved == pytest.approx(2.9, abs=0.01)
    found = try_step(None, at(30))
    assert found.taken
    assert found.history.current == pytest.approx(at(moved), abs=1e-6)
    assert found.history.current @ found.history.original == pytest.approx(math.cos(math.radians(moved)), abs=1e-6)
    assert (found.history.steps, found.history.last_step_s) == (1, DAY_S)
    assert found.history.original == pytest.approx(at(0))
    used = ageing.template_of(ANA, found.history)
    assert used.embedding == pytest.approx(at(moved), abs=1e-6)
    assert replace(used, embedding=ANA.embedding) == ANA  # everything else is the enrolment's


@pytest.mark.parametrize(
    ("probe", "presentations", "reason"),
    [
        (at(70), LIVE, "the probe was not accepted"),  # cos 70 = 0.34
        (at(20), ATTACK, "the probe was not accepted"),
        (at(20), (*LIVE, *ATTACK), "the probe was not accepted"),
        (at(20), (), "no presentation attack detector looked at the probe"),
        (at(45), LIVE, "not a strong match with the template in use"),  # cos 45 = 0.71: accepted, not strong
    ],
)
def test_what_moves_nothing(probe: Float32, presentations: tuple[Presentation, ...], reason: str) -> None:
    found = try_step(None, probe, presentations=presentations)
    assert (found.taken, found.reason) == (False, reason)
    assert found.history.steps == 0
    assert ageing.template_of(ANA, found.history) == ANA


def test_without_a_detector_only_where_the_policy_says_so() -> None:
    assert try_step(None, at(20), presentations=(), policy=AgeingPolicy(require_live=False)).taken


def test_an_acceptance_outside_of_what_was_measured_moves_nothing() -> None:
    found = try_step(None, at(30), basis=Basis("forty people", placement=Placement("outside", reasons=("probe",))))
    assert (found.taken, found.history.steps) == (False, 0)
    assert "outside of what was measured" in found.reason
    for placement in (Placement("inside"), Placement()):
        assert try_step(None, at(30), basis=Basis("forty people", placement=placement)).taken


def test_one_step_an_interval_and_a_clock_set_back_opens_none() -> None:
    first = try_step(None, at(20), now_s=1000.0).history
    for now_s in (1000.0, 1000.0 + DAY_S - 1, 0.0, -1e9):
        found = try_step(first, at(20), now_s=now_s)
        assert not found.taken
        assert "the last step is" in found.reason
    assert try_step(first, at(20), now_s=1000.0 + DAY_S).taken


def test_what_matches_only_the_aged_template_moves_nothing() -> None:
    # In use: 15 degrees off. A probe at 40 degrees matches that (cos 25 = 0.91) and not the original (cos 40 = 0.77).
    history = replace(ageing.begin(ANA), versions=at(15)[None], stepped_s=np.array([0.0]), last_step_s=0.0, steps=1)
    assert try_step(history, at(40)).reason == "not a strong match with the enrolment's own template"
    assert try_step(history, at(35)).taken


def test_the_cone_around_the_original_is_never_left() -> None:
    policy = AgeingPolicy(minimum_cosine=0.99)  # 8.1 degrees
    history, now_s = None, 0.0
    for _ in range(50):
        now_s += DAY_S
        found = try_step(history, at(30), now_s=now_s, policy=policy)
        history = found.history
    assert found.reason == "the template would drift too far from the enrolment's own; enrol again"
    assert 0.99 <= history.current @ history.original < 0.995


def test_the_last_versions_are_kept_and_every_one_can_be_returned_to() -> None:
    policy = AgeingPolicy(keep=3)
    history = None
    seen: list[Float32] = []
    for day in range(1, 6):
        history = try_step(history, at(30), now_s=day * DAY_S, policy=policy).history
        seen.append(history.current)
    assert history is not None
    assert len(history.versions) == 3
    assert history.stepped_s.tolist() == [3 * DAY_S, 4 * DAY_S, 5 * DAY_S]
    assert np.array_equal(ageing.revert(history, versions=1).current, seen[3])
    assert np.array_equal(ageing.revert(history, versions=2).current, seen[2])
    for back in (3, 4, 99, None):
        original = ageing.revert(history, versions=back)
        assert ageing.template_of(ANA, original) == ANA
        assert original.steps == 5
    # The next step still waits for its interval.
    assert not try_step(ageing.revert(history), at(30), now_s=5 * DAY_S + 1).taken
    with pytest.raises(SettingsError):
        ageing.revert(history, versions=0)


def test_a_history_of_another_enrolment_is_void() -> None:
    history = try_step(None, at(30)).history
    again = template(at(1))
    assert not ageing.belongs(history, again)
    assert ageing.template_of(again, history) == again
    other_model = replace(ANA, model_version="newer")
    assert ageing.template_of(other_model, history) == other_model
    fresh = try_step(history, at(30), enrolled=again)
    assert fresh.history.steps == 1
    assert np.array_equal(fresh.history.original, again.embedding)


def test_a_history_survives_packing() -> None:
    history = try_step(None, at(30)).history
    for kept in (history, ageing.begin(ANA)):
        back = unpack(History, pack(kept))
        assert ageing.template_of(ANA, back) == ageing.template_of(ANA, kept)
        assert (back.steps, back.last_step_s) == (kept.steps, kept.last_step_s)
    assert "0.99" not in repr(history)


def test_what_no_history_can_be() -> None:
    empty = np.empty(0, np.float64)
    for versions, stepped in (
        (at(0)[None], empty),
        (2 * at(0)[None], np.zeros(1)),
        (np.full((1, 2), np.nan, np.float32), np.zeros(1)),
        (np.zeros((1, 3), np.float32), np.zeros(1)),
    ):
        with pytest.raises(TemplateFormatError):
            History("m", at(0), versions, stepped)


def test_policies_out_of_range() -> None:
    for bad in (
        {"stricter": 0.5},
        {"weight": 0.0},
        {"weight": 0.6},
        {"interval_s": -1.0},
        {"minimum_cosine": 0.0},
        {"minimum_cosine": 1.1},
        {"keep": 0},
        {"stricter": math.nan},
        {"interval_s": math.nan},
    ):
        with pytest.raises(SettingsError):
            AgeingPolicy(**bad)  # type: ignore[arg-type]


def test_a_probe_that_means_nothing_is_an_error() -> None:
    accepted = Decision(0.9, LIMIT, "m", presentations=LIVE)
    for probe, error in (
        (np.array([np.nan, 0], np.float32), SampleError),
        (np.array([2, 0], np.float32), SampleError),
        (np.array([1, 0, 0], np.float32), ModelMismatchError),
    ):
        with pytest.raises(error):
            ageing.step(ANA, None, probe=probe, decision=accepted, strong=STRONG, policy=AgeingPolicy(), now_s=0.0)
    with pytest.raises(SettingsError, match="cosine"):
        try_step(None, at(10), strong=Threshold(3.0, 0.001, 10_000, scale="llr"))


@given(
    seed=st.integers(0, 2**32 - 1),
    dimension=st.integers(2, 16),
    minimum_cosine=st.floats(0.7, 1.0),
    weight=st.floats(0.01, 0.5),
    strong=st.floats(0.1, 0.9),
)
@settings(max_examples=30, deadline=None)
def test_the_best_accepted_impostor_every_day_cannot_walk_a_template_away(
    seed: int, dimension: int, minimum_cosine: float, weight: float, strong: float
) -> None:
    """The adversary owns a detector that calls everything live and knows both templates.

    Each day they submit the probe nearest to themselves that still counts as a strong match with both templates.
    """
    rng = np.random.default_rng(seed)
    original = np.asarray(unit(rng.standard_normal(dimension)), np.float32)
    target = unit(rng.standard_normal(dimension))
    enrolled, limit = template(original), Threshold(strong, 0.001, 10_000)
    policy = AgeingPolicy(weight=weight, minimum_cosine=minimum_cosine)
    history: History | None = None
    for day in range(30):
        used = ageing.template_of(enrolled, history).embedding.astype(np.float64)
        # Along the arc from the original to the target, and from the template in use to it.
        shares = np.linspace(0, 1, 21)[:, None]
        arcs = np.concatenate([(1 - shares) * start + shares * target for start in (original, used)])
        arcs = arcs[np.linalg.norm(arcs, axis=1) > 1e-6]
        probes = np.asarray(arcs / np.linalg.norm(arcs, axis=1, keepdims=True), np.float32)
        allowed = probes[(probes @ original >= strong) & (probes @ used >= strong)]
        if not len(allowed):
            break
        probe = allowed[np.argmax(allowed @ target)]
        decision = Decision(1.0, LIMIT, "m", presentations=LIVE)
        history = ageing.step(
            enrolled, history, probe=probe, decision=decision, strong=limit, policy=policy, now_s=day * DAY_S
        ).history
        drift = history.current.astype(np.float64) @ original.astype(np.float64)
        # A template that never moved is at the original's own squared norm, which float32 may round to just below 1.
        assert drift >= min(minimum_cosine, original.astype(np.float64) @ original.astype(np.float64))
        # So nobody comes nearer to the template than by the angle of the cone.
        nearest = math.cos(max(math.acos(np.clip(target @ original, -1, 1)) - math.acos(minimum_cosine), 0.0))
        assert history.current @ target <= nearest + 1e-5
    assert np.array_equal(
        ageing.template_of(enrolled, None if history is None else ageing.revert(history)).embedding, original
    )
