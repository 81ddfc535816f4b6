"""The simulation engine: three ways to train the same devices, and rounds that production would have made."""

import dataclasses
import hashlib
import platform
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.federated_run import manifest_of
from uvsdk.errors import EnrolmentError, SettingsError, UpdateRejectedError, WireError
from uvsdk.federation import aggregation, algorithms, controls, optimisers, streams
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records import codec
from uvsdk.simulation import Engine, Prepared, Simulation, Tensors, groups
from uvsdk.simulation.allocation import keep_freed_memory
from uvsdk.simulation.seeds import SeededSecret
from uvsdk.training import backbones
from uvsdk.training.loop import LocalTrainer
from uvsdk.training.participation import TrainingJob

NAMES = algorithms.names()
BATCHINGS = ("loop", "stacked", "large")
# Each device's sum and the order of additions differ: a few units in the last place of numbers near 1.
TOLERANCE = 2e-6


def config(algorithm: str = "fedaws", **values: object) -> TrainingConfig:
    # Clipped devices need a trunk of their own each, so that no large batch serves them.
    base = {"batch_size": 5, "rounds": 2, "seed": 3, "learning_rate": 0.1, "clipping": "off"}
    return TrainingConfig("lab", "tensors", "custom", algorithm, **(base | values))  # type: ignore[arg-type]


def trunk(algorithm: str = "fedaws", seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 255 if algorithm == "feduv" else 15))


def devices(count: int = 6) -> dict[str, Tensor]:
    """Devices of 3 to 5 samples, each around a point of its own."""
    draw = torch.Generator().manual_seed(0)
    return {
        f"device {place}": torch.randn(3 + place % 3, 8, generator=draw) + torch.randn(8, generator=draw)
        for place in range(count)
    }


def run(of: TrainingConfig, batching: str, module: nn.Module | None = None, **engine: object) -> Simulation:
    made = Simulation(
        of,
        module or trunk(of.algorithm),
        Tensors(devices()),
        Engine(batching=batching, **engine),  # type: ignore[arg-type]
    )
    made.run()
    return made


def assert_equal(found: Simulation, expected: Simulation, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(found.theta, expected.theta, atol=tolerance)
    names, rows = expected.class_matrix()
    assert found.class_matrix()[0] == names
    np.testing.assert_allclose(found.class_matrix()[1], rows, atol=10 * tolerance)
    assert {user: set(kept) for user, kept in found.memories.items()} == {
        user: set(kept) for user, kept in expected.memories.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_one_step_is_the_same_in_a_loop_stacked_and_as_one_large_batch(name: str) -> None:
    loop, stacked, large = (run(config(name), batching) for batching in BATCHINGS)
    assert_equal(stacked, loop)
    assert_equal(large, loop)
    assert not np.array_equal(loop.theta, backbones.flatten(trunk(name)))


@pytest.mark.parametrize("name", NAMES)
def test_several_steps_with_every_kind_of_drift_control_are_the_same_stacked(name: str) -> None:
    of = config(name, local_steps=3, proximal=0.5, gradient_clip=0.3, control_variates=True, optimiser="momentum")
    loop, stacked = (run(of, batching) for batching in ("loop", "stacked"))
    assert_equal(stacked, loop, 1e-5)
    for user, kept in loop.memories.items():
        np.testing.assert_allclose(stacked.memories[user][controls.KEPT], kept[controls.KEPT], atol=1e-4)
    np.testing.assert_allclose(stacked.optimiser.control, loop.optimiser.control, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_clipped_devices_are_the_same_stacked_and_none_is_longer_than_announced(name: str) -> None:
    of = config(name, rounds=4, local_steps=2, clipping="median", clip_norm=0.02, control_variates=True)
    loop, stacked = (run(of, batching) for batching in ("loop", "stacked"))
    assert_equal(stacked, loop, 1e-5)
    np.testing.assert_allclose(stacked.medians, loop.medians, rtol=1e-4)
    for user, kept in loop.memories.items():
        np.testing.assert_allclose(stacked.memories[user][controls.KEPT], kept[controls.KEPT], atol=1e-4)
    # c is the mean of the c_i, which are made of what was sent (SPEC 1.4).
    variates = [kept[controls.KEPT] for kept in loop.memories.values()]
    np.testing.assert_allclose(loop.optimiser.control, np.mean(variates, axis=0), atol=1e-5)
    assert all(median <= 0.02 for median in loop.medians)
    # Plain averaging of updates no longer than 0.02 moves theta by no more than that in a round.
    assert np.linalg.norm(loop.theta - backbones.flatten(trunk(name))) <= 4 * 0.02 * (1 + 1e-4)


def test_what_was_announced_survives_a_checkpoint(tmp_path: Path) -> None:
    of = config(rounds=4, clipping="median")
    whole = run(of, "stacked")
    half = Simulation(of, trunk(), Tensors(devices()), Engine(batching="stacked"))
    half.run(2)
    half.save(tmp_path / "half")
    rest = Simulation.restore(tmp_path / "half", trunk(seed=5), Tensors(devices()), engine=Engine(batching="stacked"))
    rest.run()
    assert (rest.start_norm, rest.medians) == (whole.start_norm, whole.medians)
    assert len(whole.medians) == 4
    assert rest.theta.tobytes() == whole.theta.tobytes()


def test_one_round_is_one_step_of_gradient_descent_on_the_weighted_loss() -> None:
    # Full batches, fixed rows: theta' = theta - eta * sum_i p_i grad l_i, p_i = n_i / sum n (SPEC 1.2), with
    # l_i the mean over the device's samples; so it is the gradient of the mean loss over all samples.
    rows = {"a": torch.randn(4, 8), "b": torch.randn(4, 8) + 1, "c": torch.randn(4, 8) - 1}
    module = trunk()
    of = config("fixed", rounds=1, batch_size=4, weighting="samples", algorithm_settings={"initialisation": "random"})
    made = Simulation(of, trunk(), Tensors(rows))
    made.run()
    names, vectors = made.class_matrix()
    embeddings = nn.functional.normalize(module(torch.cat([rows[name] for name in names])), dim=1)
    own = torch.from_numpy(vectors).to(torch.float32).repeat_interleave(4, dim=0)
    torch.relu(0.9 - (embeddings * own).sum(1)).square().mean().backward()
    expected = [value.detach() - 0.1 * value.grad for value in module.parameters() if value.grad is not None]
    np.testing.assert_allclose(made.theta, torch.cat([value.ravel() for value in expected]).numpy(), atol=1e-6)


def test_a_loop_gives_the_bits_that_real_devices_and_the_server_give() -> None:
    # The same derivations by hand: the device's own trainer, the server's mean and optimiser.
    draw = np.random.default_rng(0)
    pages = {name: [draw.random((8, 8), np.float32) for _ in range(4)] for name in "abc"}
    manifest = manifest_of("digits-cnn")
    of = TrainingConfig("d", "handwriting", "digits-cnn", "fedaws", rounds=1, seed=9, local_steps=2)
    made = Simulation(of, backbones.get("digits-cnn").random(), Prepared(pages, manifest), Engine(batching="loop"))
    theta = made.theta
    made.run()
    half, settings = made.method.server, made.method.settings
    fresh = Simulation(of, backbones.get("digits-cnn").random(), Prepared(pages, manifest))
    fresh._admit(streams.round_seed(9, 1))
    deltas = []
    for user in "abc":
        task = codec.pack(half.task(fresh.state, user, None, settings, np.random.default_rng(0)))
        job = TrainingJob(of, manifest, 1, theta, tuple(pages[user]), task, {})
        deltas.append(LocalTrainer(secret=SeededSecret(9, user, 1)).train(job, streams.device_stream(9, user, 1)).delta)

    class Whole:
        def __init__(self, delta: np.ndarray) -> None:
            self.chunks = lambda: iter([delta])

    weights = aggregation.sample_weights([4, 4, 4], of)
    mean = aggregation.weighted_mean([Whole(delta) for delta in deltas], weights, len(theta))  # type: ignore[misc]
    expected, _ = optimisers.step(theta, mean, optimisers.initial(len(theta), of), of)
    assert made.theta.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_six_rounds_are_three_and_three_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    of = config(name, rounds=6, cohort_size=4, optimiser="adam", server_learning_rate=0.01, control_variates=True)
    whole = Simulation(of, trunk(name), Tensors(devices()), Engine(batching="stacked"))
    whole.run()
    half = Simulation(of, trunk(name), Tensors(devices()), Engine(batching="stacked"))
    half.run(3)
    half.save(tmp_path / "half")
    rest = Simulation.restore(tmp_path / "half", trunk(name, 5), Tensors(devices()), engine=Engine(batching="stacked"))
    records = rest.run()
    assert [record.round_id for record in records] == [4, 5, 6]
    assert rest.theta.tobytes() == whole.theta.tobytes()
    assert codec.pack(rest.state) == codec.pack(whole.state)
    assert codec.pack(rest.optimiser) == codec.pack(whole.optimiser)
    assert set(rest.memories) == set(whole.memories)
    for user, kept in whole.memories.items():
        for key, value in kept.items():
            np.testing.assert_array_equal(rest.memories[user][key], value)


def test_a_checkpoint_that_is_none_or_of_others(tmp_path: Path) -> None:
    made = Simulation(config(), trunk(), Tensors(devices()))
    made.run(1)
    made.save(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    data = bytearray((tmp_path / "kept").read_bytes())
    data[-1] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(WireError, match="damaged"):
        Simulation.restore(tmp_path / "damaged", trunk(), Tensors(devices()))
    other = codec.pack(dataclasses.make_dataclass("Checkpoint", [("config", str)])("{}"))
    (tmp_path / "of another version").write_bytes(hashlib.sha256(other).digest() + other)
    with pytest.raises(WireError, match="written by another version of uvsdk: go on with that one, or start without"):
        Simulation.restore(tmp_path / "of another version", trunk(), Tensors(devices()))
    with pytest.raises(SettingsError, match="cannot be written"):
        made.save(tmp_path / "no folder" / "kept")
    with pytest.raises(SettingsError, match="cannot be read"):
        Simulation.restore(tmp_path / "nothing", trunk(), Tensors(devices()))
    with pytest.raises(SettingsError, match="6 devices, 5 of the 5"):
        Simulation.restore(tmp_path / "kept", trunk(), Tensors(devices(5)))
    with pytest.raises(UpdateRejectedError, match="parameters"):
        Simulation.restore(tmp_path / "kept", nn.Linear(8, 15), Tensors(devices()))


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_same_seed_gives_the_same_bits_and_another_does_not(batching: str) -> None:
    def module() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.5), nn.Linear(12, 15))

    before = torch.random.get_rng_state()
    one = run(config(), batching, module())
    torch.manual_seed(7)
    assert run(config(), batching, module()).theta.tobytes() == one.theta.tobytes()
    assert run(config(seed=4), batching, module()).theta.tobytes() != one.theta.tobytes()
    assert before.shape == torch.random.get_rng_state().shape


@pytest.mark.parametrize("batching", BATCHINGS)
def test_chunks_change_nothing_but_the_last_bits(batching: str) -> None:
    whole, cut = (run(config("fedss"), batching, chunk_clients=size) for size in (0, 2))
    assert_equal(cut, whole)


def test_a_round_below_the_quorum_changes_nothing() -> None:
    made = Simulation(config(rounds=3), trunk(), Tensors(devices()))
    made.run(1)
    before = (made.theta.tobytes(), codec.pack(made.state), codec.pack(made.optimiser), dict(made.memories))
    made.engine = Engine(failure_rate=1.0)
    (record,) = made.run(1)
    assert (record.committed, record.participants, record.failed, record.round_id) == (False, 0, 6, 2)
    assert np.isnan(record.loss)
    assert (made.theta.tobytes(), codec.pack(made.state), codec.pack(made.optimiser), made.memories) == before
    with pytest.raises(UpdateRejectedError, match="20 rounds in a row"):
        made.run()


def test_failures_are_drawn_by_the_seed_and_the_rest_is_averaged() -> None:
    made = run(config(rounds=8), "auto", failure_rate=0.4)
    records = [dataclasses.replace(record, seconds=0.0) for record in made.run(6)]
    assert {record.failed for record in records} != {0}
    assert all(record.participants + record.failed == 6 for record in records if record.committed)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_device_whose_loss_is_no_number_fails_alone(batching: str) -> None:
    of = config(algorithm_settings={"initialisation": "random"})
    spoilt = devices() | {"device 2": torch.full((4, 8), torch.nan)}
    made = Simulation(of, trunk(), Tensors(spoilt), Engine(batching=batching))
    records = made.run()
    assert [(record.participants, record.failed) for record in records] == [(5, 1), (5, 1)]
    expected = Simulation(of, trunk(), Tensors(spoilt), Engine(batching="loop"))
    expected.run()
    assert_equal(made, expected)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_refused_payload_takes_no_part_in_the_mean(batching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half = algorithms.server("fedaws")

    def check(payload: object, state: object, user: str, settings: object) -> None:
        if user == "device 2":
            raise UpdateRejectedError("not today")

    monkeypatch.setattr(algorithms, "server", lambda name: dataclasses.replace(half, check=check))
    made = run(config(rounds=1), batching)
    monkeypatch.setattr(Simulation, "_present", lambda self, cohort, seed: tuple(u for u in cohort if u != "device 2"))
    without = run(config(rounds=1), batching)
    assert_equal(made, without)


def test_an_algorithm_that_embeds_when_it_finishes_gets_trunks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    half = algorithms.client("fedaws")
    seen: list[Tensor] = []

    def finish(local, embed, settings, rng, secret):  # type: ignore[no-untyped-def]
        seen.append(embed([0]))
        return half.finish(local, embed, settings, rng, secret)

    monkeypatch.setattr(algorithms, "client", lambda name: dataclasses.replace(half, finish=finish))
    with pytest.raises(SettingsError, match="embeds with the trained trunk"):
        run(config(), "large")
    loop = run(config(), "loop")
    of_loop = torch.cat(seen)
    seen.clear()
    auto = run(config(), "auto")
    assert_equal(auto, loop)
    np.testing.assert_allclose(torch.cat(seen).numpy(), of_loop.numpy(), atol=1e-5)


def test_devices_with_views_of_other_shapes_are_trained_in_groups() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.linear = nn.Linear(4, 15)

        def forward(self, views: Tensor) -> Tensor:
            z: Tensor = self.linear(views.mean(dim=1))
            return z

    population = Tensors({f"d{n}": torch.randn(3, 5 + n % 2, 4) + n for n in range(5)})
    found = []
    for batching in BATCHINGS:
        made = Simulation(config(), Mean(), population, Engine(batching=batching))
        made.run()
        found.append(made)
    assert_equal(found[1], found[0])
    assert_equal(found[2], found[0])


def test_only_devices_whose_other_fields_are_equal_are_stacked() -> None:
    @dataclasses.dataclass(frozen=True)
    class Local:
        vector: Tensor
        margin: object = 0.5

    views, zeros = torch.zeros(2, 3), torch.zeros(4)
    same = groups._shapes(Local(zeros), views)
    assert groups._shapes(Local(torch.ones(4)), views) == same
    assert groups._shapes(Local(torch.ones(5)), views) != same
    assert groups._shapes(Local(zeros), torch.zeros(2, 4)) != same
    assert groups._shapes(Local(zeros, 0.6), views) != same
    assert groups._shapes(Local(zeros, 1), views) != groups._shapes(Local(zeros, True), views)
    long = np.zeros(5000)
    other = long.copy()
    other[2500] = 1.0
    assert groups._shapes(Local(zeros, long), views) != groups._shapes(Local(zeros, other), views)
    assert groups._shapes(Local(zeros, long), views) == groups._shapes(Local(zeros, long.copy()), views)
    assert groups._shapes(Local(zeros, [1]), views) != groups._shapes(Local(zeros, [1]), views)


def test_recurrent_trunks_are_not_stacked_unless_told() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.lstm = nn.LSTM(4, 6, batch_first=True)

        def forward(self, views: Tensor) -> Tensor:
            z: Tensor = self.lstm(views)[0][:, -1]
            return z

    population = Tensors({f"d{n}": torch.randn(3, 5, 4) + n for n in range(3)})
    of = config(local_steps=2)
    found = {}
    for batching in ("loop", "stacked", "auto"):
        found[batching] = Simulation(of, Recurrent(), population, Engine(batching=batching))
        found[batching].run()
    assert_equal(found["stacked"], found["loop"])
    assert found["auto"].theta.tobytes() == found["loop"].theta.tobytes()


def test_devices_of_several_classes() -> None:
    rows = devices(4)
    names = {user: (f"{user} x", f"{user} y") for user in rows}
    places = {user: np.arange(len(found)) % 2 for user, found in rows.items()}
    found = []
    for batching in BATCHINGS:
        population = Tensors(rows, places, names)
        made = Simulation(config("fedss"), trunk(), population, Engine(batching=batching))
        made.run()
        found.append(made)
    assert len(found[0].class_matrix()[0]) == 8
    assert_equal(found[1], found[0])
    assert_equal(found[2], found[0])


def test_settings_that_cannot_be() -> None:
    for values in ({"batching": "fast"}, {"chunk_clients": -1}, {"threads": 0}, {"failure_rate": 1.5}):
        with pytest.raises(SettingsError):
            Engine(**values)  # type: ignore[arg-type]
    for values, word in (({"local_steps": 2}, "local_steps"), ({"gradient_clip": 1.0}, "gradient_clip")):
        with pytest.raises(SettingsError, match=word):
            Simulation(config(**values), trunk(), Tensors(devices()), Engine(batching="large"))
    with pytest.raises(SettingsError, match="control_variates"):
        Simulation(config(control_variates=True), trunk(), Tensors(devices()), Engine(batching="large"))
    with pytest.raises(SettingsError, match="quorum"):
        Simulation(config(), trunk(), Tensors(devices(2)))
    with pytest.raises(SettingsError, match="too few are left"):
        Simulation(config(), trunk(), Tensors({user: rows * torch.nan for user, rows in devices().items()})).run(1)
    with pytest.raises(EnrolmentError, match="at least one device"):
        Tensors({})
    with pytest.raises(EnrolmentError, match="no sample"):
        Tensors({"a": torch.empty(0, 8)})
    with pytest.raises(EnrolmentError, match="classes of shape"):
        Tensors({"a": torch.zeros(2, 8)}, {"a": np.zeros(3, np.int64)})
    with pytest.raises(EnrolmentError, match="persons"):
        Tensors({"a": torch.zeros(2, 8)}, persons={"b": "p"})


def test_without_a_seed_two_simulations_differ() -> None:
    one, other = (run(config(seed=None), "auto") for _ in range(2))
    assert one.seed != other.seed


def test_freed_memory_stays_with_the_process_where_the_c_library_can_be_told() -> None:
    """glibc is told once, and no number changes by it (the tests above compare stacked devices with a loop)."""
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    assert keep_freed_memory.cache_info().currsize == 1


def test_who_only_evaluates_is_in_no_class_and_trains_nothing() -> None:
    """The model is that of a population without them, to the last bit."""
    everybody = devices()
    trainers = {user: rows for user, rows in everybody.items() if user != "device 5"}
    apart = Simulation(
        config(), trunk(), Tensors(everybody), Engine(batching="loop"), evaluators=frozenset({"device 5"})
    )
    alone = Simulation(config(), trunk(), Tensors(trainers), Engine(batching="loop"))
    for simulation in (apart, alone):
        simulation.run()
    assert apart.theta.tobytes() == alone.theta.tobytes()
    assert apart.class_matrix()[0] == tuple(sorted(trainers))
