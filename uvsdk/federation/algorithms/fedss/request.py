"""How a device of FedSS chooses the classes it trains against (S4 section 3.3; SPEC 5.5)."""

from __future__ import annotations

import hashlib

import numpy as np

from uvsdk.arrays import Int64, UInt8
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedss.payload import Invitation, Request, Settings
from uvsdk.federation.sampled_softmax import columns
from uvsdk.federation.sampled_softmax.columns import Columns
from uvsdk.federation.strategy import Memory, RequestAlgorithm, Secret

KEY, ROUNDS = "key", "rounds"
"""What a device keeps between rounds: the key of its samples, and how many it has drawn."""

_KEY_BYTES = 32


def _invite(state: Columns, user: str, settings: Settings) -> Invitation:
    """The ids of the user's label space. Raises :class:`UpdateRejectedError` for a stranger."""
    ids = state.ids[columns.label_space(state, user, settings)]
    size = settings.size(len(ids), columns.most_held(state))
    return Invitation(np.sort(ids), state.ids[state.own(user)], size)


def _choose(
    invitation: Invitation, memory: Memory, settings: Settings, rng: np.random.Generator, secret: Secret
) -> tuple[Request, Memory]:
    """The own classes and a uniform sample of the others without replacement, ``invitation.size`` in all.

    Raises:
        UpdateRejectedError: an invitation that repeats a class, lacks the own ones, or asks for fewer than the own
            classes and the negatives of the settings: the sample would hide less than was agreed to.
    """
    _check(invitation, settings)
    others = np.setdiff1d(invitation.classes, invitation.own)
    if settings.loss == "positives":
        return Request(np.sort(invitation.own)), memory
    wanted = invitation.size - len(invitation.own)
    if wanted == len(others):
        return Request(invitation.classes), memory
    if not settings.epoch_rounds:
        return _request(invitation, rng.choice(others, wanted, replace=False)), memory
    key = memory[KEY] if KEY in memory else np.frombuffer(secret(_KEY_BYTES), np.uint8)
    drawn = int(memory[ROUNDS][0]) if ROUNDS in memory else 0
    sample = _keyed_sample(others, wanted, key.astype(np.uint8), drawn // settings.epoch_rounds)
    return _request(invitation, sample), {**memory, KEY: key, ROUNDS: np.array([drawn + 1], np.int64)}


def _keyed_sample(others: Int64, wanted: int, key: UInt8, epoch: int) -> Int64:
    """The ``wanted`` classes of smallest PRF(key, epoch, id): uniform to whoever lacks the key, and a class that joins
    or leaves changes one place of the sample at most.
    """
    prefix = epoch.to_bytes(8, "little")
    keyed = key.tobytes()
    ranks = np.array(
        [
            int.from_bytes(hashlib.blake2b(prefix + int(name).to_bytes(8, "little"), key=keyed, digest_size=8).digest())
            for name in others
        ],
        np.uint64,
    )
    return others[np.argsort(ranks, kind="stable")[:wanted]]


def _request(invitation: Invitation, sample: Int64) -> Request:
    return Request(np.sort(np.concatenate([invitation.own, sample])))


def _check(invitation: Invitation, settings: Settings) -> None:
    classes, own = invitation.classes, invitation.own
    if bool((np.diff(classes) <= 0).any()) or len(own) == 0 or len(np.unique(own)) != len(own):
        raise UpdateRejectedError("the server's label space is not a list of distinct ids in ascending order")
    if not bool(np.isin(own, classes).all()):
        raise UpdateRejectedError("the server's label space lacks classes that it says this device holds")
    if not settings.size(len(classes), len(own)) <= invitation.size <= len(classes):
        raise UpdateRejectedError(
            f"the server asks this device to name {invitation.size} of {len(classes)} classes, the approved settings "
            f"at least {settings.size(len(classes), len(own))}"
        )


REQUEST = RequestAlgorithm(invitation=Invitation, request=Request, invite=_invite, choose=_choose)
