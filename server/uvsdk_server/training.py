"""What is being trained: the configuration, the algorithm's server half, and the state between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from uvsdk.errors import UpdateRejectedError
from uvsdk.federation import algorithms, optimisers
from uvsdk.federation.classes import mean_offdiagonal_cosine
from uvsdk.federation.codec import pack, unpack
from uvsdk.federation.guards import AcceptedNorms
from uvsdk.federation.messages import Admission, OptimiserState, RoundHeader, Task, TrainingConfig
from uvsdk.privacy.sealing import Binding, new_nonce, seal
from uvsdk_server.envelopes import Expected
from uvsdk_server.keys import AtRest, KeyRing
from uvsdk_server.people import Device
from uvsdk_server.store.ledger import AnyRow

SERVER_SENDER = "server"
"""The server's name for itself in the tasks it seals."""

_STATE, _OPTIMISER = "algorithm-state", "optimiser-state"


class Training:
    """Configuration and state of one deployment; :class:`uvsdk_server.rounds.Rounds` alone replaces the state."""

    def __init__(self, config: TrainingConfig, seed: int, at_rest: AtRest, *, dimension: int, parameters: int) -> None:
        """A state before anyone has joined; ``dimension`` is d and ``parameters`` is P."""
        self.config = config
        self.algorithm = algorithms.server(config.algorithm)
        self.settings = algorithms.settings(config.algorithm, config.algorithm_settings)
        self.parameters = parameters
        self.state: Any = self.algorithm.empty(dimension, self.settings)
        self.optimiser: OptimiserState = optimisers.initial(parameters, config)
        self.norms = AcceptedNorms()
        self._seed = seed
        self._at_rest = at_rest

    @property
    def needs_mean(self) -> bool:
        """Whether an admission holds the mean of the enrolment embeddings."""
        return self.algorithm.needs_mean(self.settings)

    def restore(self, state: bytes, optimiser: bytes, norms: AcceptedNorms) -> None:
        """Take up what :meth:`seal_state` and :meth:`seal_optimiser` wrote."""
        self.state = unpack(self.algorithm.state, self._at_rest.open(state, _STATE))
        restored = unpack(OptimiserState, self._at_rest.open(optimiser, _OPTIMISER))
        fresh = self.optimiser
        # A configuration with another optimiser starts its moments anew.
        if (restored.first.shape, restored.second.shape) == (fresh.first.shape, fresh.second.shape):
            self.optimiser = restored
        self.norms = norms

    def seal_state(self, state: object) -> bytes:
        """The algorithm's state, encrypted: it may hold a vector for every user."""
        packed: Any = state
        return self._at_rest.seal(pack(packed), _STATE)

    def seal_optimiser(self, state: OptimiserState) -> bytes:
        """The optimiser's moments, encrypted like everything that comes from updates."""
        return self._at_rest.seal(pack(state), _OPTIMISER)

    def round_seed(self, round_id: int) -> str:
        """The seed of one round, decimal: a function of the deployment's seed and the round's number."""
        words = np.random.SeedSequence((self._seed, round_id)).generate_state(4)
        return str(int.from_bytes(words.tobytes(), "little"))

    def admit(
        self, admissions: Sequence[Admission], rng: np.random.Generator, *, start: bool
    ) -> tuple[object, frozenset[str]]:
        """The state with those who joined, and those the algorithm refused; ``start`` draws the first vectors."""
        state, refused = self.state, set()
        for admission in admissions:
            try:
                state = self.algorithm.admit(state, admission, self.settings, rng)
            except UpdateRejectedError:
                refused.add(admission.user)
        if start:
            state = self.algorithm.start(state, self.settings, rng)
        return state, frozenset(refused)

    def check_admission(self, admission: Admission) -> None:
        """Raise ``UpdateRejectedError`` unless the algorithm takes that admission; the state stays as it is."""
        self.algorithm.admit(self.state, admission, self.settings, np.random.default_rng(0))

    def without(self, user: str) -> object:
        """The state without a trace of ``user``."""
        return self.algorithm.remove(self.state, user)

    def mean_offdiagonal_cosine(self) -> float:
        """The collapse monitor: of the class matrix as it is now, NaN where the algorithm has none."""
        return mean_offdiagonal_cosine(self.algorithm.class_matrix(self.state)[1])

    def check_payload(self, packed: bytes, user: str) -> None:
        """Raise ``WireError`` or ``UpdateRejectedError`` unless the algorithm takes that payload from ``user``."""
        self.algorithm.check(unpack(self.algorithm.payload, packed), self.state, user, self.settings)

    def header(self, row: AnyRow, keys: KeyRing) -> RoundHeader:
        """What devices are told of a round that collects."""
        return RoundHeader(
            deployment=self.config.deployment,
            algorithm=self.config.algorithm,
            round_id=row.round_id,
            model_version=row.model_version,
            config_digest=row.config_digest,
            deadline_unix_s=row.deadline,
            server_key_id=row.server_key_id,
            server_public_key=np.frombuffer(keys.public(row.server_key_id), np.uint8),
            cohort=row.cohort,
        )

    def task(self, device: Device, header: RoundHeader, keys: KeyRing) -> bytes:
        """The algorithm's task for one device, sealed to it and signed by the server."""
        body = pack(self.algorithm.task(self.state, device.user, self.settings))
        task = Task(header.round_id, header.algorithm, np.frombuffer(body, np.uint8))
        binding = Binding(
            deployment=header.deployment,
            direction="down",
            message_type="task",
            algorithm=header.algorithm,
            round_id=header.round_id,
            model_version=header.model_version,
            sender=SERVER_SENDER,
            recipient_key_id=device.device_id,
            nonce=new_nonce(),
        )
        return seal([pack(task)], binding, recipient=device.sealing_key, signing_key=keys.signing)

    def expected(self, message_type: str) -> Expected:
        """What the binding of a message outside rounds must say; its key and model are the caller's to check."""
        return Expected(self.config.deployment, message_type, self.config.algorithm, 0, None, None)

    def expected_update(self, row: AnyRow) -> Expected:
        """What the binding of an update of that round must say."""
        return Expected(
            self.config.deployment,
            "update",
            self.config.algorithm,
            row.round_id,
            row.model_version,
            row.server_key_id,
        )
