"""Rounds of the federation of Bibtex, with the production's records and every instance embedded once.

Here an instance lies on 2.4 devices on average. :class:`uvsdk.simulation.Simulation` embeds it on each of them; one
local step lets it be embedded once, which is the same sum: all devices differentiate the same trunk. The server draws
which instances a round uses, and each device makes one step on those that it holds.
"""

from __future__ import annotations

import math
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
from uvsdk.federation.round import Method, ServerState, Update, accept, admit, assign, choose, commit, invite
from uvsdk.federation.strategy import INSTANCES, Contribution, Memory
from uvsdk.records import codec
from uvsdk.training import backbones

_NO_MEAN, _NO_INSTANCES = np.empty(0, np.float32), np.empty((0, 32), np.uint8)


@dataclass(frozen=True, slots=True)
class Device:
    """One device in one round: its name, which of the round's instances it holds, and what it trains beside."""

    user: str
    rows: Tensor
    local: object
    memory: Memory


class Federation:
    """Devices by label, in the order of the labels; ``fraction`` of all instances are used in a round."""

    def __init__(self, config: TrainingConfig, trunk: nn.Module, corpus: Corpus, *, fraction: float) -> None:
        self.config, self.trunk, self.corpus, self.fraction = config, trunk, corpus, fraction
        self.method, self.client = Method.of(config), algorithms.client(config.algorithm)
        self.memories: dict[str, Memory] = {}
        self.seed = config.seed or 0
        self.round_id = 0
        self.users = corpus.users()
        self.state = self._start()

    def _start(self) -> ServerState:
        identities, method = self.corpus.population(), self.method
        hashed = INSTANCES in method.server.needs(method.settings)
        self.samples = [len(identities.samples(user)) for user in self.users]
        joining = (
            Admission(user, "", count, _NO_MEAN, identities.identity(user).instances if hashed else _NO_INSTANCES)
            for user, count in zip(self.users, self.samples, strict=True)
        )
        dimension = self.trunk.eval()(self.corpus.train.words[:1]).shape[1]
        empty = method.server.empty(dimension, method.settings)
        state, refused = admit(method, empty, joining, seed=streams.round_seed(self.seed, 1), start=True)
        assert not refused
        theta: Float32 = backbones.flatten(self.trunk)
        return ServerState(theta, optimisers.initial(len(theta), self.config), state)

    def class_matrix(self) -> tuple[tuple[str, ...], Float64]:
        """(users, W)."""
        return self.method.server.class_matrix(self.state.algorithm)

    def run(self, on_round: Callable[[int, float], None] | None = None) -> None:
        """All rounds; ``on_round`` gets the round's number and its mean loss."""
        while self.round_id < self.config.rounds:
            self.round_id += 1
            loss = self._round(streams.round_seed(self.seed, self.round_id))
            if on_round is not None:
                on_round(self.round_id, loss)

    def _round(self, seed: int) -> float:
        backbones.unflatten(self.trunk, self.state.theta)
        count = len(self.corpus.train.labels)
        rng = np.random.default_rng((seed, streams.DROPOUT))
        drawn = np.sort(rng.choice(count, max(1, round(self.fraction * count)), replace=False))
        held = self.corpus.train.labels[drawn]
        devices = [self._device(place, held[:, place], seed, rng) for place in np.flatnonzero(held.any(axis=0))]
        weights = aggregation.sample_weights([len(device.rows) for device in devices], self.config)
        torch.manual_seed(int(rng.integers(1 << 62)))
        for value in self.trunk.parameters():
            value.grad = None
        embeddings = functional.normalize(self.trunk.train()(self.corpus.train.words[torch.from_numpy(drawn)]), dim=1)
        objective = self._objective(devices, embeddings, weights)
        objective.backward()  # type: ignore[no-untyped-call]
        gradient = torch.cat([value.grad.ravel() for value in self.trunk.parameters() if value.grad is not None])
        delta: Float32 = gradient.mul_(-self.config.learning_rate).numpy()
        updates = [
            self._finished(device, weight, rng) for device, weight in zip(devices, weights.tolist(), strict=True)
        ]
        result = commit(
            self.method,
            self.state,
            delta,
            updates,
            clip_norm=math.inf,
            everybody=self.samples,
            seed=seed,
            tensors=[value.numel() for value in self.trunk.parameters()],
        )
        self.state = result.state
        backbones.unflatten(self.trunk, self.state.theta)
        return float(objective.detach())

    def _device(self, place: int, held: NDArray[np.bool_], seed: int, rng: np.random.Generator) -> Device:
        user, state = self.users[place], self.state.algorithm
        memory, request = self.memories.get(user, {}), None
        invitation = invite(self.method, state, user)
        if invitation is not None:
            request, memory = choose(self.method, invitation, memory, rng=rng, secret=rng.bytes)
        task = codec.unpack(self.client.task, assign(self.method, state, user, request=request, seed=seed))
        local = self.client.begin(task, memory, _no_embeddings, self.method.settings, rng, rng.bytes)
        for value in self.client.parameters(local, self.method.settings):
            value.requires_grad_()
        return Device(user, torch.from_numpy(np.flatnonzero(held)), local, memory)

    def _objective(self, devices: list[Device], embeddings: Tensor, weights: Float64) -> Tensor:
        """sum_i p_i l_i. Where a device's own tensors are one vector, all samples are taken at once, each as a batch of
        one: a loss is the mean over its batch."""
        if [field.name for field in fields(devices[0].local)] != ["vector"]:  # type: ignore[arg-type]
            losses = [
                self.client.loss(
                    embeddings[device.rows], torch.zeros_like(device.rows), device.local, self.method.settings
                )
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
            found: Tensor = self.client.loss(embedding[None], place, kind(vector), self.method.settings)  # type: ignore[call-arg]
            return found

        losses = torch.func.vmap(one)(embeddings[rows], vectors[owner])
        per_sample = torch.from_numpy(weights.astype(np.float32)) / sizes
        return losses @ per_sample[owner]

    def _finished(self, device: Device, weight: float, rng: np.random.Generator) -> Update:
        rate = self.config.learning_rate * self.client.rate(self.method.settings)
        for value in self.client.parameters(device.local, self.method.settings):
            with torch.no_grad():
                if value.grad is not None:
                    value.sub_(value.grad, alpha=rate / weight)
            value.requires_grad_(False)
        self.client.constrain(device.local, self.method.settings)
        payload, memory = self.client.finish(device.local, _no_embeddings, self.method.settings, rng, rng.bytes)
        accepted = accept(self.method, self.state.algorithm, device.user, codec.pack(payload))
        self.memories[device.user] = memory
        return Update(Contribution(device.user, len(device.rows), accepted), math.nan)


def _no_embeddings(indices: object = None, /) -> Tensor:
    raise NotImplementedError("no method of this table embeds samples on the device before or after its step")
