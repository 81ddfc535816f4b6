"""How far one device can move the model: by its share of the announced norm, whatever it sends, from round 1 on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.arrays import Float32
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation import aggregation, clipping, optimisers
from uvsdk.federation.guards import LONGEST, MOST_SAMPLES, DeltaCheck, check_samples
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.round import Update, weigh
from uvsdk.federation.strategy import Contribution

CONFIG = TrainingConfig("d", "voice", "ge2e", "fedaws")
P = 400
START = np.full(P, 0.5, np.float32)  # norm 10
HONEST = 19


@dataclass(frozen=True)
class Whole:
    delta: Float32

    def chunks(self) -> Iterator[Float32]:
        yield self.delta


@dataclass
class Server:
    """What a server does with a round's deltas, by its own functions."""

    config: TrainingConfig = CONFIG
    theta: Float32 = None  # type: ignore[assignment]
    medians: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        self.theta = START.copy()
        self.state = optimisers.initial(P, self.config)

    @property
    def announced(self) -> float:
        return clipping.announced_norm(clipping.of_start(START), self.medians, config=self.config)

    def round(self, deltas: list[Float32], samples: list[int] | None = None) -> None:
        announced, norms, taken = self.announced, [], []
        for delta in deltas:
            check = DeltaCheck(P)
            try:
                check.add(delta)
                norms.append(check.finish())
            except UpdateRejectedError:
                continue
            taken.append(Whole(delta))
        counts = [1] * len(taken) if samples is None else samples[: len(taken)]
        updates = [Update(Contribution("", count, None), norm) for count, norm in zip(counts, norms, strict=True)]
        mean = aggregation.weighted_mean(taken, weigh(updates, announced, self.config), P)
        self.theta, self.state = optimisers.step(self.theta, mean, self.state, self.config)
        median = clipping.round_median(norms, announced)
        self.medians += () if median is None else (median,)


def honest(rng: np.random.Generator, norm: float = 0.1) -> list[Float32]:
    rows = rng.standard_normal((HONEST, P))
    rows *= norm * rng.uniform(0.5, 2.0, (HONEST, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    return list(rows.astype(np.float32))


def poison(kind: str, rng: np.random.Generator, others: list[Float32]) -> Float32:
    direction = np.ones(P, np.float32) / np.float32(math.sqrt(P))
    match kind:
        case "10x":
            return np.float32(1.0) * direction
        case "1000x":
            return np.float32(100.0) * direction
        case "huge":
            return np.float32(1e10) * direction
        case "largest":
            return np.full(P, 3e38, np.float32)
        case "flipped":
            return np.float32(-1000.0) * np.sum(others, axis=0, dtype=np.float32)
        case "infinite":
            return np.full(P, np.inf, np.float32)
        case _:
            return np.full(P, np.nan, np.float32)


KINDS = ("10x", "1000x", "huge", "largest", "flipped", "infinite", "nan")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [True, False])
def test_one_device_among_nineteen_moves_the_model_by_its_share_of_the_announced_norm(kind: str, first: bool) -> None:
    rng = np.random.default_rng(1)
    server, without = Server(), Server()
    if not first:
        for one in (server, without):
            one.round(honest(np.random.default_rng(2)))
    others, before = honest(rng), server.theta.copy()
    announced = server.announced
    # 1,000 samples are claimed; an update's own number of samples weighs nothing.
    server.round([*others, poison(kind, rng, others)])
    without.round(others)
    refused = kind in ("largest", "infinite", "nan")
    share = 0.0 if refused else 1 / (HONEST + 1)
    of_others = (without.theta - before) * (1 - share)
    moved = float(np.linalg.norm(server.theta - before - of_others))
    assert moved <= share * announced * (1 + 1e-3) + 1e-5
    if not first:
        assert announced <= 3 * 0.2 + 1e-6  # three times what an honest device sends at most


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_stays_bounded_over_fifty_rounds(kind: str) -> None:
    rng = np.random.default_rng(3)
    server = Server()
    for _ in range(50):
        others = honest(rng)
        server.round([*others, poison(kind, rng, others)])
    # A twentieth of the absolute norm of 10 and of 49 times three medians of at most .2; and what the others sent.
    assert np.linalg.norm(server.theta) <= 10 + (10 + 49 * 0.6) / 20 + 50 * 0.2
    assert np.linalg.norm(server.theta) < 15


@pytest.mark.parametrize("done", [HONEST, HONEST - 1, HONEST - 2, 10])
def test_one_device_does_not_move_the_median_where_the_others_are_done(done: int) -> None:
    """Those that have learned send 0: then a single other norm must not be taken for the cohort's."""
    rng = np.random.default_rng(4)
    server = Server()
    server.round(honest(rng))
    limit = server.announced
    for _ in range(30):
        others = honest(rng)
        for row in others[:done]:
            row[:] = 0
        server.round([*others, poison("huge", rng, others)])
        assert server.announced <= max(limit, 3 * 0.2 + 1e-6)
    assert np.linalg.norm(server.theta) < 20


@given(seed=st.integers(0, 2**32 - 1), honest_devices=st.integers(2, 30), exponent=st.integers(-30, 30))
def test_a_median_lies_among_what_honest_devices_sent(seed: int, honest_devices: int, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    norms, clip_norm = rng.uniform(0.01, 10.0, honest_devices).tolist(), float(rng.uniform(0.001, 20.0))
    median = clipping.round_median([*norms, 10.0**exponent], clip_norm)
    counted = [min(norm, clip_norm) for norm in norms]
    assert median is not None
    assert min(counted) * (1 - 1e-12) <= median <= max(counted) * (1 + 1e-12)


def test_a_device_cannot_starve_the_others_with_tiny_updates() -> None:
    assert clipping.round_median([0.1, 0.2, 1e-12], 5.0) == 0.1
    # Nor do many rounds of hardly anything keep out whoever joins then.
    assert clipping.announced_norm(10.0, [1e-9] * 20, config=CONFIG) == pytest.approx(0.01)


def test_a_cohort_whose_updates_grow_is_followed() -> None:
    medians, seen = [0.1] * 20, []
    for _ in range(4):
        announced = clipping.announced_norm(10.0, medians, config=CONFIG)
        seen.append(announced)
        medians.append(clipping.round_median([5.0] * 20, announced) or 0.0)
    np.testing.assert_allclose(seen, [0.3, 0.9, 2.7, 8.1])


def test_medians_of_twenty_rounds_are_looked_at() -> None:
    assert clipping.announced_norm(10.0, [1.0, *[0.1] * 19], config=CONFIG) == pytest.approx(3.0)
    assert clipping.announced_norm(10.0, [1.0, *[0.1] * 20], config=CONFIG) == pytest.approx(0.3)


def test_the_absolute_norm_by_hand() -> None:
    assert clipping.absolute_norm(10.0, CONFIG) == 10.0
    assert clipping.absolute_norm(0.0, CONFIG) == 1.0
    assert clipping.absolute_norm(math.nan, CONFIG) == 1.0
    assert clipping.absolute_norm(10.0, replace(CONFIG, clip_norm=0.5)) == 0.5
    # two steps of 0.1 along a gradient of at most 3
    clipped = replace(CONFIG, gradient_clip=3.0, local_steps=2)
    assert clipping.absolute_norm(10.0, clipped) == pytest.approx(0.6)
    assert clipping.absolute_norm(10.0, replace(clipped, control_variates=True)) == pytest.approx(1.8)
    assert clipping.absolute_norm(10.0, replace(clipped, gradient_clip=1e9)) == 10.0
    assert clipping.absolute_norm(10.0, replace(CONFIG, clipping="off")) == math.inf
    assert clipping.announced_norm(10.0, [0.1], config=replace(CONFIG, clipping="fixed")) == 10.0


def test_what_the_device_clips_the_server_leaves_alone() -> None:
    rng = np.random.default_rng(5)
    for norm in (0.5, 1.0, 1.0001, 7.0, 1e9):
        delta = rng.standard_normal(3_000_000).astype(np.float32)
        delta *= np.float32(norm / clipping.norm_of(delta))
        sent = clipping.clip(delta, 1.0)
        assert clipping.scale_of(clipping.norm_of(sent), 1.0) == 1.0
        assert clipping.norm_of(sent) == pytest.approx(min(norm, 1.0), rel=1e-5)
    assert clipping.clip(np.zeros(3, np.float32), 1.0).tolist() == [0, 0, 0]


def test_uniform_is_the_default_and_the_digest_covers_it() -> None:
    assert CONFIG.weighting == "uniform"
    np.testing.assert_allclose(aggregation.sample_weights([1] * HONEST + [1000], CONFIG), 1 / (HONEST + 1))
    digests = {
        replace(CONFIG, **change).digest()  # type: ignore[arg-type]
        for change in ({}, {"weighting": "samples"}, {"clipping": "fixed"}, {"clip_norm": 2.0}, {"clipping": "off"})
    }
    assert len(digests) == 5
    assert TrainingConfig.from_json(replace(CONFIG, clip_norm=2.0).to_json()).clip_norm == 2.0


def test_a_digest_that_was_approved_before_there_was_clipping_stays() -> None:
    assert not {"clipping", "clip_norm"} & set(json.loads(CONFIG.to_json()))


@pytest.mark.parametrize("change", [{"clipping": "some"}, {"clip_norm": -1.0}, {"clip_norm": math.inf}])
def test_settings_outside_their_range(change: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        replace(CONFIG, **change)  # type: ignore[arg-type]


def test_a_server_does_not_do_without() -> None:
    clipping.check_bounded(CONFIG)
    with pytest.raises(SettingsError, match="one device could"):
        clipping.check_bounded(replace(CONFIG, clipping="off"))


def test_what_no_device_can_send() -> None:
    check = DeltaCheck(1)
    check.add(np.array([2 * LONGEST], np.float32))
    with pytest.raises(UpdateRejectedError, match="damaged"):
        check.finish()
    for samples in (0, -1, MOST_SAMPLES + 1, 10**30):
        with pytest.raises(UpdateRejectedError):
            check_samples(samples)
