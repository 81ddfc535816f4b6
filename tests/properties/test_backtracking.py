"""Returns to the best candidate: the rule on any course of evaluations, and what a shorter step does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.federation import optimisers
from uvsdk.federation.messages import OPTIMISERS, TrainingConfig
from uvsdk.release.backtracking import WORSE_IN_A_ROW, Best, Compared, Course, bar_of, follow

CONFIG = TrainingConfig("d", "voice", "ge2e", "fedaws", server_adaptivity=1e-8, server_learning_rate=0.01)

rates = st.integers(0, 64).map(lambda count: count / 64)  # exact, so that sums of them are


def at(name: str, around: float, *, released: str = "r", beside: float = 0.5, error: float = 0.0) -> Compared:
    return Compared(name, around, released, beside, error)


def test_a_course_by_hand() -> None:
    """Rates of the released model are 0.5 but in the third evaluation, whose people are harder by 0.1."""
    course = follow(Course(), at("a", 0.4))
    assert course == Course(Best("a", 0.4, "r", 0.5), 0, 1.0)
    course = follow(course, at("b", 0.45))
    assert (course.best, course.worse, course.step) == (Best("a", 0.4, "r", 0.5), 1, 0.5)
    course = follow(course, at("c", 0.49, beside=0.6))  # a would be at 0.5 there
    assert course == Course(Best("c", 0.49, "r", 0.6), 0, 0.5)
    for name, step in (("d", 0.25), ("e", 0.125), ("f", 0.0625)):
        course = follow(course, at(name, 0.45))  # c would be at 0.39 beside a released model at 0.5
        assert course.step == step
    assert course.rests
    assert course.best is not None
    assert course.best.model_version == "c"


def test_the_released_model_is_the_first_best() -> None:
    assert follow(Course(), at("a", 0.6)) == Course(Best("r", 0.5, "r", 0.5), 1, 0.5)
    # Once another one is released, the best is compared with that as it is measured beside the candidate.
    assert bar_of(Best("a", 0.4, "r", 0.5), at("b", 0.3, released="a", beside=0.42)) == 0.42
    assert bar_of(Best("a", 0.4, "r", 0.5), at("b", 0.3, released="other", beside=0.7)) == 0.4
    assert bar_of(Best("a", 0.4, "r", 0.5), at("a", 0.43)) == 0.43


def test_where_nothing_is_undone_only_what_is_clearly_worse_counts() -> None:
    course = follow(Course(), at("a", 0.4), returns=False)
    unsure = follow(course, at("b", 0.45, error=0.03), returns=False)
    assert unsure == course
    clear = follow(course, at("b", 0.47, error=0.03), returns=False)
    assert (clear.best, clear.worse, clear.step) == (course.best, 1, 1.0)


@given(arounds=st.lists(rates, min_size=1, max_size=20))
def test_nobody_ends_worse_than_the_best_that_was_measured(arounds: list[float]) -> None:
    course, best, steps = Course(), 0.5, [1.0]
    for place, around in enumerate(arounds):
        course = follow(course, at(str(place), around))
        assert course.best is not None
        best = min(best, around)
        assert course.best.around == best
        assert course.step == steps[-1] * (0.5 if around > min([0.5, *arounds[:place]]) else 1.0)
        steps.append(course.step)
        if course.rests:
            newest = arounds[place + 1 - WORSE_IN_A_ROW : place + 1]
            assert min(newest) > course.best.around


@given(around=rates, released=rates, harder=st.integers(-16, 16).map(lambda count: count / 64), next_around=rates)
def test_people_who_are_harder_for_both_models_change_nothing(
    around: float, released: float, harder: float, next_around: float
) -> None:
    course = follow(Course(), at("a", around, beside=released))
    usual = follow(course, at("b", next_around, beside=released))
    other = follow(course, at("b", next_around + harder, beside=released + harder))
    if course.best is not None and abs(next_around - min(around, released)) > 1e-9:
        assert (usual.worse, usual.step) == (other.worse, other.step)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.5, 0.25, 0.0625]))
def test_a_shorter_step_goes_the_same_way_and_leaves_the_moments_alone(optimiser: str, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    theta, delta = (rng.normal(size=6).astype(np.float32) for _ in range(2))
    config = replace(CONFIG, optimiser=optimiser, trust_ratio=0.01)
    state = optimisers.initial(6, config)
    whole, known = optimisers.step(theta, delta, state, config, tensors=(2, 4))
    part, same = optimisers.step(theta, delta, state, config, tensors=(2, 4), scale=scale)
    np.testing.assert_allclose(part - theta, scale * (whole - theta), atol=1e-6)
    np.testing.assert_array_equal(known.first, same.first)
    np.testing.assert_array_equal(known.second, same.second)
