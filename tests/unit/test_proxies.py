"""Proxy balls: containment, the offset that is kept, what an attacker's guess is worth, and the store."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import unit
from uvsdk.arrays import Float64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedmetric import proxies
from uvsdk.federation.algorithms.fedmetric.proxies import ProxyStore, Shift

USUAL = Shift(factor=3.0, fewest=1.5, shortest=0.3)


def secrets_of(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def drawn(radius: float, seed: int = 0, dimension: int = 8, shift: Shift = USUAL) -> tuple[Float64, int]:
    offset, rotations = proxies.fit_offset(
        np.zeros(dimension, np.float32), proxies.UNDRAWN, radius=radius, shift=shift, secret=secrets_of(seed)
    )
    return offset.astype(np.float64), rotations


def test_the_true_ball_is_the_mean_and_the_farthest() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 1.0]])
    ball = proxies.true_ball(rows)
    np.testing.assert_array_equal(ball.centre, [0.0, 0.5])
    assert ball.radius == pytest.approx(math.sqrt(1.25))  # from (0, 0.5) to (1, 0)
    # Distances 0.5, 0.5, 1.118, 1.118: the median is their middle, (0.5 + 1.118) / 2.
    assert proxies.true_ball(rows, percentile=50.0).radius == pytest.approx((0.5 + math.sqrt(1.25)) / 2)
    assert proxies.true_ball(rows, smallest=1.5).radius == 1.5


@given(st.integers(1, 30), st.integers(2, 20), st.floats(0.5, 5.0), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_the_proxy_ball_contains_every_embedding(n: int, dimension: int, factor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = unit(rng.standard_normal((n, dimension)) + 2.0 * rng.standard_normal(dimension))
    ball = proxies.true_ball(rows)
    offset, _ = drawn(ball.radius, seed, dimension, Shift(factor, 1.0, 0.3))
    proxy = proxies.proxy_ball(ball, offset)
    assert (np.linalg.norm(rows - proxy.centre, axis=1) <= proxy.radius + 1e-12).all()
    assert np.linalg.norm(proxy.centre - ball.centre) == pytest.approx(max(factor * ball.radius, 0.3), rel=1e-6)


def test_directions_are_uniform_on_the_sphere() -> None:
    dimension, count = 5, 20_000
    rows = np.stack([proxies.direction(dimension, secrets_of(seed)) for seed in range(count)])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-12)
    # Mean 0 and covariance I / d; 5 standard errors of a mean of numbers of variance 1 / d, and of their products.
    np.testing.assert_allclose(rows.mean(axis=0), 0.0, atol=5 / math.sqrt(dimension * count))
    np.testing.assert_allclose(rows.T @ rows / count, np.eye(dimension) / dimension, atol=5 * 0.3 / math.sqrt(count))


def test_directions_use_odd_and_single_dimensions_and_any_bytes() -> None:
    assert proxies.direction(1, secrets_of(0)).shape == (1,)
    assert proxies.direction(7, secrets_of(0)).shape == (7,)
    for byte in (b"\x00", b"\xff"):
        assert np.linalg.norm(proxies.direction(4, lambda n, byte=byte: byte * n)) == pytest.approx(1.0)


def attack(proxy_of_round: Callable[[int], Float64], rounds: int) -> Float64:
    """The attacker's estimate: the mean of the proxies seen."""
    return np.mean([proxy_of_round(t) for t in range(rounds)], axis=0)


def test_averaging_finds_the_centre_without_a_frozen_offset_and_not_with_it() -> None:
    dimension, radius, rounds = 32, 0.2, 40  # SPEC 4.4: s = 3 is broken after about s^2 = 9 rounds
    centre = unit(np.random.default_rng(1).standard_normal(dimension))
    fresh = attack(lambda t: centre + drawn(radius, seed=t, dimension=dimension)[0], rounds)
    assert np.linalg.norm(fresh - centre) < radius

    offset, rotations = drawn(radius, seed=9, dimension=dimension)

    def frozen_proxy(t: int) -> Float64:
        again, count = proxies.fit_offset(
            offset.astype(np.float32), rotations, radius=radius, shift=USUAL, secret=secrets_of(t)
        )
        assert count == rotations
        return centre + again

    assert np.linalg.norm(attack(frozen_proxy, rounds) - centre) == pytest.approx(3 * radius, rel=1e-5)


def test_even_a_spent_budget_of_rotations_does_not_average_out() -> None:
    # floor(9 / 4) = 2 rotations make 3 offsets; their mean is about s R / sqrt(3) = 1.73 R from the centre.
    assert USUAL.rotations == 2
    inside = 0
    for seed in range(200):
        mean = np.mean([drawn(0.2, seed=3 * seed + k, dimension=32)[0] for k in range(3)], axis=0)
        inside += np.linalg.norm(mean) < 0.2
    assert inside == 0


def test_an_offset_is_kept_until_the_ball_outgrows_it_and_replaced_as_often_as_the_budget_allows() -> None:
    secret = secrets_of(5)
    offset, rotations = proxies.fit_offset(
        np.zeros(8, np.float32), proxies.UNDRAWN, radius=0.2, shift=USUAL, secret=secret
    )
    assert (np.linalg.norm(offset), rotations) == (pytest.approx(0.6), 0)
    # 0.6 is at least 1.5 radii up to a radius of 0.4; a ball that shrinks keeps direction and length.
    for radius in (0.01, 0.2, 0.4):
        again, rotations = proxies.fit_offset(offset, rotations, radius=radius, shift=USUAL, secret=secret)
        np.testing.assert_array_equal(again, offset)
    lengths = []
    for radius in (0.41, 0.83, 1.7):  # each outgrows the last: 1.23 / 1.5 = 0.82, 2.49 / 1.5 = 1.66
        offset, rotations = proxies.fit_offset(offset, rotations, radius=radius, shift=USUAL, secret=secret)
        lengths.append(float(np.linalg.norm(offset)))
    assert rotations == 2
    assert lengths == [pytest.approx(1.23), pytest.approx(2.49), pytest.approx(2.49)]  # the third time: no budget left
    assert not proxies.hides(offset, 1.7, USUAL)
    assert proxies.hides(offset, 1.0, USUAL)


def test_a_ball_of_radius_0_is_still_moved() -> None:
    offset, _ = drawn(0.0)
    assert np.linalg.norm(offset) == pytest.approx(0.3)
    assert not proxies.hides(np.zeros(8), 0.0, Shift(3.0, 1.5, 0.0))


def test_what_a_device_keeps() -> None:
    offset, _ = drawn(0.2)
    memory = proxies.memory_of(offset.astype(np.float32), 1)
    again, rotations = proxies.offset_of(memory, 8)
    np.testing.assert_array_equal(again, offset)
    assert rotations == 1
    for nothing in (proxies.offset_of({}, 8), proxies.offset_of(memory, 9)):  # another trunk: another key epoch
        assert nothing[1] == proxies.UNDRAWN
        assert not nothing[0].any()
    assert proxies.memory_of(np.zeros(8, np.float32), proxies.UNDRAWN) == {}


@pytest.mark.parametrize(
    ("dimension", "factor", "volume", "sphere"),
    [
        (128, 1.1, -41, -6.3),
        (128, 1.5, -51, -23.7),
        (128, 2.0, -61, -39.6),
        (128, 3.0, -77, -62.0),
        (64, 1.1, None, -3.6),
        (64, 1.5, None, -12.3),
        (64, 2.0, None, -20.2),
        (64, 3.0, None, -31.3),
        (32, 2.0, None, -10.4),
    ],
)
def test_the_risks_are_those_of_the_table(dimension: int, factor: float, volume: float | None, sphere: float) -> None:
    # SPEC 4.4: -d log10(1 + s), and log10 of 0.5 I_{1/s^2}((d - 1)/2, 1/2).
    if volume is not None:
        assert proxies.log10_risk_volume(dimension, factor) == pytest.approx(volume, abs=0.5)
    assert proxies.log10_risk_sphere(dimension, factor) == pytest.approx(sphere, abs=0.051)


def test_the_risk_on_a_sphere_in_three_dimensions_is_the_area_of_a_cap() -> None:
    # In R^3 the cap of half-angle t has (1 - cos t) / 2 of the area; sin t = 1/2: (1 - sqrt(3)/2) / 2 = 0.0669873.
    assert 10 ** proxies.log10_risk_sphere(3, 2.0) == pytest.approx((1 - math.sqrt(0.75)) / 2)
    assert 10 ** proxies.log10_risk_sphere(3, 1.0) == pytest.approx(0.5)


def test_the_best_guess_hits_as_often_as_the_formula_says() -> None:
    # d = 3, s = 1.5: sin t = 2/3, cos t = sqrt(5)/3, chance (1 - sqrt(5)/3) / 2 = 0.1273; guess sqrt(s^2 - 1) R from A.
    offsets = np.stack([proxies.direction(3, secrets_of(seed)) for seed in range(20_000)]) * 1.5
    guess = np.array([math.sqrt(1.5**2 - 1), 0.0, 0.0])
    hits = (np.linalg.norm(offsets - guess, axis=1) <= 1.0).mean()
    assert hits == pytest.approx(10 ** proxies.log10_risk_sphere(3, 1.5), abs=0.01)


def store(**age: int) -> ProxyStore:
    """Users by age of their proxy, :data:`UNPUBLISHED` for none; A = (place + 1, 0), M = 0.1 (place + 1)."""
    result = proxies.empty(2)
    for user in age:
        result = proxies.admit(result, user, "")
    places = np.arange(1, len(age) + 1, dtype=np.float32)
    live = np.array([age[user] for user in result.users]) != proxies.UNPUBLISHED
    return ProxyStore(
        result.users,
        result.persons,
        np.stack([places, np.zeros_like(places)], axis=1) * live[:, None],
        0.1 * places * live,
        np.array([age[user] for user in result.users], np.int64),
    )


def relayed_to(state: ProxyStore, user: str, most: int = 0, seed: int = 0) -> list[float]:
    centres, margins = proxies.relay(state, user, most=most, rng=np.random.default_rng(seed))
    assert centres.dtype == margins.dtype == np.float32
    np.testing.assert_allclose(margins, 0.1 * centres[:, 0], rtol=1e-6)
    return centres[:, 0].tolist()


def test_a_device_is_sent_everybody_elses_proxy_and_a_row_to_fill_up() -> None:
    state = store(a=0, b=3, c=proxies.UNPUBLISHED, d=1)
    assert sorted(relayed_to(state, "a")) == [0.0, 2.0, 4.0]
    assert sorted(relayed_to(state, "c")) == [1.0, 2.0, 4.0]
    with pytest.raises(UpdateRejectedError):
        relayed_to(state, "stranger")


def test_the_order_is_drawn_anew() -> None:
    state = store(**dict.fromkeys("abcdefgh", 0))
    orders = {tuple(relayed_to(state, "a", seed=seed)[:7]) for seed in range(10)}
    assert len(orders) == 10
    assert relayed_to(state, "a", seed=3) == relayed_to(state, "a", seed=3)


def test_a_subset_is_drawn_without_replacement_and_clamped() -> None:
    state = store(**dict.fromkeys("abcde", 0))
    for seed, most in itertools.product(range(5), (1, 3, 4)):
        got = relayed_to(state, "a", most, seed)
        assert len(got) == len(set(got)) == most
        assert 1.0 not in got
        assert 0.0 not in got
    assert sorted(relayed_to(state, "a", 99)) == sorted(relayed_to(state, "a")) == [0.0, 2.0, 3.0, 4.0, 5.0]


def test_linked_identities_of_one_person_never_push_each_other_and_push_others_once() -> None:
    state = store(a=0, b=2, c=1, d=0)
    for user in ("b", "c"):
        state = proxies.admit(state, user, "one person")
    assert sorted(relayed_to(state, "b")) == [0.0, 0.0, 1.0, 4.0]
    assert sorted(relayed_to(state, "c")) == [0.0, 0.0, 1.0, 4.0]
    assert sorted(relayed_to(state, "a")) == [0.0, 0.0, 3.0, 4.0]  # c's is the younger


def test_proxies_age_are_refreshed_and_expire() -> None:
    state = store(a=0, b=19, c=20, d=proxies.UNPUBLISHED)
    new = np.array([9.0, 9.0], np.float32)
    state = proxies.refresh(state, {"a": (new, 0.5), "gone": (new, 0.5)}, age_max=20)
    assert state.age.tolist() == [0, 20, proxies.UNPUBLISHED, proxies.UNPUBLISHED]
    np.testing.assert_array_equal(state.centres, [[9, 9], [2, 0], [0, 0], [0, 0]])
    np.testing.assert_allclose(state.margins, [0.5, 0.2, 0.0, 0.0])
    assert (state.rounds, state.expired) == (1, 1)
    assert proxies.refresh(state, {}, age_max=20).age.tolist() == [1] + 3 * [proxies.UNPUBLISHED]


def test_removed_leaves_no_trace_and_a_second_admission_is_the_same_user() -> None:
    before = store(a=0, c=3)
    joined = proxies.admit(before, "b", "link")
    assert joined.users == ("a", "b", "c")
    assert joined.persons == ("", "link", "")
    assert joined.age.tolist() == [0, proxies.UNPUBLISHED, 3]
    assert proxies.admit(joined, "b", "other").persons == ("", "other", "")
    after = proxies.remove(joined, "b")
    for one, other in ((after.centres, before.centres), (after.margins, before.margins), (after.age, before.age)):
        np.testing.assert_array_equal(one, other)
    assert (after.users, after.persons) == (before.users, before.persons)
    assert proxies.remove(after, "nobody") is after


@pytest.mark.parametrize(
    ("centre", "margin"),
    [
        ([np.nan, 0.0], 1.0),
        ([np.inf, 0.0], 1.0),
        ([1.0, 0.0, 0.0], 1.0),
        ([0.0, 0.0], 0.0),
        ([0.0, 0.0], -1.0),
        ([0.0, 0.0], float("nan")),
        ([0.0, 0.0], 8.1),
        ([2.1, 0.0], 1.0),  # farther than 1 + M from the origin: holds no unit vector
    ],
)
def test_a_proxy_that_no_device_makes_is_refused(centre: list[float], margin: float) -> None:
    with pytest.raises(UpdateRejectedError):
        proxies.check_proxy(np.array(centre, np.float32), margin, 2, longest=8.0)


def test_a_proxy_that_a_device_makes_is_accepted() -> None:
    proxies.check_proxy(np.array([1.9, 0.0], np.float32), 1.0, 2, longest=8.0)
    proxies.check_proxy(np.zeros(2, np.float32), 8.0, 2, longest=8.0)


def test_a_store_that_does_not_agree_with_itself_is_refused() -> None:
    good = store(a=0, b=0)
    for wrong in (
        {"users": ("b", "a")},
        {"persons": ("",)},
        {"margins": np.zeros(3, np.float32)},
        {"age": np.zeros(1, np.int64)},
        {"centres": np.zeros((3, 2), np.float32)},
    ):
        fields = {name: getattr(good, name) for name in ("users", "persons", "centres", "margins", "age")} | wrong
        with pytest.raises(ValueError, match=r"proxy store|do not agree"):
            ProxyStore(**fields)
