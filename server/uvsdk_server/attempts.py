"""The retry policy on the server: failures are counted in the database, of each caller's token at each person, of each
caller, and at each person.

A caller is let through where the pair and the caller may (failures in a row of the pair; windows of both), and where
the person's window over all callers has room too, or the person was accepted through this caller lately. So guessing at
one person by many tokens is slowed, and nobody who fails can close a person to the callers who know them.

Steps that arrive while a transaction is written go into the next one together, so that eight clients cost one commit
and not eight. The counts live in the database only: what an operator resets beside the server holds at once.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.errors import SampleError, TooManyAttemptsError, UncalibratedDomainError
from uvsdk.rest.problems import Problem
from uvsdk.scoring import Decision, Threshold
from uvsdk.templates.attempts import (
    HOUR_S,
    Attempts,
    Outcome,
    RetryPolicy,
    Ticket,
    anchored,
    begun,
    is_known,
    outcome_of,
    refusal,
    settled,
    wait_s,
)
from uvsdk_server.clocks import Clock, wall_clock
from uvsdk_server.monitoring import Metrics
from uvsdk_server.store import counts
from uvsdk_server.store.counts import Subject, Whose
from uvsdk_server.store.database import Database

Tickets = Mapping[Subject, Ticket]

_WORDS: Final[Mapping[Whose, str]] = {
    "pair": "this person by this caller",
    "person": "this person by callers who do not know them",
    "caller": "this caller",
}


@dataclass(frozen=True, slots=True)
class _Begin:
    """An attempt asks to be let through."""

    subjects: tuple[Subject, ...]


@dataclass(frozen=True, slots=True)
class _End:
    """An attempt has ended."""

    tickets: Tickets
    outcome: Outcome
    told: bool = False

    @property
    def subjects(self) -> tuple[Subject, ...]:
        return tuple(self.tickets)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step with the future that whoever takes it waits for."""

    what: _Begin | _End
    done: asyncio.Future[Tickets]


@dataclass(slots=True)
class _Batch:
    """What one transaction reads, changes and answers."""

    states: dict[Subject, Attempts]
    undecided: Counter[Subject]
    changed: dict[Subject, Attempts]

    def keep(self, subject: Subject, state: Attempts) -> None:
        if self.states[subject] != state:
            self.states[subject] = self.changed[subject] = state


class AttemptGate:
    """Lets attempts through as the policies allow, and counts them. Belongs to one event loop.

    Args:
        database: keeps the counts.
        policies: for a pair of caller and person, for a person over all callers, and for a caller.
        metrics: counts refusals.
        clock: gives Unix time.
    """

    def __init__(
        self,
        database: Database,
        policies: Mapping[Whose, RetryPolicy],
        metrics: Metrics,
        clock: Clock = wall_clock,
    ) -> None:
        self._database = database
        self._policies = policies
        self._metrics = metrics
        self._clock = clock
        self._undecided: Counter[Subject] = Counter()
        self._queued: list[_Step] = []
        self._waiting: list[_Step] = []
        self._writing: asyncio.Task[None] | None = None
        self._prune_at_s = -math.inf

    async def decide(
        self,
        user: str,
        caller: str,
        compare: Callable[[], Awaitable[Decision]],
        *,
        in_force: Threshold | None = None,
        told: bool = False,
    ) -> Decision:
        """The outcome of ``compare``, counted before it is computed and settled before it is given.

        Where attempts under way take up what is left, this waits for their outcome.

        Args:
            user: hashed id of the claimed person.
            caller: id of the token that asks.
            compare: called once, if at all.
            in_force: the threshold in force: an acceptance at a higher rate is what this one makes of it.
            told: whether the caller will be told the score: then an acceptance fills the windows too.

        Raises:
            TooManyAttemptsError, DisabledError: ``compare`` was not called.
            Problem: 404, the user is not known here.
        """
        tickets = await self._take(_Begin((Subject(caller, user), Subject(user=user), Subject(caller))))
        try:
            decision = await compare()
        except (SampleError, UncalibratedDomainError):
            await self._take(_End(tickets, "unusable"))
            raise
        except Exception:
            await self._take(_End(tickets, "void"))
            raise
        except BaseException:  # cancelled: nobody hears the answer, and the attempt stays counted
            self._release(tickets)
            raise
        await self._take(_End(tickets, outcome_of(decision, in_force), told))
        return decision

    async def close(self) -> None:
        """Finish what is being written."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _take(self, what: _Begin | _End) -> Tickets:
        step = _Step(what, asyncio.get_running_loop().create_future())
        self._queued.append(step)
        self._wake()
        try:
            return await step.done
        except asyncio.CancelledError:
            # Cancelled after it was let through and before it heard of it: nobody else would end that attempt.
            if isinstance(what, _Begin) and step.done.done() and not step.done.cancelled():
                self._release(step.done.result() if step.done.exception() is None else {})
            raise

    def _release(self, tickets: Tickets) -> None:
        """Take an attempt that will not end off those under way."""
        self._undecided.subtract(tickets.keys())
        self._requeue()

    def _requeue(self) -> None:
        self._undecided = +self._undecided  # drops zeros, so that it does not grow with everyone ever seen
        self._queued += self._waiting
        self._waiting = []
        self._wake()

    def _wake(self) -> None:
        if self._queued and self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name="attempts")

    async def _write_all(self) -> None:
        try:
            while self._queued:
                steps, self._queued = [step for step in self._queued if not step.done.cancelled()], []
                await self._write(steps)
        finally:
            self._writing = None

    async def _write(self, steps: list[_Step]) -> None:
        """One transaction for all ``steps``; nobody is told anything before it is durable."""
        answers: dict[_Step, Tickets | Exception] = {}
        waiting: list[_Step] = []
        try:
            async with self._database.write() as connection:
                await counts.serialise(connection)
                await self._prune(connection)
                subjects = {subject for step in steps for subject in step.what.subjects}
                batch = _Batch(await counts.read(connection, subjects), self._undecided.copy(), {})
                for step in steps:
                    answer = self._apply(step.what, batch)
                    if answer is None:
                        waiting.append(step)
                    else:
                        answers[step] = answer
                await counts.write(connection, batch.changed)
        except Exception as error:  # noqa: BLE001 - passed on to everyone who waits, whatever it is
            answers, waiting = dict.fromkeys(steps, error), []
        self._waiting += waiting
        self._tell(answers)

    def _tell(self, answers: Mapping[_Step, Tickets | Exception]) -> None:
        """Answer, and count what is under way from now on; an end counts even where it could not be written."""
        ended = False
        for step, answer in answers.items():
            if isinstance(step.what, _End):
                self._undecided.subtract(step.what.tickets.keys())
                ended = True
            if step.done.cancelled():
                continue
            if isinstance(answer, Exception):
                step.done.set_exception(answer)
                continue
            if isinstance(step.what, _Begin):
                self._undecided.update(answer.keys())
            step.done.set_result(answer)
        if ended:
            self._requeue()

    def _apply(self, what: _Begin | _End, batch: _Batch) -> Tickets | Exception | None:
        """The answer to one step; ``None`` where it waits for attempts that are under way."""
        now = self._clock()
        if isinstance(what, _End):
            self._settle(what, batch, now)
            return {}
        if any(subject not in batch.states for subject in what.subjects):
            return Problem("unknown-user", "nobody of that id has a template here; enrol first")
        for subject in what.subjects:
            batch.keep(subject, anchored(batch.states[subject], now))
        waits_s = {subject: wait_s(batch.states[subject], self._policy(subject), now) for subject in what.subjects}
        for subject in what.subjects:
            if subject.whose == "pair" and is_known(batch.states[subject], self._policy(subject), now):
                waits_s.pop(Subject(user=subject.user), None)
        closed = [subject for subject, remaining_s in waits_s.items() if remaining_s > 0]
        certain = [subject for subject in closed if not batch.undecided[subject]]
        if certain:
            return self._refuse(max(certain, key=waits_s.__getitem__), batch, now)
        if closed:
            return None
        tickets = {subject: Ticket(now, batch.states[subject].since_s) for subject in what.subjects}
        for subject in what.subjects:
            batch.keep(subject, begun(batch.states[subject], self._policy(subject), now))
        batch.undecided.update(what.subjects)
        return tickets

    def _settle(self, end: _End, batch: _Batch, now: float) -> None:
        batch.undecided.subtract(end.subjects)
        for subject, ticket in end.tickets.items():
            if subject in batch.states:  # else the person was deleted meanwhile, and the count with them
                batch.keep(
                    subject,
                    settled(
                        batch.states[subject],
                        end.outcome,
                        ticket,
                        self._policy(subject),
                        now=now,
                        undecided=batch.undecided[subject],
                        told=end.told,
                    ),
                )

    def _refuse(self, subject: Subject, batch: _Batch, now: float) -> Exception:
        error = refusal(
            batch.states[subject],
            self._policy(subject),
            now,
            whose=_WORDS[subject.whose],
            reset=f"have the operator reset it (DELETE /v1/attempts/{subject.whose}/ID, `uvsdk lockouts reset`)",
        )
        until = "later" if isinstance(error, TooManyAttemptsError) else "reset"
        self._metrics.refused_attempts.labels(subject.whose, until).inc()
        return error

    async def _prune(self, connection: AsyncConnection) -> None:
        """Once an hour, so that the table does not grow with everyone ever seen."""
        now = self._clock()
        if now >= self._prune_at_s:
            await counts.prune(connection, now, self._policies["pair"].known_s)
            self._prune_at_s = now + HOUR_S

    def _policy(self, subject: Subject) -> RetryPolicy:
        return self._policies[subject.whose]
