"""Which samples of an enrolment took part in training, and since which model.

A model that was trained on a sample scores it better than a fresh one of the same person: a quantile of such scores,
taken for a threshold, refuses the person. So before an update can leave, the store notes of every sample behind it the
model that the round began from. That model was made without the sample; of every other one nothing is known, and the
sample counts as trained on.

A person who only evaluates has no such record, nor has one whose device never took part: all their samples are fresh.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from uvsdk.arrays import Array, Bool
from uvsdk.errors import StoreError
from uvsdk.privacy.identifiers import canonical_instance

if TYPE_CHECKING:
    from uvsdk_device.keystore import EncryptedStore

MEMORY = "memory"
"""Record of what an algorithm keeps between rounds (:mod:`uvsdk_device.memory`): whoever has one has taken part."""

_PURPOSE = "trained"


def note_trained(store: EncryptedStore, user_id: str, features: Sequence[Array], *, model_version: str) -> None:
    """Remember that a round trains on ``features``, from the model of that version on. Durable when it returns."""
    with store.lock():
        known = _known(store, user_id)
        # An earlier version of this library took part and wrote no such record: made without them is then no model.
        since = "" if known is None and _took_part(store, user_id) else model_version
        # Samples of an enrolment that was replaced are dropped: nobody asks for them again.
        noted = {name: (known or {}).get(name, since) for name in map(_name, features)}
        if noted != known:
            store.put(_PURPOSE, [json.dumps(noted).encode()], user=user_id)


def fresh_samples(store: EncryptedStore, user_id: str, features: Sequence[Array], model_version: str) -> Bool:
    """Which of ``features`` the model of that version was made without, bool (n,).

    Raises:
        StoreError: the record is damaged.
    """
    known = _known(store, user_id)
    if known is None:
        return np.full(len(features), not _took_part(store, user_id))
    began = [known.get(_name(item), model_version) for item in features]
    return np.array([version == model_version for version in began], np.bool_)


def _took_part(store: EncryptedStore, user_id: str) -> bool:
    return store.holds(MEMORY, user=user_id)


def _known(store: EncryptedStore, user_id: str) -> dict[str, str] | None:
    try:
        (data,) = store.get(_PURPOSE, user=user_id)
    except KeyError:
        return None
    try:
        return {str(name): str(version) for name, version in json.loads(data).items()}
    except (ValueError, AttributeError) as error:
        raise StoreError(
            "the record of what took part in training does not read; restore it from a backup, or enrol again"
        ) from error


def _name(features: Array) -> str:
    return hashlib.sha256(canonical_instance(features)).hexdigest()
