"""The retry policy on this device: failures are kept sealed in the store, for each person and for the whole device.

The count of the device is of failures whoever is claimed, so that a finder cannot try one person after another; and
its windows keep them whatever is accepted in between, so that neither can somebody who is enrolled here. Both must
admit an attempt. Several runtimes or processes on one store share both counts.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from uvsdk.errors import SampleError, StoreError, UncalibratedDomainError, UnknownUserError
from uvsdk.identify import DEFAULT_FPIR, Identification
from uvsdk.privacy.identifiers import canonical_user_id
from uvsdk.records.transfer import stays_here
from uvsdk.scoring import Decision, Threshold
from uvsdk.system.forking import in_child
from uvsdk.templates.attempts import (
    Attempts,
    Outcome,
    Recent,
    RetryPolicy,
    Ticket,
    anchored,
    begun,
    outcome_of,
    refusal,
    settled,
    wait_s,
)
from uvsdk_device.keystore import ATTEMPTS, EncryptedStore

_Result = TypeVar("_Result")

_FORM: Final = struct.Struct("<IIdddd")
"""Of one length, so that it can be overwritten in place."""
_FIRST_FORM: Final = struct.Struct("<IId")
"""What a version without windows wrote."""
_HIGHEST: Final = 0xFFFFFFFF
_DEVICE: Final = ""


class AttemptGate:
    """Lets attempts through as a policy allows, and counts them. Safe to share between threads.

    Args:
        store: keeps the counts.
        policy: for a person and for the device alike.
        clock: gives Unix time.
    """

    def __init__(
        self, store: EncryptedStore, policy: RetryPolicy | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._policy = policy or RetryPolicy()
        self._clock = clock
        self._renew()
        in_child(self, AttemptGate._renew)

    __reduce_ex__ = stays_here("it belongs to an open store; make it in each process")

    def _renew(self) -> None:
        """What is under way in the parent is not under way in a forked child, which will never hear its outcome."""
        self._changed = threading.Condition()
        self._undecided: Counter[str] = Counter()

    def decide(
        self,
        user_id: str,
        compare: Callable[[], Decision],
        *,
        in_force: Threshold | None = None,
        told: bool = False,
    ) -> Decision:
        """The outcome of ``compare``, counted before it is computed and settled before it is given.

        Where attempts under way take up what is left, this waits for their outcome.

        Args:
            user_id: enrolled in the store.
            compare: called once, if at all.
            in_force: the threshold in force: an acceptance at a higher rate is what this one makes of it.
            told: whether somebody else will be told the score: then an acceptance fills the windows too.

        Raises:
            TooManyAttemptsError, DisabledError: ``compare`` was not called.
            UnknownUserError: not enrolled here.
        """
        subjects = (canonical_user_id(user_id), _DEVICE)
        return self._counted(subjects, compare, lambda decision: outcome_of(decision, in_force), told=told)

    def search(self, search: Callable[[], Identification]) -> Identification:
        """The same for a search among everybody, which claims nobody: it counts for the device alone.

        Somebody who is named at a higher rate than the default one (``uvsdk.identify.DEFAULT_FPIR``) counts as nobody:
        at a rate near 1 somebody always is.

        Raises:
            TooManyAttemptsError, DisabledError: ``search`` was not called.
        """

        def outcome(found: Identification) -> Outcome:
            named = found.outcome == "identified" and found.threshold.fpir <= DEFAULT_FPIR
            return "accepted" if named else "rejected"

        return self._counted((_DEVICE,), search, outcome)

    def _counted(
        self,
        subjects: tuple[str, ...],
        work: Callable[[], _Result],
        judge: Callable[[_Result], Outcome],
        *,
        told: bool = False,
    ) -> _Result:
        tickets = self._begin(subjects)
        outcome: Outcome | None = None  # what is interrupted (Ctrl-C, a kill) stays counted
        try:
            result = work()
            outcome = judge(result)
        except (SampleError, UncalibratedDomainError):
            outcome = "unusable"
            raise
        except Exception:
            outcome = "void"
            raise
        finally:
            self._end(tickets, outcome, told)
        return result

    def state(self, user_id: str | None = None) -> Attempts:
        """The count of a person, or of the device. Raises :class:`UnknownUserError` where nobody is enrolled so."""
        if user_id is not None:
            self._store.template(user_id)
        with self._store.lock():
            return self._read(_DEVICE if user_id is None else canonical_user_id(user_id))

    def wait_s(self, user_id: str | None = None) -> float:
        """Seconds until the next attempt is looked at: 0 for at once, infinite where it is disabled."""
        return wait_s(self.state(user_id), self._policy, self._clock())

    def recent(self, user_id: str | None = None) -> Recent:
        """How full the windows are now."""
        return self.state(user_id).recent.at(self._policy, self._clock())

    def _begin(self, subjects: tuple[str, ...]) -> dict[str, Ticket]:
        with self._changed:
            while True:
                with self._store.lock():
                    states = {subject: self._current(subject) for subject in subjects}
                    now = self._clock()
                    closed = [subject for subject in states if wait_s(states[subject], self._policy, now) > 0]
                    if not closed:
                        return self._admit(states, now)
                certain = [subject for subject in closed if not self._undecided[subject]]
                if certain:
                    longest = max(certain, key=lambda subject: wait_s(states[subject], self._policy, now))
                    raise self._refusal(longest, states[longest], now)
                self._changed.wait()

    def _admit(self, states: dict[str, Attempts], now: float) -> dict[str, Ticket]:
        for subject, state in states.items():
            self._write(subject, begun(state, self._policy, now), durable=True)
        self._undecided.update(states.keys())
        return {subject: Ticket(now, state.since_s) for subject, state in states.items()}

    def _end(self, tickets: dict[str, Ticket], outcome: Outcome | None, told: bool) -> None:
        with self._changed:
            self._undecided.subtract(tickets.keys())
            self._undecided = +self._undecided  # drops zeros, so that it does not grow with everyone ever seen
            try:
                if outcome is not None:
                    for subject, ticket in tickets.items():
                        self._settle(subject, ticket, outcome, told)
            finally:
                self._changed.notify_all()

    def _settle(self, subject: str, ticket: Ticket, outcome: Outcome, told: bool) -> None:
        undecided = self._undecided[subject]
        with self._store.lock():
            state = self._read(subject)
            ended = settled(state, outcome, ticket, self._policy, now=self._clock(), undecided=undecided, told=told)
            try:
                # Not forced to the disk: a power cut leaves the attempt counted, which is the safe side.
                self._write(subject, ended, durable=False)
            except UnknownUserError:
                return  # deleted meanwhile, and the count with them

    def _current(self, subject: str) -> Attempts:
        kept = self._read(subject)
        state = anchored(kept, self._clock())
        if state != kept:
            self._write(subject, state, durable=True)
        return state

    def _refusal(self, subject: str, state: Attempts, now: float) -> Exception:
        whose = "this device" if subject == _DEVICE else "this person"
        reset = "run `uvsdk attempts reset --device`"
        if subject != _DEVICE:
            reset = "run `uvsdk attempts reset USER`, or enrol again"
        return refusal(state, self._policy, now, whose=whose, reset=reset)

    def _read(self, subject: str) -> Attempts:
        return read_attempts(self._store, subject)

    def _write(self, subject: str, state: Attempts, *, durable: bool) -> None:
        recent = state.recent
        section = _FORM.pack(
            min(state.failures, _HIGHEST),
            min(state.unusable, _HIGHEST),
            state.since_s,
            recent.hour,
            recent.day,
            recent.at_s,
        )
        self._store.overwrite(ATTEMPTS, section, user=subject, durable=durable)


def read_attempts(store: EncryptedStore, user_id: str = _DEVICE) -> Attempts:
    """The kept count of a person, or of the device; the caller holds the store's lock.

    Raises:
        StoreError: the record is damaged; resetting it makes a new one.
    """
    try:
        (section,) = store.get(ATTEMPTS, user=user_id)
        if len(section) == _FIRST_FORM.size:
            return Attempts(*_FIRST_FORM.unpack(section))
        failures, unusable, since_s, *recent = _FORM.unpack(section)
        return Attempts(failures, unusable, since_s, Recent(*recent))
    except KeyError:
        return Attempts()
    except (struct.error, ValueError) as error:
        raise StoreError("the kept count of attempts does not read; `uvsdk attempts reset` makes a new one") from error


def reset_attempts(store: EncryptedStore, user_id: str | None = None) -> None:
    """Forget the failures of a person, or of the device, after identifying the person in another way.

    Raises:
        UnknownUserError: not enrolled here.
    """
    if user_id is None:
        store.drop(ATTEMPTS)
        return
    store.template(user_id)
    store.drop(ATTEMPTS, user=user_id)
