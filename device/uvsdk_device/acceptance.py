"""Which models a store works with: the first one it meets, and those that are accepted after it.

A bundle on a device's disk is a file like any other. Whoever may write it could exchange the calibration, so that every
threshold falls, the detector, or the whole model for one that finds everybody alike, and the store would make its
templates again with that. So the store remembers, encrypted, the digest of every bundle it worked with, for each
modality. The first is taken on trust; another one must be accepted by name (:meth:`EncryptedStore.accept_model`,
``uvsdk store --accept-model``), or be signed by a key that the application or the approved server vouches with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from uvsdk.errors import ExchangedBundleError, StoreError, UnknownUserError

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle
    from uvsdk_device.keystore import EncryptedStore

KEPT: Final = 32
"""Models accepted by a signature that are remembered of a modality, the oldest first to go; the others all stay."""

_PURPOSE = "accepted"


@dataclass(frozen=True, slots=True)
class Accepted:
    """One model that a store works with.

    Args:
        digest: of the bundle.
        model_version: of the bundle.
        members: name -> SHA-256, to say what differs in another one.
        signed_by: key whose signature vouched for it; empty where a person did, or it was the first.
    """

    digest: str
    model_version: str
    members: Mapping[str, str]
    signed_by: str


def check_model(store: EncryptedStore, bundle: Bundle) -> bool:
    """Whether ``bundle`` is accepted already; false where the store has not met any of its modality.

    Raises:
        ExchangedBundleError: others are accepted and this one is not.
        StoreError: the record is damaged.
    """
    known = accepted_models(store, bundle.manifest.modality)
    if any(item.digest == bundle.digest for item in known):
        return True
    if bundle.signed_by is None:
        if known:
            raise ExchangedBundleError(_refusal(bundle, known[-1]))
        _check_templates(store, bundle)
    return False


def _check_templates(store: EncryptedStore, bundle: Bundle) -> None:
    """Whoever removes the record does not make the next bundle the first: the templates name their calibration too."""
    found = "" if bundle.calibration is None else bundle.calibration.digest
    for user_id in store.users():
        try:
            template = store.template(user_id)
        except UnknownUserError:  # deleted meanwhile
            continue
        named = "" if template.threshold is None else template.threshold.calibration
        other = (template.model_version, named) != (bundle.version, found)
        if template.modality == bundle.manifest.modality and named and other:
            raise ExchangedBundleError(
                f"people in this store were enrolled with the model {template.model_version[:12]} and its calibration "
                f"{named[:12]}, this bundle has {bundle.version[:12]} and {found[:12] or 'none'}. Use the bundle "
                "they were enrolled with; if the new one is meant, look at it (uvsdk bundle show) and accept it: "
                "uvsdk store --accept-model BUNDLE, or store.accept_model(bundle)"
            )


def accept_model(store: EncryptedStore, bundle: Bundle) -> None:
    """Work with ``bundle`` from now on, beside those accepted before. Durable when it returns."""
    modality = bundle.manifest.modality
    with store.lock():
        known = accepted_models(store, modality)
        if known and known[-1].digest == bundle.digest and (bundle.signed_by or not known[-1].signed_by):
            return
        by_word = any(item.digest == bundle.digest and not item.signed_by for item in known)
        signed_by = "" if by_word or bundle.signed_by is None else bundle.signed_by
        kept = [item for item in known if item.digest != bundle.digest]
        kept.append(Accepted(bundle.digest, bundle.version, dict(bundle.members), signed_by))
        # Training makes a new model every day; what somebody accepted, or enrolled with, is not pushed out by those.
        spare = [item.digest for item in kept if item.signed_by][:-KEPT]
        values = [
            [item.digest, item.model_version, dict(item.members), item.signed_by]
            for item in kept
            if item.digest not in spare
        ]
        store.put(_PURPOSE, [json.dumps(values).encode()], name=modality)


def accepted_models(store: EncryptedStore, modality: str) -> Sequence[Accepted]:
    """The newest last. Raises :class:`StoreError` where the record is damaged."""
    try:
        (data,) = store.get(_PURPOSE, name=modality)
    except KeyError:
        return ()
    try:
        return tuple(Accepted(*values) for values in json.loads(data))
    except (ValueError, TypeError) as error:
        raise StoreError("the store's record of accepted models does not read; restore it from a backup") from error


def _refusal(bundle: Bundle, last: Accepted) -> str:
    found = bundle.members
    names = sorted(name for name in {*found, *last.members} if found.get(name) != last.members.get(name))
    what = f"{', '.join(names)} differ" if names else "its manifest differs"
    model = "the same model version" if last.model_version == bundle.version else "another model version"
    return (
        f"this bundle ({bundle.digest[:12]}) is not the one this store works with ({last.digest[:12]}): {model}, "
        f"{what}. Use the accepted bundle; if the new one is meant, look at it (uvsdk bundle show) and accept it: "
        "uvsdk store --accept-model BUNDLE, or store.accept_model(bundle)"
    )
