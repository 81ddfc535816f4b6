"""Which release this device verifies by, and how it comes to another one.

A server names its release; the device takes it only if the record is signed by the key it approved, its number is not
below the highest it has seen (who replays an old record gets nowhere; a roll-back is a new number), and its bundle is
the one the record names. Then it tries the model on everybody enrolled here (:mod:`uvsdk.release.acceptance`). An
objection keeps the device on the release it has: it notes the refusal, and tells the server that there was one and not
why.

A switch is one atomic write, and everything that verification needs under the new release lies on the disk before it:
its bundle, and a template of everybody. The release before stays beside it with its templates, so a roll-back to it
gives the very same decisions. Killed anywhere, the device verifies by the one or by the other.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import numpy as np

from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import (
    BundleError,
    EnrolmentError,
    SampleError,
    SealError,
    ServerRefusedError,
    ServerUnreachableError,
    SettingsError,
    StoreError,
    ThresholdError,
    UnknownUserError,
    WireError,
)
from uvsdk.federation.strategy import TEMPLATE
from uvsdk.records.codec import pack, unpack
from uvsdk.release.acceptance import NOBODY_VERIFIED, Shares, nobodys, objection, shares
from uvsdk.release.record import Release, verify_release
from uvsdk.templates.template import Template
from uvsdk.verify import threshold_at
from uvsdk_device.connection import Connection, Object
from uvsdk_device.deployment import Deployment, signature_bytes, text
from uvsdk_device.keystore import EncryptedStore, StoredEnrolment
from uvsdk_device.memory import read_memory
from uvsdk_device.models import Models, released_path
from uvsdk_device.records import disk_errors, sync_folder
from uvsdk_device.reembedding import embeddings, is_current, remake

KEPT: Final = 2
"""Releases whose bundle and templates stay on the device: the one it verifies by, and the one before."""

_REFUSALS: Final = 16
_STRANGERS: Final = 200
_SAMPLES_OF_ONE: Final = 3
_PURPOSE = "releases"


@dataclass(frozen=True, slots=True)
class Signed:
    """A release as its server said it."""

    record: bytes
    signature: bytes

    @property
    def release(self) -> Release:
        """What was signed. Raises :class:`WireError`."""
        return unpack(Release, self.record)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A release that this device did not switch to.

    Args:
        number: of the release.
        bundle: digest of its bundle.
        reason: in words, for this device's owner alone.
        told: whether the server knows that there was a refusal.
    """

    number: int
    bundle: str
    reason: str
    told: bool


@dataclass(frozen=True, slots=True)
class Followed:
    """What this device knows of one deployment's releases.

    Args:
        deployment: its identity (:attr:`uvsdk_device.deployment.Deployment.identity`).
        seen: the release of the highest number that was ever shown here, whatever became of it; at most one.
        adopted: those on this device, the one it verifies by first.
        refusals: the newest last.
    """

    deployment: str
    seen: tuple[Signed, ...]
    adopted: tuple[Signed, ...]
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """All that a store knows of the releases of one modality.

    Args:
        in_use: identity of the deployment whose release verifies here; empty before the first.
        followed: one for each deployment.
    """

    in_use: str = ""
    followed: tuple[Followed, ...] = ()

    def of(self, deployment: str) -> Followed:
        """What is known of one deployment."""
        known = next((item for item in self.followed if item.deployment == deployment), None)
        return known or Followed(deployment, (), (), ())

    @property
    def adopted(self) -> tuple[Signed, ...]:
        """The release that verifies here, and the one before; empty before the first."""
        return self.of(self.in_use).adopted if self.in_use else ()

    def with_(self, changed: Followed) -> Standing:
        """The same with what is known of one deployment now."""
        others = tuple(item for item in self.followed if item.deployment != changed.deployment)
        return replace(self, followed=(*others, changed))


@dataclass(frozen=True, slots=True)
class ReleaseReport:
    """What became of a release that a device was shown.

    Args:
        number: of the release.
        model_version: of its model.
        state: ``adopted``, or ``refused``: the device verifies by what it verified by before.
        detail: in words, why it was refused.
    """

    number: int
    model_version: str
    state: Literal["adopted", "refused"]
    detail: str = ""


def read_standing(store: EncryptedStore, modality: str) -> Standing:
    """What this store knows of releases. Raises :class:`StoreError` where the record is damaged."""
    try:
        (data,) = store.get(_PURPOSE, name=modality)
        return unpack(Standing, data)
    except KeyError:
        return Standing()
    except WireError as error:
        raise StoreError("the store's record of releases does not read; restore it from a backup") from error


def adopted_modality(store: EncryptedStore, modality: str = "") -> str:
    """The modality of the one release that verifies here.

    Args:
        store: of this device.
        modality: asks for one; needed where releases of several have been adopted.

    Raises:
        SettingsError: none was adopted, or several were.
    """
    from uvsdk import modality as modalities

    names = [modality] if modality else list(modalities.names())
    found = [name for name in names if read_standing(store, name).adopted]
    if len(found) == 1:
        return found[0]
    if found:
        raise SettingsError(
            f"this store verifies by releases for {' and '.join(found)}; say which is meant (modality), or name a model"
        )
    raise SettingsError(
        "this store has adopted no release, so a model must be named: the bundle that people were enrolled with "
        "(--model), or take part in a deployment (uvsdk participate)"
    )


def adopted_bundle(store: EncryptedStore, signed: Signed, *, models: Models | None = None) -> Bundle:
    """The bundle of an adopted release, from the disk, exactly as it was released.

    Args:
        store: of this device.
        signed: one that it has adopted.
        models: of its server, whose signature it then bears, for those who pass it on; the store's own record is enough
            to verify with it.

    Raises:
        StoreError: it is missing or was altered; the next contact with the server brings it back.
    """
    release = signed.release
    why = "is not the one that was adopted"
    try:
        path = released_path(store, release.bundle)
        bundle = Bundle.open(path) if models is None else models.opened(path)
        if bundle.digest == release.bundle:
            return bundle
    except BundleError as error:
        why = f"does not open ({error})"
    raise StoreError(
        f"the bundle of release {release.number} on this device {why}; fetch it again: uvsdk store --refresh USER "
        "--server ..."
    )


def fetch_release(connection: Connection, deployment: Deployment) -> Signed:
    """The release that the server says it verifies by.

    Raises:
        WireError: not a release of this deployment.
        SealError: it is not signed by the server that this device approved.
    """
    _, values = connection.get_json("/v1/releases/current")
    signed = _signed(values)
    release = signed.release
    verify_release(release, signed.signature, deployment.server_signing_key)
    if release.deployment != deployment.name:
        raise WireError(f"the server shows a release of {release.deployment!r}, not of {deployment.name!r}")
    return signed


def _signed(values: Object) -> Signed:
    try:
        record = base64.b64decode(text(values, "record"), validate=True)
    except ValueError as error:
        raise WireError("record is not base64") from error
    signed = Signed(record, signature_bytes(values))
    if pack(signed.release) != record:
        raise WireError("the server's release is not written as this version of uvsdk writes it; is one side newer?")
    return signed


@dataclass(frozen=True, slots=True)
class Follower:
    """Keeps one store on the releases of one deployment.

    Args:
        store: of this device.
        deployment: what was agreed.
        connection: signed by a device of one of its users.
        models: brings bundles.
        fmr: false match rate of people who have none; ``None`` for the model's default.
    """

    store: EncryptedStore
    deployment: Deployment
    connection: Connection
    models: Models
    fmr: float | None

    def follow(self, *, again: bool = False) -> ReleaseReport | None:
        """Ask for the release, and switch to it where it is another one and nothing speaks against it.

        Args:
            again: try a release once more that was refused here.

        Returns:
            What became of it; ``None`` where nothing was to be done.

        Raises:
            SealError: the server shows an older release than one it has shown, or another one of the same number.
            WireError, UntrustedBundleError: the release, or its bundle, is not what it says.
            ServerUnreachableError, ServerRefusedError, StoreFullError: everything is as it was.
        """
        self._tell_refusals()
        signed = fetch_release(self.connection, self.deployment)
        release = signed.release
        known = self._known()
        check_order(known, signed)
        standing = read_standing(self.store, self.deployment.modality)
        here = known.adopted and known.adopted[0].record == signed.record
        if here and standing.in_use == known.deployment and self._is_whole(signed):
            return None
        refused = any(item.number == release.number for item in known.refusals)
        if refused and not again:
            return None
        bundle = self.models.of_release(release)
        if bundle.manifest.modality != self.deployment.modality:
            raise WireError(f"release {release.number} is a model for {bundle.manifest.modality}")
        reason, made = self._try(bundle)
        done = self._refuse(signed, reason) if reason else self._adopt(signed, bundle, made)
        self._tell_refusals()
        if not done:
            return None
        return ReleaseReport(release.number, release.model_version, "refused" if reason else "adopted", reason)

    def bundle(self) -> Bundle | None:
        """Of the release of this deployment that this device has adopted last; ``None`` before the first."""
        adopted = self._known().adopted
        return adopted_bundle(self.store, adopted[0], models=self.models) if adopted else None

    def template(self, user_id: str, bundle: Bundle) -> Template:
        """A user's template under ``bundle``, made and kept where there is none. Raises as :func:`remake`."""
        fits = partial(is_current, bundle=bundle, trained=self._trained(user_id))
        while True:
            enrolment = self.store.enrolment(user_id)
            found = self.store.template_for(user_id, fits)
            if found is None:
                found = self._made(user_id, enrolment, bundle)
            if self.store.use_template(user_id, found, enrolment_id=enrolment.enrolment_id):
                return found

    def _known(self) -> Followed:
        return read_standing(self.store, self.deployment.modality).of(self.deployment.identity)

    def _is_whole(self, signed: Signed) -> bool:
        """Whether the bundle lies on the disk as its server signed it."""
        with contextlib.suppress(StoreError):
            adopted_bundle(self.store, signed, models=self.models)
            return True
        return False

    def _people(self) -> list[tuple[str, StoredEnrolment]]:
        """Everybody here whom a model of this modality verifies."""
        found = []
        for user_id in self.store.users():
            with contextlib.suppress(UnknownUserError):  # deleted meanwhile
                enrolment = self.store.enrolment(user_id)
                if enrolment.template.modality == self.deployment.modality:
                    found.append((user_id, enrolment))
        return found

    def _trained(self, user_id: str) -> Array | None:
        return read_memory(self.store, user_id, self.deployment).get(TEMPLATE)

    def _made(self, user_id: str, enrolment: StoredEnrolment, bundle: Bundle) -> Template:
        return remake(
            _rated(self.store, user_id, enrolment.template),
            enrolment.features,
            bundle,
            trained=self._trained(user_id),
            fmr=self.fmr,
            fresh=self.store.fresh_samples(user_id, enrolment.features, bundle.version),
        )

    # Trying

    def _try(self, bundle: Bundle) -> tuple[str, list[tuple[str, bytes, Template]]]:
        """Why this device does not switch, empty where it does; and a template of everybody under ``bundle``."""
        people = self._people()
        former = self._former()
        try:
            rows = {user_id: _rows(enrolment.features, bundle) for user_id, enrolment in people}
        except BundleError as error:  # no direction, not finite
            return str(error), []
        before: dict[str, Float32] = {}
        if former is not None:  # where only the calibration differs, nothing need be embedded anew
            same = former.version == bundle.version
            before = rows if same else {user_id: _rows(item.features, former) for user_id, item in people}
        made = []
        for user_id, enrolment in people:
            fitting = self.store.template_for(user_id, partial(is_current, bundle=bundle))
            reason = "" if fitting is not None else self._objection(user_id, enrolment, bundle, rows, former, before)
            if reason:
                return reason, []
            try:
                template = self._made(user_id, enrolment, bundle) if fitting is None else fitting
            except (ThresholdError, EnrolmentError) as error:
                return str(error), []
            made.append((user_id, enrolment.enrolment_id, template))
        return "", made

    def _objection(
        self,
        user_id: str,
        enrolment: StoredEnrolment,
        bundle: Bundle,
        rows: dict[str, Float32],
        former: Bundle | None,
        before: dict[str, Float32],
    ) -> str:
        if not len(enrolment.features):
            return "somebody is enrolled without samples, so no template could be made"
        limit = _rated(self.store, user_id, enrolment.template).threshold
        if bundle.calibration is None and limit is None:
            return ""  # nobody could be verified before, and nothing is lost
        noise = nobodys(enrolment.features[0], np.random.default_rng(0))
        compared: Shares | None = None
        if limit is None:
            compared = NOBODY_VERIFIED
        elif former is not None and former.calibration is not None:
            compared = shares(
                before[user_id],
                _strangers(user_id, before),
                former.calibration,
                threshold_at(former),
                noise=_usable(noise, former),
            )
        return objection(
            rows[user_id],
            _strangers(user_id, rows),
            bundle.calibration,
            fmr=self.fmr if limit is None else None if limit.by_default else limit.fmr,
            noise=_usable(noise, bundle),
            former=compared,
        )

    def _former(self) -> Bundle | None:
        """What verifies here now, where its bundle is at hand."""
        adopted = read_standing(self.store, self.deployment.modality).adopted
        with contextlib.suppress(StoreError):
            return adopted_bundle(self.store, adopted[0]) if adopted else None
        return None

    # Switching

    def _adopt(self, signed: Signed, bundle: Bundle, made: Sequence[tuple[str, bytes, Template]]) -> bool:
        """Switch; false where another process has come to a newer release meanwhile."""
        release = signed.release
        self._save(bundle)
        self.store.accept_model(bundle)
        for user_id, enrolment_id, template in made:
            with contextlib.suppress(UnknownUserError):
                self.store.keep_template(user_id, template, enrolment_id=enrolment_id)
        with self.store.lock():
            known = self._known()
            if _is_past(known, release):
                return False
            if not released_path(self.store, release.bundle).exists():
                self._save(bundle)
            others = [item for item in known.adopted if item.release.bundle != release.bundle]
            changed = replace(
                known,
                seen=(signed,),
                adopted=(signed, *others)[:KEPT],
                refusals=tuple(item for item in known.refusals if item.number != release.number),
            )
            self._put(changed, in_use=True)
            self._clear()
        # Who reads the store without a release finds the newest template in the enrolment.
        for user_id, enrolment_id, template in made:
            with contextlib.suppress(UnknownUserError):
                self.store.use_template(user_id, template, enrolment_id=enrolment_id)
        return True

    def _refuse(self, signed: Signed, reason: str) -> bool:
        """Stay; false where another process has come to a newer release meanwhile."""
        release = signed.release
        with self.store.lock():
            known = self._known()
            if _is_past(known, release):
                return False
            others = [item for item in known.refusals if item.number != release.number]
            told = any(item.number == release.number and item.told for item in known.refusals)
            refusals = (*others, Refusal(release.number, release.bundle, reason, told))[-_REFUSALS:]
            self._put(replace(known, seen=(signed,), refusals=refusals), in_use=False)
        return True

    def _tell_refusals(self) -> None:
        """Tell the server how many refusals there were: one call each, without a word of why."""
        for refusal in self._known().refusals:
            if refusal.told:
                continue
            try:
                self.connection.post(f"/v1/releases/{refusal.number}/refusal", b"", limit=1 << 16)
            except ServerUnreachableError:
                return  # at the next contact
            except ServerRefusedError:
                pass  # it knows no such release any more
            with self.store.lock():
                known = self._known()
                told = tuple(replace(item, told=item.told or item == refusal) for item in known.refusals)
                self._put(replace(known, refusals=told), in_use=False)

    def _put(self, changed: Followed, *, in_use: bool) -> None:
        modality = self.deployment.modality
        standing = read_standing(self.store, modality).with_(changed)
        if in_use:
            standing = replace(standing, in_use=changed.deployment)
        self.store.put(_PURPOSE, [pack(standing)], name=modality)

    def _save(self, bundle: Bundle) -> None:
        path = released_path(self.store, bundle.digest)
        with self.store.lock(), disk_errors():  # whoever opens the store removes what a killed writer left
            try:
                kept = Bundle.open(path)
            except BundleError:
                kept = None
            if kept is None or (kept.digest, kept.signature) != (bundle.digest, bundle.signature):
                bundle.save(path)
                sync_folder(path.parent)

    def _clear(self) -> None:
        """Remove bundles of releases that nothing goes back to; the lock is held, so no other switch is half done."""
        from uvsdk import modality

        wanted = {
            released_path(self.store, signed.release.bundle)
            for name in modality.names()
            for followed in read_standing(self.store, name).followed
            for signed in followed.adopted
        }
        with disk_errors():
            for path in (self.store.folder / "models").glob("release-*.uvb"):
                if path not in wanted:
                    path.unlink(missing_ok=True)


def _is_past(known: Followed, release: Release) -> bool:
    return any(other.release.number > release.number for other in known.seen)


def check_order(known: Followed, signed: Signed) -> None:
    """Refuse a release that is older than one this device was shown, or another one of the same number.

    Raises:
        SealError: so it is; nothing was changed.
    """
    for other in known.seen:
        former, release = other.release, signed.release
        if release.number < former.number:
            raise SealError(
                f"the server shows release {release.number}, this device has seen release {former.number}: somebody "
                "replays an old answer, or the server was restored from a backup. This device stays on what it has; if "
                "the operator says that it was a backup, forget the server (uvsdk store --forget-server) and join again"
            )
        if release.number == former.number and signed.record != other.record:
            raise SealError(
                f"the server has signed two different releases {release.number}; this device stays on what it has"
            )


def forget_order(store: EncryptedStore, deployment: str) -> None:
    """Forget which numbers a deployment has shown, at its owner's word; what verifies here stays."""
    from uvsdk import modality

    for name in modality.names():
        with store.lock():
            standing = read_standing(store, name)
            if any(item.deployment == deployment and item.seen for item in standing.followed):
                changed = replace(standing.of(deployment), seen=(), refusals=())
                store.put(_PURPOSE, [pack(standing.with_(changed))], name=name)


def _rated(store: EncryptedStore, user_id: str, template: Template) -> Template:
    """``template``, or another of the same enrolment that knows the rate somebody has named."""
    if template.threshold is not None:
        return template
    return next((item for item in store.templates(user_id) if item.threshold is not None), template)


def _rows(features: Sequence[Array], bundle: Bundle) -> Float32:
    return embeddings(features, bundle) if features else np.empty((0, bundle.manifest.dimension), np.float32)


def _strangers(user_id: str, rows: dict[str, Float32]) -> Float32:
    others = [found[:_SAMPLES_OF_ONE] for other, found in rows.items() if other != user_id]
    return np.concatenate([*others, rows[user_id][:0]])[:_STRANGERS]


def _usable(samples: Sequence[Array], bundle: Bundle) -> Float32:
    """Embeddings of those that the model takes."""
    found = []
    for sample in samples:
        with contextlib.suppress(SampleError, BundleError):
            found.append(_rows([sample], bundle))
    return np.concatenate([*found, np.empty((0, bundle.manifest.dimension), np.float32)])
