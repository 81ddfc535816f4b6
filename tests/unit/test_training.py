"""The local steps, on a tiny backbone; and a whole federation on the handwriting that scikit-learn ships."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from tests.federated_run import Outcome, manifest_of, run
from uvsdk.arrays import Array, Float32
from uvsdk.errors import BundleError, EnrolmentError, UpdateRejectedError, WireError
from uvsdk.federation.algorithms.fedaws.payload import Payload, Task
from uvsdk.federation.algorithms.fixed.payload import Task as FixedTask
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records import codec
from uvsdk.training import backbones, loop, participation
from uvsdk.training.loop import LocalTrainer, to_training
from uvsdk.training.participation import TrainingJob

BACKBONE = "digits-cnn"


@pytest.fixture(scope="module")
def people() -> dict[str, list[Array]]:
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    return {f"digit {label}": list(images[digits.target == label][:20]) for label in range(10)}


@pytest.fixture(scope="module")
def theta() -> Float32:
    return backbones.flatten(backbones.get(BACKBONE).random(1))


def config(algorithm: str = "fedaws", **values: object) -> TrainingConfig:
    base = {"local_steps": 2, "batch_size": 8, "learning_rate": 0.1}
    return TrainingConfig("d", "handwriting", BACKBONE, algorithm, **(base | values))  # type: ignore[arg-type]


def vector(seed: int = 0) -> Float32:
    row = np.random.default_rng(seed).standard_normal(backbones.get(BACKBONE).dimension)
    return (row / np.linalg.norm(row)).astype(np.float32)


def job(people: dict[str, list[Array]], theta: Float32, settings: TrainingConfig) -> TrainingJob:
    kind = FixedTask if settings.algorithm == "fixed" else Task
    task = codec.pack(kind(vector()))
    return TrainingJob(settings, manifest_of(BACKBONE), 1, theta, tuple(people["digit 3"]), task, {})


def train(of: TrainingJob, seed: int = 0, trainer: LocalTrainer | None = None) -> participation.TrainingResult:
    return (trainer or LocalTrainer()).train(of, np.random.default_rng(seed))


def test_one_step_is_one_step_of_sgd(
    people: dict[str, list[Array]], theta: Float32, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Batch = all samples, uncropped: theta' = theta - eta * gradient of the mean hinge.
    views = torch.from_numpy(np.stack(people["digit 3"])[:, None])
    monkeypatch.setattr(loop, "_crops", lambda job, batch, rng: views[batch])
    settings = config(local_steps=1, batch_size=20)
    result = train(job(people, theta, settings))
    module = backbones.get(BACKBONE).random()
    backbones.unflatten(module, theta)
    scores = torch.nn.functional.normalize(module(views), dim=1) @ torch.from_numpy(vector())
    torch.relu(0.9 - scores).square().mean().backward()
    expected = np.concatenate([-0.1 * value.grad.numpy().ravel() for value in module.parameters()])  # type: ignore[union-attr]
    np.testing.assert_allclose(result.delta, expected, atol=2e-6)
    assert result.delta.dtype == np.float32
    assert result.samples == 20
    assert result.loss == pytest.approx(float(torch.relu(0.9 - scores.detach()).square().mean()), rel=1e-4)


def test_the_loss_falls_and_the_vector_follows(people: dict[str, list[Array]], theta: Float32) -> None:
    first = train(job(people, theta, config(local_steps=1)))
    last = train(job(people, theta, config(local_steps=15)))
    assert last.loss < first.loss / 2
    sent = codec.unpack(Payload, last.payload).vector
    assert np.linalg.norm(sent) == pytest.approx(1.0, abs=1e-6)
    assert np.abs(sent - vector()).max() > 0.01


def test_the_same_generator_gives_the_same_result_and_the_module_is_kept(
    people: dict[str, list[Array]], theta: Float32
) -> None:
    trainer = LocalTrainer()
    one, again = (train(job(people, theta, config()), trainer=trainer) for _ in range(2))
    assert one.delta.tobytes() == again.delta.tobytes()
    assert one.payload == again.payload
    fresh = train(job(people, theta, config()))
    assert fresh.delta.tobytes() == one.delta.tobytes()
    assert train(job(people, theta, config()), seed=1).delta.tobytes() != one.delta.tobytes()


def test_the_proximal_term_holds_the_trunk_back(people: dict[str, list[Array]], theta: Float32) -> None:
    free, held = (train(job(people, theta, config(local_steps=10, proximal=mu))) for mu in (0.0, 5.0))
    assert np.linalg.norm(held.delta) < 0.8 * np.linalg.norm(free.delta)


def test_the_clip_shortens_the_gradient_and_keeps_its_direction(people: dict[str, list[Array]], theta: Float32) -> None:
    free = train(job(people, theta, config(local_steps=1))).delta
    norm = float(np.linalg.norm(free)) / 0.1  # of the gradient: delta = -eta * gradient, eta = 0.1
    clipped = train(job(people, theta, config(local_steps=1, gradient_clip=norm / 4))).delta
    # theta + delta - theta costs the last bits, hence the tolerance
    np.testing.assert_allclose(clipped, free / 4, atol=3e-7)
    untouched = train(job(people, theta, config(local_steps=1, gradient_clip=norm * 2))).delta
    np.testing.assert_array_equal(untouched, free)


def test_fedaws_with_a_frozen_vector_trains_as_fixed_does(people: dict[str, list[Array]], theta: Float32) -> None:
    frozen = train(job(people, theta, config(algorithm_settings={"vector_rate": 0.0})))
    fixed = train(job(people, theta, config("fixed")))
    assert frozen.delta.tobytes() == fixed.delta.tobytes()
    np.testing.assert_allclose(codec.unpack(Payload, frozen.payload).vector, vector(), atol=1e-7)


def test_a_loss_that_is_no_number_sends_nothing(people: dict[str, list[Array]], theta: Float32) -> None:
    of = job(people, theta, config())
    broken = np.full((8, 8), np.nan, np.float32)
    with pytest.raises(UpdateRejectedError, match="loss became nan"):
        train(dataclasses.replace(of, features=(broken,)))
    with pytest.raises(UpdateRejectedError):
        train(dataclasses.replace(of, config=config(learning_rate=1e30, local_steps=3)))


def test_a_failed_round_does_not_spoil_the_next(people: dict[str, list[Array]], theta: Float32) -> None:
    trainer, of = LocalTrainer(), job(people, theta, config())
    with pytest.raises(UpdateRejectedError):
        train(dataclasses.replace(of, features=(np.full((8, 8), np.nan, np.float32),)), trainer=trainer)
    assert train(of, trainer=trainer).delta.tobytes() == train(of).delta.tobytes()


def test_jobs_that_do_not_fit(people: dict[str, list[Array]], theta: Float32) -> None:
    of = job(people, theta, config())
    with pytest.raises(EnrolmentError):
        dataclasses.replace(of, features=())
    with pytest.raises(UpdateRejectedError, match="manifest"):
        dataclasses.replace(of, theta=theta[:-1])
    with pytest.raises(WireError):
        train(dataclasses.replace(of, task=of.task[:-1]))
    with pytest.raises(BundleError, match="approved"):
        train(dataclasses.replace(of, config=dataclasses.replace(of.config, backbone="ge2e")))
    shorter = dataclasses.replace(of.manifest, parameters=of.manifest.parameters[:-1])
    left = sum(parameter.size for parameter in shorter.parameters)
    with pytest.raises(UpdateRejectedError, match="same version"):
        train(dataclasses.replace(of, manifest=shorter, theta=theta[:left]))
    with pytest.raises(ValueError, match="thread"):
        LocalTrainer(threads=0)


def test_one_sample_and_a_batch_larger_than_the_samples(people: dict[str, list[Array]], theta: Float32) -> None:
    of = job(people, theta, config(batch_size=8))
    result = train(dataclasses.replace(of, features=of.features[:1]))
    assert result.samples == 1
    assert np.isfinite(result.delta).all()


def test_layers_with_batch_statistics_stay_as_they_are() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    to_training(module)
    assert module[0].training
    assert not module[1].training
    assert module[2].training


@pytest.fixture(scope="module")
def outcomes(people: dict[str, list[Array]], theta: Float32) -> dict[str, Outcome]:
    # The positive loss alone, always active (tau_p = 1), from random rows: nothing but a regulariser can hold it open.
    settings = {"initialisation": "random", "margin_positive": 1.0, "vector_rate": 4.0}
    return {
        name: run(
            config(name, local_steps=1, batch_size=16, rounds=25, algorithm_settings=settings), people, {}, theta=theta
        )
        for name in ("fedaws", "positive_only")
    }


def off_diagonal(outcome: Outcome) -> float:
    rows = outcome.vectors
    return float((rows @ rows.T)[~np.eye(len(rows), dtype=bool)].mean())


def test_fedaws_keeps_people_apart_where_positives_alone_collapse(outcomes: dict[str, Outcome]) -> None:
    assert off_diagonal(outcomes["fedaws"]) < 0.3
    assert off_diagonal(outcomes["positive_only"]) > 0.7


def test_fedaws_separates_digits_it_has_not_seen(outcomes: dict[str, Outcome]) -> None:
    digits = load_digits()
    unseen = [i for label in range(10) for i in np.flatnonzero(digits.target == label)[100:130]]
    module = backbones.get(BACKBONE).random()
    correct = {}
    for name, outcome in outcomes.items():
        backbones.unflatten(module, outcome.theta)
        with torch.no_grad():
            z = module(torch.from_numpy((digits.images[unseen] / 16).astype(np.float32)[:, None])).numpy()
        scores = z / np.linalg.norm(z, axis=1, keepdims=True) @ outcome.vectors.T
        accepted = scores >= 0.7
        genuine = digits.target[unseen][:, None] == np.arange(10)
        correct[name] = (accepted[genuine].mean(), accepted[~genuine].mean())
    # At one threshold, 0.7: FedAwS turns impostors away; the collapsed model accepts most of them.
    assert correct["fedaws"][1] < 0.1
    assert correct["positive_only"][1] > 0.5


def test_the_trainer_is_found_or_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from uvsdk.errors import TrainingUnavailableError

    class Entry:
        name = "torch"

        def __init__(self, found: object) -> None:
            self._found = found

        def load(self) -> object:
            if isinstance(self._found, Exception):
                raise self._found
            return self._found

    monkeypatch.setattr(participation, "entry_points", lambda group: [Entry(LocalTrainer)])
    assert isinstance(participation.find_trainer(), LocalTrainer)
    monkeypatch.setattr(participation, "entry_points", lambda group: [Entry(ImportError("no torch"))])
    with pytest.raises(TrainingUnavailableError, match="no torch"):
        participation.find_trainer()
    monkeypatch.setattr(participation, "entry_points", lambda group: [])
    with pytest.raises(TrainingUnavailableError, match=r"uvsdk\[train\]"):
        participation.find_trainer()


def test_a_first_round_imports_no_compiler() -> None:
    """``torch._dynamo`` takes longer to import than a small device's whole round; a process of its own can tell."""
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from uvsdk.bundle import shipped\n"
        "from uvsdk.federation.algorithms.fedaws.payload import Task\n"
        "from uvsdk.records.codec import pack\n"
        "from uvsdk.federation.messages import TrainingConfig\n"
        "from uvsdk.training.participation import TrainingJob\n"
        "from uvsdk.training.loop import LocalTrainer\n"
        "config = TrainingConfig('d', 'handwriting', 'digits-cnn', 'fedaws', local_steps=2)\n"
        "rng, bundle = np.random.default_rng(0), shipped()\n"
        "pages = tuple(rng.random((8, 8), np.float32) for _ in range(3))\n"
        "task = pack(Task(np.eye(32, dtype=np.float32)[0]))\n"
        "LocalTrainer().train(TrainingJob(config, bundle.manifest, 1, bundle.theta, pages, task, {}), rng)\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False"], done.stderr
