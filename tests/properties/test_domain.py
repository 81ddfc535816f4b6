"""Whichever axes embeddings have: the guard sees distances alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.scoring.domain import Domain
from uvsdk.scoring.moments import Moments, unit


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.integers(3, 70))
def test_turning_every_embedding_changes_nothing(seed: int, dimension: int, people: int) -> None:
    rng = np.random.default_rng(seed)
    rows = unit(rng.normal(size=(people, dimension)) * rng.uniform(0.2, 2.0, dimension) + rng.normal(size=dimension))
    turn, _ = np.linalg.qr(rng.normal(size=(dimension, dimension)))
    owner = np.arange(people)
    domain, turned = Domain.of_people(rows, owner), Domain.of_people(rows @ turn, owner)
    assert domain is not None
    assert turned is not None
    assert turned.distances == pytest.approx(domain.distances, rel=1e-4)
    template, probe = unit(rng.normal(size=(2, dimension)))
    assert turned.distance(template @ turn) == pytest.approx(domain.distance(template), rel=1e-4)
    assert turned.rise(template @ turn, probe @ turn) == pytest.approx(domain.rise(template, probe), abs=1e-4)
    assert domain.rise(template, probe) == domain.rise(probe, template)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_people_count_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    single = [Moments.of(unit(rng.normal(size=(2, 6)))) for _ in range(8)]
    one, other = Moments.none(6), Moments.none(6)
    for item in single:
        one += item
    for index in rng.permutation(8):
        other += single[index]
    row = unit(rng.normal(size=6))
    first, second = Domain.of(one), Domain.of(other)
    assert first is not None
    assert second is not None
    assert first.distance(row) == pytest.approx(second.distance(row), rel=1e-4)
