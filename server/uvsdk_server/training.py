"""What is being trained: the configuration, the algorithm's server half, and the state between rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from uvsdk.errors import SettingsError, UnknownNameError, UpdateRejectedError
from uvsdk.federation import algorithms, clipping, optimisers, streams
from uvsdk.federation.classes.matrix import mean_offdiagonal_cosine
from uvsdk.federation.messages import Admission, Invitation, OptimiserState, RoundHeader, Task, TrainingConfig
from uvsdk.federation.round import Method, accept, assign, invite
from uvsdk.federation.strategy import EMBEDDED, INSTANCES, MEAN, PERSON
from uvsdk.privacy.sealing import Binding, new_nonce, seal
from uvsdk.records.codec import Scalar, pack, unpack
from uvsdk.rest.problems import Problem
from uvsdk_server import flat_states
from uvsdk_server.envelopes import Expected
from uvsdk_server.keys import KeyFolder, KeyRing
from uvsdk_server.people import Device
from uvsdk_server.store.rows import Round

SERVER_SENDER = "server"
"""The server's name for itself in the tasks it seals."""

_OPTIMISER = "optimiser-state"
_HASH_BYTES = 32
_MOST_INSTANCES, _MOST_CLASSES, _LONGEST_NAME = 10_000, 1_000, 200
"""What one admission may hold: each class is a row that the server keeps and every device may be sent."""


class Training:
    """Configuration and state of one deployment; :class:`uvsdk_server.rounds.Rounds` alone replaces the state."""

    def __init__(
        self,
        config: TrainingConfig,
        seed: int,
        keys: KeyFolder,
        *,
        dimension: int,
        parameters: int,
        start_norm: float,
    ) -> None:
        """A state before anyone has joined; ``dimension`` is d, ``parameters`` P and ``start_norm`` the norm of the
        parameters that training started from.
        """
        self.config = config
        self.method = Method.of(config)
        self.parameters = parameters
        self.state: Any = self.method.server.empty(dimension, self.method.settings)
        self.optimiser: OptimiserState = optimisers.initial(parameters, config)
        self.start_norm = start_norm
        self._seed = seed
        self._keys = keys

    @property
    def needs(self) -> tuple[str, ...]:
        """What an admission holds, sorted words of :mod:`uvsdk.federation.strategy`; it may hold nothing else."""
        return tuple(sorted(self.method.server.needs(self.method.settings)))

    def restore(self, state: bytes, optimiser: bytes) -> None:
        """Take up what :meth:`seal_state` and :meth:`seal_optimiser` wrote."""
        self.state = unpack(self.method.server.state, flat_states.nested(self._keys.open_state(state)))
        self._keys.adopt_state(state)
        restored = unpack(OptimiserState, self._keys.at_rest.open(optimiser, _OPTIMISER))
        fresh = self.optimiser
        # A configuration with another optimiser starts its moments anew, one that turns control variates on starts c.
        if (restored.first.shape, restored.second.shape) == (fresh.first.shape, fresh.second.shape):
            kept = restored.control.shape == fresh.control.shape
            self.optimiser = restored if kept else replace(restored, control=fresh.control)

    def seal_state(self, state: object, key_id: str = "") -> bytes:
        """The algorithm's state, encrypted under its current key or the one named: it may hold everybody's vector."""
        packed: Any = state
        return self._keys.seal_state(pack(packed), key_id)

    def seal_optimiser(self, state: OptimiserState) -> bytes:
        """The optimiser's moments, encrypted like everything that comes from updates."""
        return self._keys.at_rest.seal(pack(state), _OPTIMISER)

    def round_seed(self, round_id: int) -> str:
        """The seed of one round, decimal: a function of the deployment's seed and the round's number."""
        return str(streams.round_seed(self._seed, round_id))

    def check_admission(self, admission: Admission) -> None:
        """Raise ``UpdateRejectedError`` unless the algorithm takes that admission; the state stays as it is.

        What was not asked for is refused rather than dropped, so that a device which sends too much hears of it.
        """
        needs = self.needs
        unasked = [
            name
            for name, sent, wanted in (
                ("mean", admission.mean.size > 0, MEAN in needs),
                ("instances", admission.instances.size > 0, INSTANCES in needs or EMBEDDED in needs),
                ("person", bool(admission.person), PERSON in needs),
            )
            if sent and not wanted
        ]
        if unasked:
            raise UpdateRejectedError(f"this deployment asks for no {' or '.join(unasked)}; send none")
        if len(admission.person) > _LONGEST_NAME or len(admission.instances) > _MOST_INSTANCES:
            raise UpdateRejectedError(
                f"a link of at most {_LONGEST_NAME} characters and {_MOST_INSTANCES} instances are taken of one device"
            )
        if len(admission.classes) > _MOST_CLASSES or any(len(name) > _LONGEST_NAME for name in admission.classes):
            raise UpdateRejectedError(
                f"at most {_MOST_CLASSES} classes with names of at most {_LONGEST_NAME} characters are taken"
            )
        if admission.instances.ndim != 2 or admission.instances.shape[1] != _HASH_BYTES:
            raise UpdateRejectedError(
                f"instances have shape {admission.instances.shape}, expected rows of {_HASH_BYTES} bytes"
            )
        self.method.server.admit(self.state, admission, self.method.settings, np.random.default_rng(0))

    def without(self, user: str) -> object:
        """The state without a trace of ``user``."""
        return self.method.server.remove(self.state, user)

    def mean_offdiagonal_cosine(self) -> float:
        """The collapse monitor: of the class matrix as it is now, NaN where the algorithm has none."""
        return mean_offdiagonal_cosine(self.method.server.class_matrix(self.state)[1])

    def check_payload(self, packed: bytes, user: str) -> None:
        """Raise ``WireError`` or ``UpdateRejectedError`` unless the algorithm takes that payload from ``user``."""
        accept(self.method, self.state, user, packed)

    def header(self, row: Round, keys: KeyRing) -> RoundHeader:
        """What devices are told of a round that collects."""
        assert row.deadline is not None  # since it collects
        return RoundHeader(
            deployment=self.config.deployment,
            algorithm=self.config.algorithm,
            round_id=row.round_id,
            model_version=row.model_version,
            config_digest=row.config_digest,
            deadline_unix_s=row.deadline,
            server_key_id=row.server_key_id,
            server_public_key=keys.public(row.server_key_id),
            cohort=row.cohort,
            clip_norm=self.clip_norm(row),
        )

    def announced_norm(self, medians: Sequence[float]) -> float:
        """The longest update that counts in a round that follows committed rounds with these medians."""
        return clipping.announced_norm(self.start_norm, medians, self.config)

    def clip_norm(self, row: Round) -> float:
        """The longest update that counts in that round; it was fixed when the round opened."""
        if row.clip_norm is None:  # opened by a version that announced none
            return clipping.absolute_norm(self.start_norm, self.config)
        return float(row.clip_norm)

    def invitation(self, device: Device, header: RoundHeader, keys: KeyRing) -> bytes:
        """What one device may choose from, sealed to it and signed by the server. Raises :class:`Problem` 403, 409."""
        self._check_admitted(device)
        body = invite(self.method, self.state, device.user)
        if body is None:
            raise Problem("nothing-to-request", "in this deployment a device chooses nothing; fetch its task")
        invitation = Invitation(header.round_id, header.algorithm, body)
        return self._sealed("invitation", pack(invitation), device, header, keys)

    def task(self, device: Device, row: Round, keys: KeyRing, request: bytes | None = None) -> bytes:
        """The algorithm's task for one device, sealed to it and signed by the server.

        The same request in the same round gives the same task: its random numbers are a function of round and user.

        Args:
            device: whose.
            row: the round.
            keys: the server's.
            request: what the device asks for, packed by its algorithm; ``None`` where it asks for nothing.

        Raises:
            Problem: 403 not admitted; 409 where a request is missing or unexpected; 404 for one that names what there
                is not, without saying what.
            WireError: the request is none of this algorithm's.
        """
        self._check_admitted(device)
        if self.method.request is None and request is not None:
            raise Problem("nothing-to-request", "in this deployment a device chooses nothing; fetch its task")
        if self.method.request is not None and request is None:
            raise Problem("request-needed", "in this deployment a device says what it asks for; fetch invitation")
        try:
            body = assign(self.method, self.state, device.user, request=request, seed=int(row.seed))
        except (UpdateRejectedError, UnknownNameError) as error:
            if request is None:
                raise Problem("not-selected", str(error)) from error
            # The algorithm's own words may name what was asked for.
            raise Problem("unknown-request", "something that was asked for is not offered in this round") from error
        header = self.header(row, keys)
        task = Task(header.round_id, header.algorithm, body)
        return self._sealed("task", pack(task), device, header, keys)

    def check_verifies(self) -> None:
        """Raise :class:`Problem` 403 where nobody may be verified here."""
        if not self.method.server.verifies_on_server:
            raise Problem(
                "edge-only",
                f"under {self.config.algorithm} no template leaves its device, so nobody is verified here; "
                "verify on the device",
            )

    def report(self) -> dict[str, Scalar]:
        """What the algorithm tells the operator of this training; ``None`` for a number that is not finite."""
        told = self.method.server.report(self.state, self.method.settings)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in told.items()
        }

    def _check_admitted(self, device: Device) -> None:
        if device.user not in self.method.server.users(self.state):
            raise Problem("not-selected", "that user is not among those admitted; send an admission first")

    @staticmethod
    def _sealed(message_type: str, message: bytes, device: Device, header: RoundHeader, keys: KeyRing) -> bytes:
        binding = Binding(
            deployment=header.deployment,
            direction="down",
            message_type=message_type,
            algorithm=header.algorithm,
            round_id=header.round_id,
            model_version=header.model_version,
            sender=SERVER_SENDER,
            recipient_key_id=device.device_id,
            nonce=new_nonce(),
        )
        return seal([message], binding, recipient=device.sealing_key, signing_key=keys.signing)

    def expected(self, message_type: str) -> Expected:
        """What the binding of a message outside rounds must say; its key and model are the caller's to check."""
        return Expected(self.config.deployment, message_type, self.config.algorithm, 0, None, None)

    def expected_in_round(self, message_type: str, row: Round) -> Expected:
        """What the binding of a message in that round must say."""
        return Expected(
            self.config.deployment,
            message_type,
            self.config.algorithm,
            row.round_id,
            row.model_version,
            row.server_key_id,
        )


def check_restricted(config: TrainingConfig, allowed: Sequence[str]) -> None:
    """Raise ``SettingsError`` where the algorithm advises against these settings and the operator has not named it, or
    where one device could move the model without bound.
    """
    clipping.check_bounded(config)
    settings = algorithms.settings(config.algorithm, config.algorithm_settings)
    reason = algorithms.server(config.algorithm).restricted(settings)
    if reason and config.algorithm not in allowed:
        raise SettingsError(
            f"these settings of {config.algorithm} are refused: {reason}. Whoever accepts that starts the server with "
            f"--allow {config.algorithm}"
        )
