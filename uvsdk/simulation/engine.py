"""Rounds of a simulated federation: selection, training in chunks, the server's step."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from uvsdk.arrays import Float32, Float64
from uvsdk.errors import SettingsError, UpdateRejectedError, WireError
from uvsdk.federation import aggregation, clipping, optimisers, streams
from uvsdk.federation.classes.matrix import mean_offdiagonal_cosine
from uvsdk.federation.messages import Admission, OptimiserState, TrainingConfig
from uvsdk.federation.round import (
    Method,
    ServerState,
    Step,
    Update,
    accept,
    admit,
    assign,
    choose,
    commit,
    invite,
    select,
)
from uvsdk.federation.strategy import EMBEDDED, INSTANCES, MEAN, PERSON, Contribution, Memory
from uvsdk.records import codec
from uvsdk.simulation import checkpoint, large, stacked
from uvsdk.simulation.checkpoint import Checkpoint, Remembered
from uvsdk.simulation.jobs import Chunk, DeviceJob, InseparableError, Sent
from uvsdk.simulation.population import Identity, Population
from uvsdk.simulation.records import Engine, RoundRecord
from uvsdk.simulation.seeds import SeededSecret
from uvsdk.simulation.workers import InProcess, Workers
from uvsdk.training import backbones

MODEL_VERSION = "simulation"
_ABORTS = 20
_CHUNK_BYTES = 256 << 20
# Numbers held at once for each number of a view (activations and their gradients), and for each parameter.
_ACTIVATIONS, _COPIES = 64, 5


class Simulation:
    """A federation of simulated devices that drives the server's and the devices' own records.

    Args:
        config: as of a deployment; ``modality`` and ``backbone`` are free words, ``deadline_s`` is not used.
        trunk: views (B, ...) -> embeddings (B, d), not normalised; trained in place. No layer may mix the examples
            of a batch, except where its statistics are frozen.
        population: the devices.
        engine: how to compute.
        workers: where chunks of devices are trained; this process, unless others are named
            (:mod:`uvsdk.simulation.ray_backend`).
        evaluators: devices that never train and are in no class matrix, e.g. those of
            :func:`uvsdk.federation.roles.split`.

    Attributes:
        former: the state that the last committed round started from.
        step: what the server's step is multiplied by.
        stopped: whether training rests although rounds are left.

    Raises:
        SettingsError: settings that do not suit the algorithm, the trunk or the number of devices.
    """

    def __init__(
        self,
        config: TrainingConfig,
        trunk: nn.Module,
        population: Population,
        engine: Engine | None = None,
        *,
        workers: Workers | None = None,
        evaluators: frozenset[str] = frozenset(),
    ) -> None:
        if config.augmentation and config.augmentation != getattr(population, "augmentation", None):
            raise SettingsError(
                "the configuration augments training views and the population does not, or otherwise; make it with "
                "augmentation=config.augmentation"
            )
        self.config = config
        self.evaluators = evaluators
        self.method = Method.of(config)
        self.trunk = trunk
        self.population = population
        self.engine = engine or Engine()
        self.theta: Float32 = backbones.flatten(trunk)
        self.optimiser: OptimiserState = optimisers.initial(len(self.theta), config)
        self.dimension = int(population.samples(population.users[0]).embed(trunk.eval(), [0]).shape[1])
        self.state: Any = self.method.server.empty(self.dimension, self.method.settings)
        self.started = False
        self.seed = secrets.randbits(63) if config.seed is None else config.seed
        self.round_id = 0
        self.committed = 0
        self.start_norm = clipping.of_start(self.theta)
        self.medians: list[float] = []
        self.memories: dict[str, Memory] = {}
        self.refused: frozenset[str] = frozenset()
        self.step = 1.0
        self.stopped = False
        self.former = self.present
        self._workers = workers or InProcess(trunk, self.engine.threads)
        self._batching = self._first_batching()
        size = config.cohort(len(self._trainers))
        if size < config.quorum(size):
            raise SettingsError(
                f"a round of {size} devices is below the quorum of {config.quorum(size)}; add devices, or set "
                "min_clients"
            )

    @property
    def present(self) -> ServerState:
        """What the next round starts from."""
        return ServerState(self.theta, self.optimiser, self.state, self.step)

    def go_back(self, to: ServerState, *, step: float) -> None:
        """Go on from an earlier state, by steps ``step`` times as long as configured; rounds are counted on."""
        self.theta, self.state, self.step = to.theta, to.algorithm, step
        self.optimiser = replace(to.optimiser, steps=self.optimiser.steps)
        self._load()

    def class_matrix(self) -> tuple[tuple[str, ...], Float64]:
        """(classes, W) with unit rows; none before the first round, or where the algorithm has none."""
        return self.method.server.class_matrix(self.state)

    def run(
        self, rounds: int | None = None, on_round: Callable[[RoundRecord], None] | None = None
    ) -> list[RoundRecord]:
        """Run ``rounds`` more rounds, aborted ones included; until ``config.rounds`` are committed for ``None``.

        Training that ``on_round`` has stopped (:mod:`uvsdk.simulation.evaluations`) ends before that.

        Raises:
            UpdateRejectedError: the server's step would not be finite, or 20 rounds in a row were aborted.
        """
        records: list[RoundRecord] = []
        aborts = 0
        while not self.stopped and (
            (self.committed < self.config.rounds) if rounds is None else (len(records) < rounds)
        ):
            record = self._round()
            records.append(record)
            if on_round is not None:
                on_round(record)
            aborts = 0 if record.committed else aborts + 1
            if rounds is None and aborts == _ABORTS:
                raise UpdateRejectedError(
                    f"{aborts} rounds in a row had fewer updates than their quorum; lower failure_rate, the learning "
                    "rate or min_clients"
                )
        return records

    def save(self, path: Path) -> None:
        """Write all that the rounds to come depend on, in one step. Raises :class:`SettingsError`."""
        checkpoint.write(
            path,
            Checkpoint(
                config=self.config.to_json(),
                seed=str(self.seed),
                round_id=self.round_id,
                committed=self.committed,
                started=self.started,
                refused=tuple(sorted(self.refused)),
                batching=self._batching,
                theta=self.theta,
                optimiser=self.optimiser,
                state=codec.pack(self.state),
                start_norm=self.start_norm,
                medians=np.array(self.medians),
                memories=tuple(Remembered(user, self.memories[user]) for user in sorted(self.memories)),
            ),
        )

    @classmethod
    def restore(
        cls,
        path: Path,
        trunk: nn.Module,
        population: Population,
        *,
        engine: Engine | None = None,
        workers: Workers | None = None,
        config: TrainingConfig | None = None,
        evaluators: frozenset[str] = frozenset(),
    ) -> Simulation:
        """Go on where :meth:`save` left off: the same rounds, bit for bit, under the same engine.

        Args:
            trunk: of the same architecture; its values are replaced.
            population: the same devices.
            engine: how to compute.
            workers: where chunks of devices are trained.
            config: the checkpoint's for ``None``; another one may have more rounds.
            evaluators: the same devices.

        Raises:
            SettingsError: no such file, or a population of other devices.
            WireError: not a checkpoint, or a damaged one.
            UpdateRejectedError: the trunk has another number of parameters.
        """
        kept = checkpoint.read(path)
        backbones.unflatten(trunk, kept.theta)
        config = config or TrainingConfig.from_json(kept.config)
        simulation = cls(config, trunk, population, engine, workers=workers, evaluators=evaluators)
        simulation.seed = int(kept.seed)
        simulation.round_id, simulation.committed, simulation.started = kept.round_id, kept.committed, kept.started
        simulation.refused = frozenset(kept.refused)
        simulation.start_norm, simulation.medians = kept.start_norm, kept.medians.tolist()
        simulation.optimiser = kept.optimiser
        simulation.state = codec.unpack(simulation.method.server.state, kept.state)
        simulation.memories = {item.user: item.memory for item in kept.memories}
        if simulation.engine.batching == "auto":
            simulation._batching = kept.batching
        known = set(simulation.method.server.users(simulation.state)) | simulation.refused
        trainers = set(simulation._trainers)
        if kept.started and known != trainers:
            raise SettingsError(
                f"the checkpoint is of {len(known)} devices, {len(known & trainers)} of the {len(trainers)} here are "
                "among them; restore it with the population it was made of"
            )
        return simulation

    def _round(self) -> RoundRecord:
        start = time.perf_counter()
        torch.set_num_threads(self.engine.threads)
        round_id = self.round_id + 1
        seed = streams.round_seed(self.seed, round_id)
        if not self.started:
            self._admit(seed)
        cohort = select(self._eligible(), self.config, seed=seed)
        present = self._present(cohort, seed)
        quorum = self.config.quorum(len(cohort))
        sent: list[Sent] = []
        if len(present) >= quorum:
            total, sent = self._train_all(present, round_id, seed)
        committed = len(sent) >= quorum
        loss, step = float("nan"), Step(float("nan"), float("nan"))
        if committed:
            step = self._commit(sent, total, seed)
            weights = np.array([item.weight for item in sent])
            loss = float(weights @ np.array([item.loss for item in sent]) / weights.sum())
        self.round_id = round_id
        cosine = mean_offdiagonal_cosine(self.class_matrix()[1])
        participants = len(sent) if committed else 0
        seconds = time.perf_counter() - start
        return RoundRecord(
            round_id,
            loss,
            participants,
            len(cohort) - len(sent),
            seconds,
            cosine,
            step.mean_norm,
            step.largest_ratio,
            committed,
        )

    def _admit(self, seed: int) -> None:
        """Admit every device, then draw the first vectors: what a server does before its first round."""
        self._load()
        needs = self.method.server.needs(self.method.settings)
        joining = (self._admission(user, needs) for user in self._trainers)
        state, refused = admit(self.method, self.state, joining, seed=seed, start=True)
        left = len(self._trainers) - len(refused)
        if left < self.config.quorum(self.config.cohort(left)):
            raise SettingsError(
                f"{self.config.algorithm} refused {len(refused)} of {len(self._trainers)} devices, too few are "
                f"left for a round; the first reason: {next(iter(refused.values()))}"
            )
        self.state, self.refused, self.started = state, frozenset(refused), True

    def _admission(self, user: str, needs: frozenset[str]) -> Admission:
        samples, identity = self.population.samples(user), self.population.identity(user)
        mean = np.empty(0, np.float32)
        if MEAN in needs:
            mean = samples.embed(self.trunk, None).numpy().mean(axis=0)
        nobody = Identity()
        return Admission(
            user,
            MODEL_VERSION,
            len(samples),
            np.asarray(mean, np.float32),
            instances=identity.instances if needs & {INSTANCES, EMBEDDED} else nobody.instances,
            person=identity.person if PERSON in needs else nobody.person,
            classes=identity.classes,
        )

    def _eligible(self) -> tuple[str, ...]:
        return tuple(user for user in self._trainers if user not in self.refused)

    @property
    def _trainers(self) -> tuple[str, ...]:
        return tuple(user for user in self.population.users if user not in self.evaluators)

    def _present(self, cohort: Sequence[str], seed: int) -> tuple[str, ...]:
        if not self.engine.failure_rate:
            return tuple(cohort)
        draws = streams.server_stream(seed, streams.DROPOUT).random(len(cohort))
        return tuple(user for user, draw in zip(cohort, draws, strict=True) if draw >= self.engine.failure_rate)

    def _train_all(self, users: Sequence[str], round_id: int, seed: int) -> tuple[Float32, list[Sent]]:
        """:meth:`_train` by large batches where they do, else by stacked parameters."""
        try:
            return self._train(users, round_id, seed)
        except InseparableError as error:
            if self.engine.batching == "large":
                raise SettingsError(f"batching 'large' cannot serve {self.config.algorithm}: {error}") from error
            self._batching = self._apart()
            return self._train(users, round_id, seed)

    def _train(self, users: Sequence[str], round_id: int, seed: int) -> tuple[Float32, list[Sent]]:
        """The weighted sum of the deltas of ``users``, and what they send beside."""
        counts = [len(self.population.samples(user)) for user in users]
        weights = dict(zip(users, aggregation.sample_weights(counts, self.config).tolist(), strict=True))
        size = self.engine.chunk_clients or self._fitting_chunk()
        groups = [users[first : first + size] for first in range(0, len(users), size)]
        handed = (self._jobs(group, weights, round_id, seed) for group in groups)
        total, sent = np.zeros_like(self.theta), list[Sent]()
        for trained in self._workers.train(self._batching, (jobs for jobs in handed if jobs)):
            chunk = self._accepted(trained, weights, round_id, seed)
            total += chunk.total
            sent.extend(chunk.sent)
        return total, sent

    def _accepted(self, chunk: Chunk, weights: dict[str, float], round_id: int, seed: int) -> Chunk:
        """``chunk`` without updates whose payload the server refuses.

        Their deltas are in the sum already, so the other devices are trained anew.
        """
        while not all(accepted := [self._is_accepted(item) for item in chunk.sent]):
            left = [item.user for item, good in zip(chunk.sent, accepted, strict=True) if good]
            if not left:
                return Chunk(np.zeros_like(chunk.total), (), ())
            again = self._jobs(left, weights, round_id, seed)
            chunk = next(iter(self._workers.train(self._batching, [again])))
        return chunk

    def _jobs(self, users: Sequence[str], weights: dict[str, float], round_id: int, seed: int) -> list[DeviceJob]:
        """Jobs of ``users``, but for those who refuse their invitation, or to whom the server refuses a task."""
        jobs = []
        for user in users:
            try:
                jobs.append(self._job(user, weights[user], round_id, seed))
            except (UpdateRejectedError, WireError):
                continue
        return jobs

    def _job(self, user: str, weight: float, round_id: int, seed: int) -> DeviceJob:
        """Hand one device its task; where its algorithm lets it choose, it is asked first."""
        rng, secret = streams.device_stream(self.seed, user, round_id), SeededSecret(self.seed, user, round_id)
        memory, request = self.memories.get(user, {}), None
        invitation = invite(self.method, self.state, user)
        if invitation is not None:
            draws = streams.request_stream(self.seed, user, round_id)
            request, memory = choose(self.method, invitation, memory, rng=draws, secret=secret)
        task = assign(self.method, self.state, user, request=request, seed=seed)
        control = self.optimiser.control if self.config.control_variates else None
        samples = self.population.samples(user)
        return DeviceJob(
            user, self.config, self.theta, task, memory, control, samples, rng, secret, weight, self._clip_norm
        )

    @property
    def _clip_norm(self) -> float:
        return clipping.announced_norm(self.start_norm, self.medians, config=self.config)

    def _is_accepted(self, sent: Sent) -> bool:
        try:
            accept(self.method, self.state, sent.user, sent.payload)
        except (UpdateRejectedError, WireError):
            return False
        return True

    def _commit(self, sent: Sequence[Sent], total: Float32, seed: int) -> Step:
        """The server's step; then devices keep their memories."""
        payloads = [codec.unpack(self.method.server.payload, item.payload) for item in sent]
        self.former = self.present
        result = commit(
            self.method,
            self.former,
            aggregation.renormalise(total, float(sum(item.weight for item in sent))),
            [
                Update(Contribution(item.user, item.samples, payload), item.norm)
                for item, payload in zip(sent, payloads, strict=True)
            ],
            clip_norm=self._clip_norm,
            everybody=(len(self.population.samples(user)) for user in self._eligible()),
            seed=seed,
            tensors=[value.numel() for value in self.trunk.parameters()],
        )
        self.theta, self.optimiser, self.state = result.state.theta, result.state.optimiser, result.state.algorithm
        self.memories.update({item.user: item.memory for item in sent if item.memory or item.user in self.memories})
        self.committed += 1
        if result.norm_median is not None:
            self.medians = [*self.medians, result.norm_median][-clipping.ROUNDS :]
        self._load()
        return result.step

    def _load(self) -> None:
        backbones.unflatten(self.trunk, self.theta)
        self.trunk.eval()

    def _first_batching(self) -> str:
        if self.engine.batching not in ("auto", "large"):
            return self.engine.batching
        obstacle = large.obstacle(self.config)
        if obstacle and self.engine.batching == "large":
            raise SettingsError(f"batching 'large' cannot give this round: {obstacle}; use 'auto'")
        return self._apart() if obstacle else "large"

    def _apart(self) -> str:
        """What ``auto`` trains devices by that need trunks of their own."""
        return "stacked" if stacked.gains(self.trunk) else "loop"

    def _fitting_chunk(self) -> int:
        """Devices whose tensors take about 256 MB."""
        first = self.population.samples(self.population.users[0])
        view = first.views([0], np.random.default_rng(0))
        batch = view.numel() * self.config.batch_size * _ACTIVATIONS
        trunk = 0 if self._batching == "large" else len(self.theta) * _COPIES
        return max(1, _CHUNK_BYTES // (4 * (batch + trunk)))
