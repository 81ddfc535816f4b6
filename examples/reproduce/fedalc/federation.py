"""Rounds of the federation of Bibtex, with the production's records and every instance embedded once.

Here an instance lies on 2.4 devices on average. :class:`uvsdk.simulation.Simulation` embeds it on each of them; one
local step lets it be embedded once, which is the same sum: all devices differentiate the same trunk. The server draws
which instances a round uses, and each device makes one step on those that it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from examples.reproduce.fedalc.corpus import Corpus
from uvsdk.arrays import Float32, Float64
from uvsdk.federation import aggregation, algorithms, optimisers, streams
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.strategy import INSTANCES, Contribution
from uvsdk.training import backbones

_NO_MEAN = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Device:
    """One device in one round: its name, which of the round's instances it holds, and what it trains beside."""

    user: str
    rows: Tensor
    local: object
    memory: dict[str, NDArray[np.generic]]


class Federation:
    """Devices by label, in the order of the labels; ``fraction`` of all instances are used in a round."""

    def __init__(self, config: TrainingConfig, trunk: nn.Module, corpus: Corpus, *, fraction: float) -> None:
        self.config, self.trunk, self.corpus, self.fraction = config, trunk, corpus, fraction
        self.server, self.client = algorithms.server(config.algorithm), algorithms.client(config.algorithm)
        self.request = algorithms.request(config.algorithm)
        self.settings = algorithms.settings(config.algorithm, config.algorithm_settings)
        self.theta: Float32 = backbones.flatten(trunk)
        self.optimiser = optimisers.initial(len(self.theta), config)
        self.memories: dict[str, dict[str, NDArray[np.generic]]] = {}
        self.seed = config.seed or 0
        self.round_id = 0
        self.users = corpus.users()
        self._start()

    def _start(self) -> None:
        identities = self.corpus.population()
        needs = self.server.needs(self.settings)
        rng = streams.server_stream(streams.round_seed(self.seed, 1), streams.ADMIT)
        dimension = self.trunk.eval()(self.corpus.train.words[:1]).shape[1]
        state = self.server.empty(dimension, self.settings)
        for user in self.users:
            held = identities.identity(user).instances if INSTANCES in needs else np.empty((0, 32), np.uint8)
            count = len(identities.samples(user))
            state = self.server.admit(state, Admission(user, "", count, _NO_MEAN, held), self.settings, rng)
        self.state = self.server.start(state, self.settings, rng)

    def class_matrix(self) -> tuple[tuple[str, ...], Float64]:
        """(users, W)."""
        return self.server.class_matrix(self.state)

    def run(self, on_round: Callable[[int, float], None] | None = None) -> None:
        """All rounds; ``on_round`` gets the round's number and its mean loss."""
        while self.round_id < self.config.rounds:
            self.round_id += 1
            loss = self._round(streams.round_seed(self.seed, self.round_id))
            if on_round is not None:
                on_round(self.round_id, loss)

    def _round(self, seed: int) -> float:
        backbones.unflatten(self.trunk, self.theta)
        count = len(self.corpus.train.labels)
        rng = np.random.default_rng((seed, streams.DROPOUT))
        drawn = np.sort(rng.choice(count, max(1, round(self.fraction * count)), replace=False))
        held = self.corpus.train.labels[drawn]
        tasks = streams.server_stream(seed, streams.TASK)
        devices = [self._device(place, held[:, place], tasks, rng) for place in np.flatnonzero(held.any(axis=0))]
        weights = aggregation.sample_weights([len(device.rows) for device in devices], self.config)
        torch.manual_seed(int(rng.integers(1 << 62)))
        for value in self.trunk.parameters():
            value.grad = None
        embeddings = functional.normalize(self.trunk.train()(self.corpus.train.words[torch.from_numpy(drawn)]), dim=1)
        objective = self._objective(devices, embeddings, weights)
        objective.backward()  # type: ignore[no-untyped-call]
        gradient = torch.cat([value.grad.ravel() for value in self.trunk.parameters() if value.grad is not None])
        delta: Float32 = gradient.mul_(-self.config.learning_rate).numpy()
        contributions = tuple(
            self._finished(device, weight, rng) for device, weight in zip(devices, weights.tolist(), strict=True)
        )
        share = len(devices) / len(self.users)
        self.theta, self.optimiser = optimisers.step(self.theta, delta, self.optimiser, self.config, share=share)
        step = streams.server_stream(seed, streams.STEP)
        self.state = self.server.step(self.state, contributions, self.settings, step)
        backbones.unflatten(self.trunk, self.theta)
        return float(objective.detach())

    def _device(
        self, place: int, held: NDArray[np.bool_], tasks: np.random.Generator, rng: np.random.Generator
    ) -> Device:
        user = self.users[place]
        memory, wish = self.memories.get(user, {}), None
        if self.request is not None:
            invitation = self.request.invite(self.state, user, self.settings)
            wish, kept = self.request.choose(invitation, memory, self.settings, rng, rng.bytes)
            memory = dict(kept)
        task = self.server.task(self.state, user, wish, self.settings, tasks)
        local = self.client.begin(task, memory, _no_embeddings, self.settings, rng, rng.bytes)
        for value in self.client.parameters(local, self.settings):
            value.requires_grad_()
        return Device(user, torch.from_numpy(np.flatnonzero(held)), local, memory)

    def _objective(self, devices: list[Device], embeddings: Tensor, weights: Float64) -> Tensor:
        """sum_i p_i l_i. Where a device's own tensors are one vector, all samples are taken at once, each as a batch of
        one: a loss is the mean over its batch."""
        if [field.name for field in fields(devices[0].local)] != ["vector"]:  # type: ignore[arg-type]
            losses = [
                self.client.loss(embeddings[device.rows], torch.zeros_like(device.rows), device.local, self.settings)
                for device in devices
            ]
            return torch.stack(losses) @ torch.from_numpy(weights.astype(np.float32))
        kind = type(devices[0].local)
        vectors = torch.stack([device.local.vector for device in devices])  # type: ignore[attr-defined]
        sizes = torch.tensor([len(device.rows) for device in devices])
        owner = torch.repeat_interleave(torch.arange(len(devices)), sizes)
        rows = torch.cat([device.rows for device in devices])

        def one(embedding: Tensor, vector: Tensor) -> Tensor:
            place = torch.zeros(1, dtype=torch.int64)
            found: Tensor = self.client.loss(embedding[None], place, kind(vector), self.settings)  # type: ignore[call-arg]
            return found

        losses = torch.func.vmap(one)(embeddings[rows], vectors[owner])
        per_sample = torch.from_numpy(weights.astype(np.float32)) / sizes
        return losses @ per_sample[owner]

    def _finished(self, device: Device, weight: float, rng: np.random.Generator) -> Contribution[object]:
        rate = self.config.learning_rate * self.client.rate(self.settings)
        for value in self.client.parameters(device.local, self.settings):
            with torch.no_grad():
                if value.grad is not None:
                    value.sub_(value.grad, alpha=rate / weight)
            value.requires_grad_(False)
        self.client.constrain(device.local, self.settings)
        payload, memory = self.client.finish(device.local, _no_embeddings, self.settings, rng, rng.bytes)
        self.server.check(payload, self.state, device.user, self.settings)
        self.memories[device.user] = dict(memory)
        return Contribution(device.user, len(device.rows), payload)


def _no_embeddings(indices: object = None, /) -> Tensor:
    raise NotImplementedError("no method of this table embeds samples on the device before or after its step")
