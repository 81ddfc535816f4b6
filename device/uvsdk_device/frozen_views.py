"""What the frozen part of a model made of a user's samples, kept encrypted from one round to the next.

It is as personal as the features it is made of, and lies in the user's folder of the store: it is deleted with the
user, and when the user leaves the server. One record a user and server holds a section for each sample, and each
section names the frozen part and the sample it is of, so that another model, or another enrolment, is never trained on
what is left of the former. What is damaged, missing or of something else is computed again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.frozen import CROPS, FrozenPart, FrozenViews, sample_digest
from uvsdk.errors import BundleError, StoreError, StoreFullError, WireError
from uvsdk.records.codec import pack, unpack
from uvsdk_device.deployment import Deployment
from uvsdk_device.keystore import EncryptedStore

LIMIT_BYTES = 64 << 20
"""Most that is kept of one user; what takes more is computed in every round."""

_PURPOSE = "frozen-views"


@dataclass(frozen=True, slots=True)
class _Section:
    """One sample: ``part`` and ``sample`` are digests, the arrays those of :class:`uvsdk.bundle.frozen.FrozenViews`."""

    part: str
    sample: str
    inference: Float32
    crops: Float32


def frozen_views(
    store: EncryptedStore, user_id: str, *, deployment: Deployment, features: Sequence[Array], bundle: Bundle
) -> tuple[FrozenViews, ...]:
    """What the frozen part of ``bundle`` makes of each of ``features``, from the store where it is there.

    Crops are augmented as the deployment's approved configuration asks for.

    A full disk keeps nothing, and training goes on.

    Raises:
        BundleError: nothing of the model is frozen, or the features are of another model.
        UnknownUserError: not (or no longer) enrolled.
    """
    part = FrozenPart(bundle, augmentation=deployment.config.augmentation)
    kept = _kept(store, user_id, deployment, part.digest)
    names = [sample_digest(item) for item in features]
    by_name = dict(zip(names, features, strict=True))
    made = {name: kept[name] if name in kept else part(item) for name, item in by_name.items()}
    if set(made) != set(kept):
        _keep(store, user_id, deployment, part.digest, made)
    return tuple(made[name] for name in names)


def forget_frozen_views(store: EncryptedStore, user_id: str, deployment: Deployment) -> None:
    """Drop what was kept for that server."""
    store.drop(_PURPOSE, name=deployment.identity, user=user_id)


def _kept(store: EncryptedStore, user_id: str, deployment: Deployment, part: str) -> dict[str, FrozenViews]:
    """Sample digest -> what this frozen part made of it; nothing where the record does not open."""
    try:
        sections = store.get(_PURPOSE, name=deployment.identity, user=user_id)
        found = [unpack(_Section, data) for data in sections]
        return {
            item.sample: FrozenViews(item.inference, item.crops)
            for item in found
            if item.part == part and len(item.crops) == CROPS
        }
    except (KeyError, StoreError, WireError, BundleError):
        return {}


def _keep(store: EncryptedStore, user_id: str, deployment: Deployment, part: str, made: dict[str, FrozenViews]) -> None:
    if sum(item.inference.nbytes + item.crops.nbytes for item in made.values()) > LIMIT_BYTES:
        return
    sections = [pack(_Section(part, name, item.inference, item.crops)) for name, item in made.items()]
    with contextlib.suppress(StoreFullError):
        store.put(_PURPOSE, sections, name=deployment.identity, user=user_id)
