"""Taking part in training from a device: join, train in rounds, and have the template follow the model."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from uvsdk.bundle import Bundle
from uvsdk.enroll import Participation
from uvsdk.errors import (
    BundleError,
    EnrolmentError,
    PendingDeviceError,
    SealError,
    ServerRefusedError,
    ServerUnreachableError,
    SettingsError,
    StoreError,
    ThresholdError,
    TrainingUnavailableError,
    UpdateRejectedError,
    WireError,
)
from uvsdk.federation.messages import EvaluationHeader, RoundHeader
from uvsdk.federation.strategy import TEMPLATE, Secret
from uvsdk.privacy.identifiers import PEPPER_BYTES, canonical_user_id
from uvsdk.records.transfer import stays_here
from uvsdk.templates.storage import Store
from uvsdk.templates.template import Template
from uvsdk.training.participation import Trainer, find_trainer
from uvsdk_device.address import Address
from uvsdk_device.connection import Connection
from uvsdk_device.deployment import approved_deployment, check_fit
from uvsdk_device.evaluations import (
    EvaluationDone,
    answer,
    check_evaluation,
    endpoint_of,
    enqueue_report,
    fetch_evaluation_task,
    read_evaluation,
)
from uvsdk_device.keystore import EncryptedStore, require_encrypted
from uvsdk_device.leaving import Removal, delete_user
from uvsdk_device.membership import (
    KnownDevice,
    Membership,
    admission_of,
    admit,
    approve,
    check_server_verification,
    device_of,
    forget_here,
    handed_over,
    is_member,
    known_devices,
    member_of,
    note_handed_over,
    register,
    replace_keys,
    resign,
    revoke,
    send_template,
    settle_keys,
    was_handed_over,
)
from uvsdk_device.memory import read_memory
from uvsdk_device.models import Models
from uvsdk_device.queue import Backoff, QueueItem, UploadQueue
from uvsdk_device.releases import Follower, ReleaseReport, fetch_release
from uvsdk_device.rounds import RoundReport, acknowledge, check_header, enqueue, read_header, train
from uvsdk_device.tasks import fetch_task

_WAIT_S = 25.0
_PAUSE_S = 0.5
_ADMISSION_ATTEMPTS = 5
_DELETION_WAIT_S = 10.0
# A round that closed, or a task that is gone, while this device was looking at it.
_ROUND_OVER = frozenset({404, 409, 410})

_Offer = RoundHeader | EvaluationHeader | Literal["waiting", "finished"]
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, repr=False)
class _Session:
    """What one call needs of one user: who, with which models, and what waits to be sent."""

    member: Membership
    store: EncryptedStore
    models: Models
    queue: UploadQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """A coordination server that users of this device train with; implements :class:`uvsdk.enroll.Federation`.

    Args:
        url: of the server.
        enrolment_token: the operator's; needed until the device is registered.
        pepper: the deployment's secret under which user ids are hashed; the server never learns an id in clear.
        approve: digest of the training configuration that this device's owner approves; ``None`` approves the
            first one the server shows, and no other after it.
        trainer: does the local steps; ``None`` looks for an installed one when it is needed.
        server_verification: also hand the sealed template to the server, once somebody has vouched for this device;
            ``EdgeOnlyError`` where none may leave.
        fmr: false match rate of people who were enrolled with a model without calibration, once a round has given one
            that has; ``None`` for the model's default. Whoever has a threshold keeps its rate.
        person_id: links the identities of one person (voice and face, two devices), so that training does not push
            them apart; hashed, and sent only where the algorithm can use it. Empty for no link.
        allow_plain_http: see :class:`~uvsdk_device.connection.Connection`.
        rotate_after_s: age at which :meth:`participate` replaces this device's keys.
        patience_s: how long an unreachable server is tried again before :meth:`participate` gives up.
        backoff: waits between tries.
        clock: seconds since 1970.
        sleep, rng: waits, and their jitter; replaced in tests.
        secret: where the key behind a request comes from; replaced in tests only.

    Raises:
        SettingsError: an argument that no server would make right; nothing is stored then.
    """

    url: str = field(kw_only=False)
    enrolment_token: str = field(default="", repr=False)
    pepper: bytes = field(repr=False)
    approve: str | None = None
    trainer: Trainer | None = field(default=None, repr=False)
    server_verification: bool = False
    fmr: float | None = None
    person_id: str = field(default="", repr=False)
    allow_plain_http: bool = False
    rotate_after_s: float = 90 * 86_400.0
    patience_s: float = 600.0
    backoff: Backoff = field(default_factory=Backoff)
    clock: Callable[[], float] = field(default=time.time, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    rng: np.random.Generator = field(default_factory=np.random.default_rng, repr=False)
    secret: Secret = field(default=os.urandom, repr=False)

    __reduce_ex__ = stays_here("it holds the deployment's pepper; make it in each process")

    def __post_init__(self) -> None:
        Address.parse(self.url, allow_plain_http=self.allow_plain_http)
        if not isinstance(self.pepper, bytes) or len(self.pepper) < PEPPER_BYTES:
            raise SettingsError(f"a pepper is at least {PEPPER_BYTES} bytes, the deployment's; ask its operator")
        if not self.enrolment_token.isprintable() or not self.enrolment_token.isascii():
            raise SettingsError("an enrolment token is one line of printable ASCII, without spaces at its ends")
        if self.approve is not None and not re.fullmatch("[0-9a-f]{64}", self.approve):
            raise SettingsError("approve is the digest of a training configuration, 64 hexadecimal digits")
        if self.person_id:
            canonical_user_id(self.person_id)
        if not self.patience_s >= 0:
            raise SettingsError(f"patience_s is {self.patience_s}; it is at least 0")

    def take_part(self, user_id: str, *, model: Bundle, store: Store) -> Participation:
        """Join, and train at once where a round is open and a trainer is installed.

        Returns:
            ``trained``, ``joined``, or ``queued`` where the server cannot be reached: :meth:`participate` goes on;
            ``pending`` where another device of this person, or the operator, must approve this one first.

        Raises:
            UnapprovedConfigError, ServerRefusedError: the server's conditions, or its refusal.
            StoreError: the store is not this device's encrypted one.
        """
        device_store = require_encrypted(store)
        try:
            with self._connection() as connection:
                session = self._join(user_id, device_store, connection, model)
                self._between_rounds(session, None)
                offer = self._offer(session.member, after=0, evaluated=0, wait_s=0.0)
                if isinstance(offer, EvaluationHeader):
                    done = self._evaluate(session, offer)
                    return Participation("joined", f"answered evaluation {done.evaluation_id}: {done.state}")
                trainer = self._available_trainer()
                if trainer is None:
                    return Participation("joined", "training needs the train extra: pip install 'uvsdk[train]'")
                if not isinstance(offer, RoundHeader):
                    return Participation("joined", "no round is open for this device now")
                report = self._round(session, offer, trainer)
        except PendingDeviceError as error:
            return Participation("pending", str(error))
        except ServerUnreachableError as error:
            return Participation("queued", str(error))
        if report.state == "refused":
            return Participation("joined", report.detail)
        return Participation("trained" if report.state == "uploaded" else "queued", report.detail)

    def participate(
        self,
        user_id: str,
        store: Store,
        *,
        model: Bundle | None = None,
        until_finished: bool = True,
        max_rounds: int | None = None,
        progress: Callable[[RoundReport], None] | None = None,
        evaluated: Callable[[EvaluationDone], None] | None = None,
        released: Callable[[ReleaseReport], None] | None = None,
    ) -> tuple[RoundReport, ...]:
        """Join where needed, take part in rounds, and verify by what the server releases meanwhile.

        Templates follow a release by themselves, between rounds too: people go on being verified by the release
        before until theirs is made.

        Between rounds the server may ask what a model makes of this device's own enrolment (:mod:`uvsdk.release`);
        users who only evaluate are asked nothing else, and need no trainer.

        Args:
            user_id: enrolled in ``store``.
            store: this device's encrypted store.
            model: a bundle that is at hand already, so that less is downloaded.
            until_finished: wait for further rounds until the server says that training rests; otherwise stop when
                no round is open.
            max_rounds: stop after that many.
            progress: called after each round.
            evaluated: called after each evaluation.
            released: called when this device has switched to a release, or has refused one.

        Raises:
            ServerUnreachableError: for longer than ``patience_s``; what was queued stays queued.
            PendingDeviceError: another device of this person, or the operator, must approve this one first.
            ServerRefusedError: the device is not (or no longer) known, or the token is wrong.
            UnapprovedConfigError: the server asks for what this device never approved.
            TrainingUnavailableError: no trainer is installed, and a round asks for one.
            UnknownUserError: not enrolled, or deleted meanwhile.
        """
        device_store = require_encrypted(store)
        reports: list[RoundReport] = []
        with self._connection() as connection:
            session = self._patiently(partial(self._join, user_id, device_store, connection, model))
            if not 0 <= self.clock() - session.member.device.made_unix_s < self.rotate_after_s:
                session = self._patiently(partial(self._renewed, session, model))
            after, answered = 0, 0
            while max_rounds is None or len(reports) < max_rounds:
                self._patiently(partial(self._between_rounds, session, released))
                wait_s = _WAIT_S if until_finished else 0.0
                offer = self._patiently(partial(self._next, session, after, answered, wait_s))
                if isinstance(offer, EvaluationHeader):
                    done = self._patiently(partial(self._evaluate, session, offer))
                    answered = offer.evaluation_id
                    if evaluated is not None:
                        evaluated(done)
                elif isinstance(offer, RoundHeader):
                    trainer = self.trainer or find_trainer()
                    report = self._patiently(partial(self._round, session, offer, trainer))
                    after = offer.round_id
                    reports.append(report)
                    if progress is not None:
                        progress(report)
                elif offer == "finished" or not until_finished:
                    break
            self._patiently(partial(self._flush, session))
            self._patiently(partial(self._refresh, session, released))
        return tuple(reports)

    def refresh_template(self, user_id: str, store: Store, *, model: Bundle | None = None) -> Template:
        """Switch to the server's release and give the template under it, made from the stored features.

        A release that this device refuses changes nothing: the template is then the one of the release before. With
        ``server_verification`` the server is handed the template too. Needs no trainer.

        Raises:
            ServerUnreachableError, ServerRefusedError, UnapprovedConfigError, UnknownUserError: as above.
            ThresholdError: the new model's calibration cannot support the template's false match rate.
        """
        device_store = require_encrypted(store)
        with self._connection() as connection:
            return self._refresh(self._join(user_id, device_store, connection, model))

    def follow_release(self, user_id: str, store: Store) -> ReleaseReport | None:
        """Switch to the server's release where there is another one, for somebody who has joined; ``None`` for nothing
        new.

        With ``server_verification`` the server is handed the template that it has not had. :meth:`participate` does
        this by itself. Raises as :meth:`refresh_template`.
        """
        device_store = require_encrypted(store)
        with self._connection() as connection:
            return self._follow(self._join(user_id, device_store, connection, None))

    def newest_model(self, user_id: str, store: Store) -> Bundle:
        """The bundle of the released model with its calibration, for offline verification.

        Of the release that this device has adopted, which it does now where there is a newer one; a device that has
        never adopted any is handed the server's own, which its store does not verify by. Raises as above.
        """
        device_store = require_encrypted(store)
        with self._connection() as connection:
            session = self._join(user_id, device_store, connection, None)
            follower = self._follower(session)
            follower.follow()
            bundle = follower.bundle()
            if bundle is None:
                bundle = session.models.of_release(fetch_release(connection, session.member.deployment).release)
            return bundle

    def devices(self, user_id: str, store: Store) -> tuple[KnownDevice, ...]:
        """This person's devices as the server knows them; one that waits for an approval sees itself only.

        Raises:
            ServerUnreachableError, ServerRefusedError, UnapprovedConfigError, UnknownUserError: as above; the server
                has never heard of this device.
        """
        with self._connection() as connection:
            return known_devices(self._member(user_id, require_encrypted(store), connection))

    def approve_device(self, user_id: str, store: Store, device_id: str) -> None:
        """Let another device of this person act for them: the word of this one. Compare ``device_id`` on its screen.

        Raises:
            ServerRefusedError: this device may not (403), there is no such device of this person (404), or it was
                revoked, or there is one too many (409).
            ServerUnreachableError, UnapprovedConfigError, UnknownUserError, SettingsError: nothing was approved.
        """
        with self._connection() as connection:
            approve(self._member(user_id, require_encrypted(store), connection), device_id)

    def revoke_device(self, user_id: str, store: Store, device_id: str) -> None:
        """Take the rights of a device of this person, a lost one or this one. Raises as :meth:`approve_device`."""
        with self._connection() as connection:
            revoke(self._member(user_id, require_encrypted(store), connection), device_id)

    def rotate_keys(self, user_id: str, store: Store) -> None:
        """Put new keys in place of this device's; :meth:`participate` does so by itself (``rotate_after_s``).

        A failure leaves a usable identity, whichever keys the server has by then: the next call of any of these goes
        on with it. Another process that takes part for this person meanwhile signs with the old keys, and has to be
        started again.

        Raises:
            ServerUnreachableError, ServerRefusedError, UnapprovedConfigError, UnknownUserError: as above.
        """
        device_store = require_encrypted(store)
        with self._connection() as connection:
            member = self._member(user_id, device_store, connection)
            session = _Session(
                member,
                device_store,
                Models(device_store, member.connection, member.deployment.server_signing_key),
                self._queue(device_store, member),
            )
            self._renewed(session, None)

    def withdraw(self, user_id: str, store: Store) -> Removal:
        """Have the server forget the user: row, uploads, template, devices. What is enrolled here stays usable.

        Doing it again, or where the server never knew the user, changes nothing.

        Returns:
            ``complete``, or ``pending`` where the server still empties its log (:data:`~uvsdk_device.leaving.Removal`).

        Raises:
            ServerUnreachableError, ServerRefusedError: nothing changed here.
            UnknownUserError: not enrolled here.
        """
        device_store = require_encrypted(store)
        device_store.template(user_id)
        if not is_member(device_store, user_id):
            return "complete"
        with self._connection() as connection:
            deployment = approved_deployment(connection, device_store, approve=self.approve, now=self.clock())
            device = device_of(device_store, user_id, deployment)
            # Keys whose registration was never acknowledged may have arrived all the same.
            if device is not None:
                member = member_of(user_id, device, deployment, connection, pepper=self.pepper)
                removal = self._delete_on_server(device_store, member)
                resign(device_store, member)
                return removal
        return "complete"

    def forget(self, user_id: str, store: Store) -> Removal:
        """Delete the user on the server first, and then here.

        Where the server cannot be reached nothing is deleted, because afterwards this device could no longer
        prove whose deletion it asks for. Doing it again after a failure goes on where it stopped.

        Returns:
            As :meth:`withdraw`.

        Raises:
            ServerUnreachableError, ServerRefusedError: nothing was deleted here.
            StillRegisteredError: another server may know this user; :meth:`withdraw` there first.
            UnknownUserError: not enrolled here.
        """
        removal = self.withdraw(user_id, store)
        forget_here(user_id, require_encrypted(store))
        return removal

    def _delete_on_server(self, store: EncryptedStore, member: Membership) -> Removal:
        try:
            member = settle_keys(store, member)
            return delete_user(member.connection, member.user, patience_s=_DELETION_WAIT_S, sleep=self.sleep)
        except ServerRefusedError as error:
            if error.kind == "pending-device":  # nobody's word but its own: it may take itself back, and no more
                revoke(member, member.device.device_id)
            # A first try may have succeeded without its answer arriving: then neither device nor user is known. And
            # a device that was revoked is none of this person's any more.
            elif error.kind not in ("unknown-device", "unknown-user", "revoked-device"):
                raise
            return "complete"

    def _connection(self) -> Connection:
        return Connection(self.url, allow_plain_http=self.allow_plain_http, clock=self.clock)

    def _join(self, user_id: str, store: EncryptedStore, connection: Connection, model: Bundle | None) -> _Session:
        """Register and admit, each once, and gather what a round needs."""
        template = store.template(user_id)
        deployment = approved_deployment(connection, store, approve=self.approve, now=self.clock())
        check_fit(template.modality, model, deployment=deployment)
        if self.server_verification:
            check_server_verification(deployment)
        member = register(
            store,
            user_id,
            deployment,
            connection,
            token=self.enrolment_token,
            pepper=self.pepper,
            now=self.clock(),
        )
        models = Models(store, member.connection, deployment.server_signing_key, model)
        for attempt in range(_ADMISSION_ATTEMPTS):
            if member.device.admitted:
                break
            try:
                member = self._admit(store, member, models)
            except ServerRefusedError as error:
                # A round that ends while the mean is computed makes it one of the model before.
                if error.status != 409 or attempt == _ADMISSION_ATTEMPTS - 1:
                    raise
                deployment = approved_deployment(connection, store, approve=self.approve, now=self.clock())
                member = replace(member, deployment=deployment)
        return _Session(member, store, models, self._queue(store, member))

    def _queue(self, store: EncryptedStore, member: Membership) -> UploadQueue:
        server = member.deployment.identity
        return UploadQueue(store, member.user_id, server=server, rng=self.rng, clock=self.clock, backoff=self.backoff)

    def _admit(self, store: EncryptedStore, member: Membership, models: Models) -> Membership:
        """Send the admission."""
        features = store.features(member.user_id)
        admission = admission_of(member, features, models, person_id=self.person_id, pepper=self.pepper)
        return admit(store, member, admission)

    def _member(self, user_id: str, store: EncryptedStore, connection: Connection) -> Membership:
        """This device as the server knows it, joined or not; a replacement of its keys that was begun is ended."""
        store.template(user_id)
        deployment = approved_deployment(connection, store, approve=self.approve, now=self.clock())
        device = device_of(store, user_id, deployment)
        if device is None:
            raise ServerRefusedError(
                401, "unknown-device", "this device has never registered with that server; join it first"
            )
        return settle_keys(store, member_of(user_id, device, deployment, connection, pepper=self.pepper))

    def _renewed(self, session: _Session, model: Bundle | None) -> _Session:
        self._flush(session)  # what waits is sealed under the old keys
        member = replace_keys(session.store, session.member, self.clock())
        return replace(
            session,
            member=member,
            models=Models(session.store, member.connection, member.deployment.server_signing_key, model),
        )

    def _offer(self, member: Membership, *, after: int, evaluated: int, wait_s: float) -> _Offer:
        """The round or the evaluation that is open for this device, or why there is none."""
        asked_at, key = self.clock(), member.deployment.server_signing_key
        query = {"after": after, "wait_s": wait_s, "evaluated": evaluated}
        told, values = member.connection.get_json("/v1/rounds/current", query=query)
        if told.status == 200:
            return read_header(values, key, now=self.clock())
        state = told.headers.get("uvsdk-training")
        if state in ("finished", "stopped"):
            return "finished"
        if state == "evaluating":
            told, values = member.connection.get_json("/v1/evaluations/current", query={"after": evaluated})
            if told.status == 200:
                return read_evaluation(values, key, now=self.clock())
        # A server that does not hold the answer back must not be asked without pause.
        if wait_s > 0 and self.clock() - asked_at < _PAUSE_S:
            self.sleep(_PAUSE_S)
        return "waiting"

    def _next(self, session: _Session, after: int, evaluated: int, wait_s: float) -> _Offer:
        """Send what waits, then ask for a round."""
        self._flush(session)
        return self._offer(session.member, after=after, evaluated=evaluated, wait_s=wait_s)

    def _evaluate(self, session: _Session, header: EvaluationHeader) -> EvaluationDone:
        """Answer one evaluation. Trying again is safe: once the report is in the queue, that one is sent."""
        member, store, models = session.member, session.store, session.models
        done = EvaluationDone(header.evaluation_id, header.candidate, "refused")
        endpoint = endpoint_of(header)
        if not any(item.endpoint == endpoint for item in session.queue.items()):
            try:
                kind = check_evaluation(header, member)
                task = fetch_evaluation_task(member, header)
                released = models.of_evaluation(header.released)
                enrolment = store.enrolment(member.user_id)
                found = answer(
                    task,
                    kind,
                    features=enrolment.features,
                    candidate=models.of_round(header.candidate),
                    released=released,
                    conditions=enrolment.template.conditions,
                    each=enrolment.conditions,
                    fmr=self.fmr,
                    trained=read_memory(store, member.user_id, member.deployment).get(TEMPLATE),
                )
            except UpdateRejectedError as error:
                return replace(done, detail=str(error))
            except ServerRefusedError as error:
                if error.status not in _ROUND_OVER and error.kind != "not-selected":
                    raise
                return replace(done, detail=str(error))
            enqueue_report(session.queue, member, header=header, report=found.report)
            done = replace(done, samples=found.report.samples, seconds=found.seconds)
        try:
            self._flush(session)
        except ServerUnreachableError as error:
            return replace(done, state="queued", detail=str(error))
        refusal = next((item for item in session.queue.dropped() if item.endpoint == endpoint), None)
        if refusal is not None:
            return replace(done, detail=f"the server refused the report ({refusal.status} {refusal.kind})")
        return replace(done, state="uploaded")

    def _round(self, session: _Session, header: RoundHeader, trainer: Trainer) -> RoundReport:
        """Train in one round and upload the update.

        Trying again after an unreachable server is safe: once the update is in the queue, that one is sent.
        """
        member, store = session.member, session.store
        check_header(header, member)
        report = RoundReport(header.round_id, header.model_version, "refused")
        if not any(item.round_id == header.round_id for item in session.queue.items()):
            try:
                assigned = fetch_task(member, header, store=store, secret=self.secret)
                bundle = session.models.of_round(header.model_version)
                if member.deployment.config.control_variates:
                    control = session.models.control(header.model_version, len(bundle.theta))
                    assigned = replace(assigned, control=control)
                trained = train(trainer, member, header=header, bundle=bundle, assigned=assigned, store=store)
            except UpdateRejectedError as error:
                return replace(report, detail=str(error))
            except ServerRefusedError as error:
                if error.status not in _ROUND_OVER and error.kind != "not-selected":
                    raise
                return replace(report, detail=str(error))
            enqueue(session.queue, member, header=header, result=trained.result, store=store)
            result = trained.result
            report = replace(report, samples=result.samples, loss=result.loss, train_s=trained.train_s)
        try:
            self._flush(session)
        except ServerUnreachableError as error:
            return replace(report, state="queued", detail=str(error))
        refusal = next((item for item in session.queue.dropped() if item.round_id == header.round_id), None)
        if refusal is not None:
            return replace(report, detail=f"the server refused the update ({refusal.status} {refusal.kind})")
        return replace(report, state="uploaded")

    def _flush(self, session: _Session) -> None:
        """Send everything that waits. Raises :class:`ServerUnreachableError` where something still does."""

        def send(item: QueueItem, envelope: bytes) -> None:
            session.member.connection.put(item.endpoint, envelope, sha256=bytes.fromhex(item.sha256))

        def acknowledged(item: QueueItem) -> None:
            acknowledge(session.store, session.member, item)

        if session.queue.flush(send, acknowledged) is not None:
            reason = next((item.reason for item in session.queue.items() if item.reason), "its time has not come")
            raise ServerUnreachableError(f"an upload waits in the queue: {reason}")

    def _follower(self, session: _Session) -> Follower:
        return Follower(
            session.store, session.member.deployment, session.member.connection, session.models, fmr=self.fmr
        )

    def _follow(self, session: _Session) -> ReleaseReport | None:
        """Switch to the server's release where it is another one, and hand over the template that it has not had."""
        follower = self._follower(session)
        report = follower.follow()
        bundle = follower.bundle()
        if self.server_verification and bundle is not None and (report is None or report.state == "adopted"):
            template = follower.template(session.member.user_id, bundle)
            if was_handed_over(session.store, session.member) != handed_over(template):
                self._hand_over(session, template)
        return report

    def _between_rounds(self, session: _Session, told: Callable[[ReleaseReport], None] | None) -> None:
        """:meth:`_follow`, without an end to training where a release cannot be used: :meth:`_refresh` says why."""
        with contextlib.suppress(
            BundleError, EnrolmentError, SealError, ServerRefusedError, StoreError, ThresholdError, WireError
        ):
            report = self._follow(session)
            if report is not None and told is not None:
                told(report)

    def _refresh(self, session: _Session, told: Callable[[ReleaseReport], None] | None = None) -> Template:
        store, user_id, follower = session.store, session.member.user_id, self._follower(session)
        report = follower.follow(again=True)
        if report is not None and told is not None:
            told(report)
        bundle = follower.bundle()
        if bundle is None:  # refused, and there is none before: the enrolment's own
            return store.template(user_id)
        template = follower.template(user_id, bundle)
        if self.server_verification and (report is None or report.state == "adopted"):
            self._hand_over(session, template)
        return template

    def _hand_over(self, session: _Session, template: Template) -> None:
        """Send the template to the server, whose key may have been replaced since this device asked for it.

        While nobody has vouched for this device none is taken: the next one that is made comes in its place.
        """
        member = session.member
        try:
            try:
                send_template(session.store, member, template)
            except ServerRefusedError as error:
                if error.kind != "wrong-key":
                    raise
                deployment = approved_deployment(
                    member.connection, session.store, approve=self.approve, now=self.clock()
                )
                send_template(session.store, replace(member, deployment=deployment), template)
            note_handed_over(session.store, member, template)
        except ServerRefusedError as error:
            if error.kind != "unconfirmed-device":
                raise

    def _patiently(self, step: Callable[[], _Result]) -> _Result:
        """Repeat ``step`` while the server cannot be reached, for ``patience_s`` at most."""
        attempts, ends_at = 0, self.clock() + self.patience_s
        while True:
            try:
                return step()
            except ServerUnreachableError:
                if self.clock() >= ends_at:
                    raise
                # At least a tenth of a second, so that a jitter near zero does not spin.
                self.sleep(max(0.1, self.backoff.delay_s(attempts, self.rng)))
                attempts += 1

    def _available_trainer(self) -> Trainer | None:
        try:
            return self.trainer or find_trainer()
        except TrainingUnavailableError:
            return None
