"""FedUV's codes and the attack on their secrecy (SPEC 6.1, 6.6, 13.9), on random instances."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.arrays import Float64, UInt8
from uvsdk.federation.algorithms.feduv import codewords
from uvsdk.federation.algorithms.feduv.codeword_recovery import independent_components, recover

FEATURES = 64
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def code() -> codewords.Code:
    return codewords.code(255, 99)


def test_any_two_of_ten_thousand_codewords_lie_at_least_d_min_apart(code: codewords.Code) -> None:
    rng = np.random.default_rng(0)
    words = code.encode(rng.integers(0, 2, (10_000, code.message_bits), dtype=np.uint8)).astype(np.float32)
    # |a| + |b| - 2 a.b for bits: all pairs of each block of 500, and each word against the one before it.
    weights = words.sum(axis=1)
    for start in range(0, len(words), 500):
        part, weight = words[start : start + 500], weights[start : start + 500]
        distances = weight[:, None] + weight[None] - 2 * part @ part.T
        np.fill_diagonal(distances, code.length)
        assert distances.min() >= code.distance
    # The code is linear, so the weight of a difference is the weight of a codeword: near ones are tried on purpose.
    near = code.encode(np.eye(code.message_bits, dtype=np.uint8)).sum(axis=1)
    assert near.min() >= code.distance


@pytest.mark.parametrize(("length", "bits"), codewords.MESSAGE_BITS.items())
@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_every_pattern_of_so_many_flips_is_mended_and_nothing_is_said_of_words_that_are_farther(
    length: int, bits: int, seed: int
) -> None:
    code, rng = codewords.code(length, bits), np.random.default_rng(seed)
    most = (code.distance - 1) // 2
    messages = rng.integers(0, 2, (most + 12, bits), dtype=np.uint8)
    sent = code.encode(messages)
    flips = np.arange(len(sent))  # none, one, ... and eleven more than can be mended
    received = sent.copy()
    for row, count in zip(received, flips, strict=True):
        row[rng.permutation(length)[:count]] ^= 1
    decoded, found = code.decode(received)
    assert found[flips <= most].all()
    np.testing.assert_array_equal(decoded[flips <= most], messages[flips <= most])
    # What is found for the others is a codeword, so near to what was received.
    others = code.encode(decoded[found]) != received[found]
    assert (others.sum(axis=1) <= most).all()


@given(one=st.integers(0, 2**32 - 1), other=st.integers(0, 2**32 - 1), secret=st.binary(min_size=9, max_size=9))
@settings(max_examples=50, deadline=None)
def test_distinct_numbers_are_distinct_codewords_whatever_the_secrets(
    one: int, other: int, secret: bytes, code: codewords.Code
) -> None:
    first, second = code.vector(code.message(one, secret)), code.vector(code.message(other, secret))
    assert codewords.number_of(code.message(one, secret)) == one
    if one == other:
        np.testing.assert_array_equal(first, second)
    else:
        assert float(first @ second) <= 1 - 2 * code.distance / code.length + 1e-5


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_the_loss_is_0_only_at_the_codeword(seed: int, code: codewords.Code) -> None:
    rng = np.random.default_rng(seed)
    vector = code.vector(rng.integers(0, 2, code.message_bits, dtype=np.uint8)).astype(np.float64)
    other = vector + rng.choice([1e-3, 0.1, 1.0]) * rng.standard_normal(code.length) / code.length**0.5
    other /= np.linalg.norm(other)
    assert 1 - vector @ vector == pytest.approx(0.0, abs=1e-6)
    # 1 - cos = |difference|^2 / 2
    assert 1 - vector @ other == pytest.approx(float(((vector - other) ** 2).sum()) / 2, abs=1e-6)


def head_change(
    code: codewords.Code, rng: np.random.Generator, users: int, *, features: int = FEATURES, batch: int = 8
) -> tuple[Float64, dict[int, UInt8]]:
    """The sum over users of minus the head's gradient after one step at a random head, and their messages.

    Features are those of a ReLU, with a part common to all, one of the user's, and one of the sample's.
    """
    head = rng.standard_normal((code.length, features)) / features**0.5
    common = rng.standard_normal(features)
    total, messages = np.zeros_like(head), {}
    for number in range(users):
        messages[number] = code.message(number, rng.bytes(9))
        signs = 2.0 * code.encode(messages[number]) - 1.0
        own = common + rng.standard_normal(features)
        z = np.maximum(0.0, own + 0.5 * rng.standard_normal((batch, features)))
        a = z @ head.T
        lengths = np.linalg.norm(a, axis=1, keepdims=True)
        u = a / lengths
        slopes = -(signs - (u @ signs)[:, None] * u) / lengths / code.length**0.5
        total -= slopes.T @ z / batch
    return total, messages


def recovered(change: Float64, messages: dict[int, UInt8], code: codewords.Code, restarts: int = 3) -> int:
    users = len(messages)
    found = recover(change, code, messages, np.random.default_rng(1), users=users, restarts=restarts)
    assert all(np.array_equal(found[number], messages[number]) for number in found)
    return len(found)


@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_a_plain_update_gives_its_codeword_away(seed: int, code: codewords.Code) -> None:
    change, messages = head_change(code, np.random.default_rng(seed), 1)
    assert recovered(change, messages, code) == 1


@pytest.mark.parametrize("users", [2, 5, 10])
def test_a_sum_over_ten_users_gives_codewords_away(users: int, code: codewords.Code) -> None:
    total = 0
    for seed in range(3):
        change, messages = head_change(code, np.random.default_rng(seed), users)
        total += recovered(change, messages, code)
    assert total >= 0.9 * 3 * users


def test_a_cohort_of_twice_the_heads_inputs_with_noise_gives_nothing_away(code: codewords.Code) -> None:
    features = 32
    change, messages = head_change(code, np.random.default_rng(0), 2 * features, features=features)
    # Noise of user-level privacy at z = 1: as long, in each entry, as one user's whole change.
    single, _ = head_change(code, np.random.default_rng(0), 1, features=features)
    noise = np.random.default_rng(2).standard_normal(change.shape) * np.linalg.norm(single)
    assert recovered(change + noise, messages, code, restarts=1) == 0
    assert recovered(change, messages, code, restarts=1) == 0  # already without it


def test_noise_alone_hides_a_single_codeword(code: codewords.Code) -> None:
    change, messages = head_change(code, np.random.default_rng(0), 1)
    noise = np.random.default_rng(2).standard_normal(change.shape) * np.linalg.norm(change)
    assert recovered(change + noise, messages, code) == 0


def test_a_number_that_nobody_has_is_not_taken_for_one(code: codewords.Code) -> None:
    change, _ = head_change(code, np.random.default_rng(0), 1)
    assert recover(change, code, {5, 6}, np.random.default_rng(0)) == {}
    with pytest.raises(ValueError, match="255 rows"):
        recover(change[:-1], code, {0}, np.random.default_rng(0))


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_binary_sources_are_found_up_to_order_and_sign(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sources = rng.choice([-1.0, 1.0], (3, 2000))
    mixed = rng.standard_normal((3, 3)) @ sources
    basis = np.linalg.svd(mixed, full_matrices=False)[2] * np.sqrt(2000)
    found = independent_components(basis, rng)
    agreement = np.abs(np.sign(found) @ sources.T) / 2000
    assert (agreement.max(axis=0) > 0.95).all()
    assert (agreement.max(axis=1) > 0.95).all()
