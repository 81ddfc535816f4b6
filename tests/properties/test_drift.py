"""What holds many local steps together, whatever the method: SCAFFOLD, FedProx, the server's schedule (SPEC 1.3-1.4).

The clients of the first part are quadratics, f_i(x) = sum over coordinates of a_i (x - b_i)^2 / 2, whose optimum is
known: x = sum a_i b_i / sum a_i. They take their shift from, and leave their variate to, the very code that a device
runs.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.federated_run import manifest_of
from uvsdk.arrays import Float32
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation import aggregation, controls, optimisers
from uvsdk.federation.algorithms.feduv.payload import Task as NumberTask
from uvsdk.federation.algorithms.fixed.payload import Task
from uvsdk.federation.messages import OPTIMISERS, TrainingConfig
from uvsdk.federation.strategy import Memory
from uvsdk.records import codec
from uvsdk.training import backbones
from uvsdk.training.loop import LocalTrainer, proximal_term
from uvsdk.training.participation import TrainingJob

BACKBONE = "digits-cnn"
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Work:
    """What :mod:`uvsdk.federation.controls` reads of a job."""

    config: TrainingConfig
    theta: Float32
    memory: Memory
    control: Float32 | None


def configured(**values: object) -> TrainingConfig:
    base: dict[str, object] = {"learning_rate": 0.1, "local_steps": 10, "weighting": "uniform"}
    return TrainingConfig("d", "handwriting", BACKBONE, "fixed", **(base | values))  # type: ignore[arg-type]


class Quadratics:
    """Clients with curvatures a (m, d) and centres b (m, d), a server, and rounds between them."""

    def __init__(self, config: TrainingConfig, seed: int, clients: int = 5, dimension: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.config = config
        self.curvatures = rng.uniform(0.2, 3.0, (clients, dimension)).astype(np.float32)
        self.centres = rng.standard_normal((clients, dimension)).astype(np.float32)
        self.theta = rng.standard_normal(dimension).astype(np.float32)
        self.memories: list[Memory] = [{} for _ in range(clients)]
        self.optimiser = optimisers.initial(dimension, config)
        self.samples = rng.integers(1, 20, clients)

    @property
    def optimum(self) -> Float32:
        weights = aggregation.sample_weights(self.samples.tolist(), self.config)[:, None] * self.curvatures
        return np.asarray((weights * self.centres).sum(axis=0) / weights.sum(axis=0), np.float32)

    def variates(self) -> Float32:
        none = np.zeros_like(self.theta)
        return np.stack([np.asarray(memory.get(controls.KEPT, none)) for memory in self.memories])

    def local(self, client: int) -> Float32:
        control = self.optimiser.control if self.config.control_variates else None
        work = Work(self.config, self.theta, self.memories[client], control)
        memory, shift = controls.split(work)
        x = self.theta.copy()
        for _ in range(self.config.local_steps):
            slope = self.curvatures[client] * (x - self.centres[client])
            x = x - np.float32(self.config.learning_rate) * (slope if shift is None else slope + shift)
        self.memories[client] = controls.join(memory, shift, x - self.theta, work)
        return x - self.theta

    def round(self, cohort: list[int] | None = None, *, dropped: bool = False) -> None:
        """One round; a ``dropped`` one is trained by the devices and then aborted by the server."""
        chosen = list(range(len(self.memories))) if cohort is None else cohort
        deltas = np.stack([self.local(client) for client in chosen])
        if dropped:
            return
        counts = self.samples[chosen].tolist()
        weights = aggregation.sample_weights(counts, self.config)
        share = aggregation.weight_share(counts, self.samples.tolist(), self.config)
        mean = np.asarray(weights @ deltas, np.float32)
        self.theta, self.optimiser = optimisers.step(self.theta, mean, self.optimiser, self.config, share=share)


@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_the_servers_variate_is_the_mean_of_the_clients(seed: int) -> None:
    # Full participation and equal weights: m c = sum of c_i after every round.
    federation = Quadratics(configured(control_variates=True), seed)
    for _ in range(5):
        federation.round()
        np.testing.assert_allclose(federation.optimiser.control, federation.variates().mean(axis=0), atol=2e-5)


@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_the_servers_variate_is_the_mean_of_the_clients_when_some_are_away(seed: int) -> None:
    # Those who never came have c_i = 0, and count: c += (1/m) sum over the cohort of (c_i' - c_i).
    federation, rng = Quadratics(configured(control_variates=True), seed), np.random.default_rng(seed)
    for _ in range(5):
        federation.round(sorted(rng.choice(5, 2, replace=False).tolist()))
        np.testing.assert_allclose(federation.optimiser.control, federation.variates().mean(axis=0), atol=2e-5)


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_with_many_local_steps_scaffold_finds_the_optimum_and_fedavg_does_not(seed: int) -> None:
    plain, corrected = (Quadratics(configured(control_variates=on), seed) for on in (False, True))
    for _ in range(150):
        plain.round()
        corrected.round()
    np.testing.assert_allclose(corrected.theta, corrected.optimum, atol=1e-3)
    # FedAvg rests where sum of (1 - (1 - eta a)^K) (b - x) is 0: each client counts by how far K steps take it.
    pull = 1 - (1 - 0.1 * plain.curvatures) ** 10
    np.testing.assert_allclose(plain.theta, (pull * plain.centres).sum(axis=0) / pull.sum(axis=0), atol=1e-3)


@given(seed=seeds)
@settings(max_examples=8, deadline=None)
def test_the_optimum_is_the_weighted_one_however_few_take_part(seed: int) -> None:
    # c is the weighted mean of all c_i as long as it moves by the cohort's part of the weight. Moved by its part of the
    # devices it keeps a bias for ever: on such clients the result then lay up to 0.2 beside the optimum.
    federation = Quadratics(configured(control_variates=True, weighting="samples"), seed)
    rng = np.random.default_rng(seed)
    for _ in range(400):
        federation.round(sorted(rng.choice(5, 2, replace=False).tolist()))
    np.testing.assert_allclose(federation.theta, federation.optimum, atol=3e-3)
    weights = aggregation.sample_weights(federation.samples.tolist(), federation.config)
    np.testing.assert_allclose(federation.optimiser.control, weights @ federation.variates(), atol=1e-3)


@given(seed=seeds)
@settings(max_examples=8, deadline=None)
def test_a_round_that_the_server_dropped_leaves_no_trace(seed: int) -> None:
    # Devices had their updates accepted, and then too few others came: theta and c are what they were.
    kept, disturbed = (Quadratics(configured(control_variates=True), seed) for _ in range(2))
    for number in range(6):
        if number in (0, 3):
            disturbed.round([0, 1, 2], dropped=True)
            disturbed.round([1, 4], dropped=True)  # and once more
        kept.round()
        disturbed.round()
        np.testing.assert_array_equal(disturbed.theta, kept.theta)
        np.testing.assert_array_equal(disturbed.variates(), kept.variates())


def test_fedavg_misses_the_optimum_by_hand() -> None:
    # a = (0.2, 3), b = (0, 1): optimum 3 / 3.2 = 0.9375. pull = (1 - 0.98^10, 1 - 0.7^10) = (0.1829, 0.9718), so
    # FedAvg rests at 0.9718 / 1.1547 = 0.8416.
    federation = Quadratics(configured(), 0, clients=2, dimension=1)
    federation.curvatures = np.array([[0.2], [3.0]], np.float32)
    federation.centres = np.array([[0.0], [1.0]], np.float32)
    for _ in range(60):
        federation.round()
    assert federation.optimum[0] == pytest.approx(0.9375)
    assert federation.theta[0] == pytest.approx(0.8416, abs=1e-3)


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_with_one_local_step_scaffold_is_fedavg_under_full_participation(seed: int) -> None:
    # The shifts c - c_i of all clients cancel in the mean, in every round and not only in the first.
    plain, corrected = (Quadratics(configured(control_variates=on, local_steps=1), seed) for on in (False, True))
    for _ in range(5):
        plain.round()
        corrected.round()
        np.testing.assert_allclose(corrected.theta, plain.theta, atol=1e-5)


def test_at_the_optimum_nothing_moves_once_variates_are_known() -> None:
    # c_i = grad f_i(x*), c = 0: every local step is grad f_i - c_i = 0.
    federation = Quadratics(configured(control_variates=True), 3)
    federation.theta = federation.optimum
    slopes = federation.curvatures * (federation.theta - federation.centres)
    federation.memories = [{controls.KEPT: slope} for slope in slopes]
    before = federation.theta.copy()
    federation.round()
    np.testing.assert_allclose(federation.theta, before, atol=1e-6)


def test_a_variate_of_another_model_is_refused() -> None:
    none = np.zeros(3, np.float32)
    with pytest.raises(UpdateRejectedError, match="control variate"):
        controls.split(Work(configured(control_variates=True), none, {controls.KEPT: np.zeros(4)}, none))


# The device's own loop


def unit_vector(dimension: int) -> Float32:
    row = np.random.default_rng(5).standard_normal(dimension)
    return (row / np.linalg.norm(row)).astype(np.float32)


def job(config: TrainingConfig, **changes: object) -> TrainingJob:
    kind = backbones.get(BACKBONE)
    features = tuple(np.random.default_rng(0).random((6, 8, 8), np.float32))
    theta = backbones.flatten(kind.random(1))
    control = np.zeros_like(theta) if config.control_variates else None
    task = codec.pack(Task(unit_vector(kind.dimension)))
    made = TrainingJob(config, manifest_of(BACKBONE), 1, theta, features, task, {}, control=control)
    return replace(made, **changes)  # type: ignore[arg-type]


def train(of: TrainingJob) -> tuple[Float32, Memory]:
    result = LocalTrainer().train(of, np.random.default_rng(2))
    return result.delta, result.memory


@pytest.mark.parametrize("change", [{"control_variates": True}, {"proximal": 0.7}])
def test_the_first_step_from_nothing_is_fedavgs(change: dict[str, object]) -> None:
    # With zero variates there is no shift, and at theta_t the proximal term has gradient 0.
    plain, _ = train(job(configured(local_steps=1)))
    other, _ = train(job(configured(local_steps=1, **change)))
    np.testing.assert_array_equal(other, plain)


def test_a_device_keeps_its_mean_gradient_as_its_variate() -> None:
    # c_i' = 0 - 0 + (theta_t - theta_i) / (K eta)
    delta, memory = train(job(configured(local_steps=3, control_variates=True)))
    np.testing.assert_allclose(memory[controls.KEPT], -delta / np.float32(0.3), atol=1e-6)


def test_every_local_step_is_shifted_by_c_minus_c_i() -> None:
    # One step: delta = -eta (grad - c_i + c), so against the plain one it differs by -eta (c - c_i).
    config = configured(local_steps=1, control_variates=True)
    plain, _ = train(job(configured(local_steps=1)))
    rng = np.random.default_rng(7)
    control, own = (rng.standard_normal(plain.shape).astype(np.float32) for _ in range(2))
    shifted, memory = train(job(config, control=control, memory={controls.KEPT: own}))
    np.testing.assert_allclose(shifted - plain, -0.1 * (control - own), atol=1e-5)
    # c_i' = c_i - c + grad - c_i + c = grad: the variate is the gradient whatever the shift was.
    np.testing.assert_allclose(memory[controls.KEPT], -plain / np.float32(0.1), atol=2e-5)


def test_the_variate_lies_beside_what_the_algorithm_keeps() -> None:
    name = f"{BACKBONE}+255"
    theta = backbones.flatten(backbones.get(name).random(1))
    config = replace(configured(control_variates=True, local_steps=1), algorithm="feduv", backbone=name)
    features = tuple(np.random.default_rng(0).random((3, 8, 8), np.float32))
    of = TrainingJob(
        config, manifest_of(name), 1, theta, features, codec.pack(NumberTask(3, 255, 99)), {}, control=theta * 0
    )
    _, memory = train(of)
    assert {key for key in memory if not key.startswith(controls.KEPT)} == {"message", "secret", "template"}
    assert controls.KEPT in memory
    again, kept = train(replace(of, memory=memory))
    np.testing.assert_array_equal(kept["secret"], memory["secret"])
    assert np.isfinite(again).all()


def test_a_job_without_the_servers_variate_is_refused() -> None:
    with pytest.raises(UpdateRejectedError, match="control variates"):
        job(configured(control_variates=True), control=None)


@given(seed=seeds, weight=st.floats(1e-3, 10))
@settings(max_examples=20, deadline=None)
def test_the_proximal_term_pulls_straight_back(seed: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    trunk = [torch.tensor(rng.standard_normal(shape), requires_grad=True) for shape in ((2, 3), (4,))]
    anchors = [torch.tensor(rng.standard_normal(value.shape)) for value in trunk]
    proximal_term(trunk, anchors, weight).backward()
    for value, anchor in zip(trunk, anchors, strict=True):
        torch.testing.assert_close(value.grad, weight * (value.detach() - anchor))


def test_a_strong_proximal_term_and_the_variates_go_together() -> None:
    free, _ = train(job(configured()))
    held, memory = train(job(configured(proximal=5.0, control_variates=True)))
    assert np.linalg.norm(held) < np.linalg.norm(free)
    assert np.isfinite(np.asarray(memory[controls.KEPT], np.float64)).all()


# The server's schedule and optimisers


def test_the_step_size_rises_rests_and_falls_by_hand() -> None:
    config = configured(rounds=10, warmup_rounds=2, cooldown_rounds=4, server_learning_rate=2.0)
    rates = [optimisers.learning_rate(steps, config) for steps in range(12)]
    # after the last round training rests; a step made all the same takes the last size
    assert rates == pytest.approx([1, 2, 2, 2, 2, 2, 2, 1.5, 1, 0.5, 0.5, 0.5])


@given(rounds=st.integers(1, 50), rise=st.integers(0, 60), fall=st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_the_step_size_is_never_0_nor_above_its_setting(rounds: int, rise: int, fall: int) -> None:
    config = configured(rounds=rounds, warmup_rounds=rise, cooldown_rounds=fall, server_learning_rate=0.3)
    rates = [optimisers.learning_rate(steps, config) for steps in range(rounds)]
    assert all(0 < rate <= 0.3 for rate in rates)
    top = int(np.argmax(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_the_variate_takes_no_notice_of_the_servers_optimiser(optimiser: str) -> None:
    # c += share (-c - D / (K eta)) with c = 0, D = 2, K eta = 1 and half of the clients: -1.
    config = configured(optimiser=optimiser, control_variates=True, server_learning_rate=0.01)
    state = optimisers.initial(1, config)
    _, after = optimisers.step(np.zeros(1, np.float32), np.array([2.0], np.float32), state, config, share=0.5)
    assert after.control[0] == pytest.approx(-1.0)
    # again, with everybody and D = 0: c goes to the mean gradient, 0
    _, last = optimisers.step(np.zeros(1, np.float32), np.zeros(1, np.float32), after, config)
    assert last.control[0] == pytest.approx(0.0)


def test_variates_switched_on_in_the_middle_start_from_0() -> None:
    config = configured(optimiser="momentum")
    state = optimisers.initial(2, config)
    assert state.control.shape == (0,)
    switched = replace(config, control_variates=True)
    _, after = optimisers.step(np.zeros(2, np.float32), np.ones(2, np.float32), state, switched)
    np.testing.assert_allclose(after.control, [-1, -1])
    _, off = optimisers.step(np.zeros(2, np.float32), np.ones(2, np.float32), after, config)
    np.testing.assert_allclose(off.control, [-1, -1])  # kept, unused
