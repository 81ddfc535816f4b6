"""A server half with its users, and the device halves that go with it, whatever the algorithm."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.builders import unit
from uvsdk.arrays import Array
from uvsdk.errors import SettingsError
from uvsdk.federation import algorithms
from uvsdk.federation.messages import Admission
from uvsdk.federation.strategy import EMBEDDED, INSTANCES, MEAN, PERSON, Contribution, Memory
from uvsdk.records.codec import pack

DIMENSIONS = (6, 255)
"""Trunk dimensions to try, smallest first: an algorithm may accept only some."""

SAMPLES = 4


def number(user: str) -> int:
    """The same in every process, unlike ``hash``."""
    return int.from_bytes(user.encode(), "little")


class Party:
    """Users admitted and, unless ``started`` is false, the first vectors drawn."""

    def __init__(self, name: str, users: str = "cadbe", *, started: bool = True) -> None:
        self.name = name
        self.half = algorithms.server(name)
        self.client = algorithms.client(name)
        self.request = algorithms.request(name)
        self.settings = algorithms.settings(name, {})
        self.dimension = self._dimension()
        self.state: Any = self.half.empty(self.dimension, self.settings)
        for user in users:
            self.admit(user)
        if started:
            self.state = self.half.start(self.state, self.settings, np.random.default_rng(1))

    def _dimension(self) -> int:
        for dimension in DIMENSIONS:
            try:
                self.half.empty(dimension, self.settings)
            except SettingsError:
                continue
            return dimension
        raise AssertionError(f"{self.name} accepts a trunk of none of the dimensions {DIMENSIONS}")

    @property
    def needs(self) -> frozenset[str]:
        return self.half.needs(self.settings)

    def admission(self, user: str, **changes: Any) -> Admission:
        """What that user's device sends: all that is needed, and nothing else."""
        rng = np.random.default_rng((7, number(user)))
        full = Admission(
            user,
            "m",
            SAMPLES,
            (0.8 * unit(rng.standard_normal(self.dimension))).astype(np.float32) if MEAN in self.needs else empty(),
            instances=hashes(user) if self.needs & {INSTANCES, EMBEDDED} else hashes(""),
            person=f"{number(user):064x}" if PERSON in self.needs else "",
        )
        return replace(full, **changes)

    def admit(self, user: str, **changes: Any) -> None:
        admission = self.admission(user, **changes)
        self.state = self.half.admit(self.state, admission, self.settings, np.random.default_rng(0))

    def embed(self, user: str) -> Any:
        """Unit embeddings of that user's samples; a person's lie near one direction, as a trunk's do."""
        rng = np.random.default_rng((8, number(user)))
        centre = unit(rng.standard_normal(self.dimension))
        rows = unit(centre + 0.3 * unit(rng.standard_normal((SAMPLES, self.dimension))))
        found = torch.from_numpy(rows.astype(np.float32))

        def embed(indices: Any = None, /) -> Tensor:
            return found if indices is None else found[list(indices)]

        return embed

    def ask(self, user: str, memory: Memory) -> tuple[Any, Memory]:
        """What that user's device asks for, ``None`` where it chooses nothing."""
        if self.request is None:
            return None, memory
        invitation = self.request.invite(self.state, user, self.settings)
        return self.request.choose(invitation, memory, self.settings, np.random.default_rng(3), secret(user))

    def task(self, user: str, memory: Memory | None = None, *, request: Any = None, seed: int = 4) -> Any:
        if request is None:
            request, _ = self.ask(user, memory or {})
        return self.half.task(self.state, user, request, self.settings, np.random.default_rng(seed))

    def local(self, user: str, memory: Memory | None = None) -> Any:
        return self.begin(user, self.task(user, memory), memory)

    def begin(self, user: str, task: Any, memory: Memory | None = None) -> Any:
        rng = np.random.default_rng(5)
        return self.client.begin(task, memory or {}, self.embed(user), self.settings, rng, secret(user))

    def finish(self, user: str, local: Any) -> tuple[Any, Memory]:
        rng = np.random.default_rng(6)
        return self.client.finish(local, self.embed(user), self.settings, rng, secret(user))

    def payload(self, user: str) -> Any:
        """What that user's device sends after training on nothing."""
        return self.finish(user, self.local(user))[0]

    def contributions(self, users: str) -> tuple[Contribution[Any], ...]:
        return tuple(Contribution(user, SAMPLES, self.payload(user)) for user in sorted(users))

    def stepped(self, users: str, *, seed: int = 9) -> Any:
        items = self.contributions(users)
        return self.half.step(self.state, items, self.settings, np.random.default_rng(seed))

    def users(self) -> tuple[str, ...]:
        return self.half.users(self.state)

    def packed(self) -> bytes:
        return pack(self.state)


def empty() -> Any:
    return np.empty(0, np.float32)


def hashes(user: str) -> Any:
    """Three hashes of that user's own and one that everybody has; none for nobody."""
    if not user:
        return np.empty((0, 32), np.uint8)
    rng = np.random.default_rng((11, number(user)))
    own = rng.integers(0, 256, (3, 32), np.uint8)
    rows = np.vstack([own, np.arange(32, dtype=np.uint8)[None]])
    return np.frombuffer(b"".join(sorted(bytes(row) for row in rows)), np.uint8).reshape(-1, 32)


def secret(user: str) -> Any:
    """Secret bytes for a test: the same each time."""
    return np.random.default_rng((10, number(user))).bytes


def arrays(message: Any) -> dict[str, Array]:
    """The floating-point arrays of a message that hold something."""
    found = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size
    }


def doubled(local: Any) -> Any:
    """A device's local state in float64, for finite differences."""
    changes = {
        field.name: value.detach().to(torch.float64).clone()
        for field in dataclasses.fields(local)
        if isinstance(value := getattr(local, field.name), Tensor) and value.is_floating_point()
    }
    return replace(local, **changes)
