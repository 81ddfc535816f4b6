"""What waits to be uploaded: sealed envelopes in the encrypted store, in order, until the server has them.

Every step is one durable write, and a kill between any two of them loses nothing and sends nothing twice in
effect: an item is in the store before it is sent, it is sent byte for byte the same each time (so the server
knows a retry), and it leaves the store only after the server's answer was acted upon.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from uvsdk.errors import ServerRefusedError, ServerUnreachableError, SettingsError, StoreError, StoreFullError
from uvsdk_device.keystore import EncryptedStore

_DROPPED_KEPT = 100
# Answers that no repetition changes: what was sent is wrong, too late, or somebody else's.
_FINAL = frozenset({400, 404, 409, 410, 413, 415, 422})


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter (Brooker, AWS Architecture Blog 2015): uniform in [0, min(cap, base 2^n)].

    >>> Backoff(base_s=1.0, cap_s=60.0).ceiling_s(3), Backoff(base_s=1.0, cap_s=60.0).ceiling_s(30)
    (8.0, 60.0)
    """

    base_s: float = 1.0
    cap_s: float = 60.0

    def __post_init__(self) -> None:
        if not (0 <= self.base_s < math.inf and 0 <= self.cap_s < math.inf):
            raise SettingsError(f"waits are finite and not below 0, got {self.base_s} and {self.cap_s} s")

    def ceiling_s(self, attempts: int) -> float:
        """Longest wait after that many failed attempts."""
        return float(min(self.cap_s, self.base_s * 2.0 ** min(attempts, 30)))

    def delay_s(self, attempts: int, rng: np.random.Generator) -> float:
        """The wait after that many failed attempts."""
        return float(rng.uniform(0.0, self.ceiling_s(attempts)))


@dataclass(frozen=True, slots=True)
class QueueItem:
    """One upload that waits.

    Args:
        number: its place in the order.
        endpoint: path on the server, e.g. ``/v1/rounds/3/update``; at most one item waits for an endpoint.
        round_id: the round it belongs to, 0 for none.
        sha256: of its bytes, 64 hexadecimal digits, kept so that no attempt has to compute it again.
        created_unix_s: when it was put in.
        attempts: how often it was sent without an answer that counts.
        due_unix_s: not sent before that.
        reason: why the last attempt did not count; empty before the first.
        note: what the sender wants back when the item was acknowledged, e.g. the algorithm's new memory.
    """

    number: int
    endpoint: str
    round_id: int
    sha256: str
    created_unix_s: float
    attempts: int = 0
    due_unix_s: float = 0.0
    reason: str = ""
    note: bytes = b""


@dataclass(frozen=True, slots=True)
class Dropped:
    """An upload that the server has finally refused, and why."""

    endpoint: str
    round_id: int
    status: int
    kind: str
    dropped_unix_s: float


class UploadQueue:
    """The uploads of one user to one server.

    Args:
        store: where it lies.
        user_id: whose uploads.
        server: name of the server they are for.
        rng: jitter of the backoff.
        clock: seconds since 1970.
        backoff: waits between attempts.
        items_limit: most items that wait.
        bytes_limit: most bytes that wait.
    """

    def __init__(
        self,
        store: EncryptedStore,
        user_id: str,
        *,
        server: str,
        rng: np.random.Generator,
        clock: Callable[[], float],
        backoff: Backoff | None = None,
        items_limit: int = 16,
        bytes_limit: int = 1 << 30,
    ) -> None:
        self._store = store
        self._user = user_id
        tag = store.pseudonym(server)
        self._item, self._attempts, self._dropped = f"queued-{tag}", f"attempts-{tag}", f"dropped-{tag}"
        self._rng = rng
        self._clock = clock
        self._backoff = backoff or Backoff()
        self._items_limit = items_limit
        self._bytes_limit = bytes_limit

    def put(
        self,
        endpoint: str,
        envelope: bytes | memoryview,
        *,
        sha256: bytes | None = None,
        round_id: int = 0,
        note: bytes = b"",
        newest: bool = False,
    ) -> QueueItem:
        """Add an upload durably. Where one waits for that endpoint already, that one stays and is given back.

        Args:
            sha256: of ``envelope``, where the caller knows it.
            newest: put this one in the place of a waiting one instead.

        Raises:
            StoreFullError: the queue or the disk is full.
        """
        with self._store.lock():
            waiting = self.items()
            same = [item for item in waiting if item.endpoint == endpoint]
            if same and not newest:
                return same[0]
            held = sum(self._store.size(self._item, name=str(item.number), user=self._user) for item in waiting)
            if len(waiting) - len(same) >= self._items_limit or held + len(envelope) > self._bytes_limit:
                raise StoreFullError(
                    f"{len(waiting)} uploads of {held} bytes wait for the server already (limits {self._items_limit} "
                    f"and {self._bytes_limit}); nothing was lost: let them through first"
                )
            number = max((item.number for item in waiting), default=0) + 1
            digest = (sha256 or hashlib.sha256(envelope).digest()).hex()
            item = QueueItem(number, endpoint, round_id, digest, self._clock(), note=note)
            facts = {name: getattr(item, name) for name in ("endpoint", "round_id", "sha256", "created_unix_s")}
            # Attempts of an earlier item of this number may have outlived it in a crash.
            self._store.drop(self._attempts, name=str(number), user=self._user)
            sections = (json.dumps(facts).encode(), note, envelope)
            self._store.put(self._item, sections, name=str(number), user=self._user)
            for old in same:
                self._remove(old)
            return item

    def items(self) -> tuple[QueueItem, ...]:
        """What waits, oldest first."""
        found = []
        for number in self._store.numbers(self._item, user=self._user):
            try:
                facts, note = self._store.get(self._item, name=str(number), user=self._user, count=2)
            except KeyError:
                continue  # another process was acknowledged meanwhile
            found.append(self._with_attempts(QueueItem(number, **json.loads(facts), note=note)))
        return tuple(found)

    def envelope(self, item: QueueItem) -> bytes:
        """The bytes to send."""
        try:
            (data,) = self._store.get(self._item, name=str(item.number), user=self._user, first=2)
        except KeyError as error:
            raise StoreError("the upload is no longer in the queue; another process has dealt with it") from error
        return data

    def dropped(self) -> tuple[Dropped, ...]:
        """The last uploads that were finally refused, oldest first."""
        try:
            (data,) = self._store.get(self._dropped, user=self._user)
        except KeyError:
            return ()
        return tuple(Dropped(**entry) for entry in json.loads(data))

    def flush(
        self, send: Callable[[QueueItem, bytes], None], acknowledged: Callable[[QueueItem], None] = lambda item: None
    ) -> float | None:
        """Send what is due, oldest first, and stop at the first that cannot be delivered now.

        Args:
            send: delivers one item; it may be called again for an item that has arrived.
            acknowledged: keeps what depends on the item's arrival; called before the item is removed, and again
                if this process dies in between.

        Returns:
            Seconds until the next attempt, ``None`` where nothing waits.

        Raises:
            ServerRefusedError: an answer that is neither an acknowledgement nor final for this upload alone
                (401: the server does not know this device); the item stays.
        """
        for item in self.items():
            wait_s = item.due_unix_s - self._clock()
            # A clock that was set back must not hold an upload for longer than any backoff would.
            if 0 < wait_s <= self._backoff.cap_s:
                return wait_s
            try:
                envelope = self.envelope(item)
            except StoreError:
                if item.number in self._store.numbers(self._item, user=self._user):
                    raise
                continue  # another process has dealt with it
            try:
                send(item, envelope)
            except ServerUnreachableError as error:
                return self._postpone(item, error)
            except ServerRefusedError as error:
                if error.status in _FINAL:
                    self._drop(item, error)
                elif error.status >= 500:
                    return self._postpone(item, error)
                else:
                    raise
            else:
                acknowledged(item)
                self._remove(item)
        return None

    def _postpone(self, item: QueueItem, error: Exception) -> float:
        delay_s = self._backoff.delay_s(item.attempts, self._rng)
        facts = {"attempts": item.attempts + 1, "due_unix_s": self._clock() + delay_s, "reason": str(error)}
        self._store.put(self._attempts, [json.dumps(facts).encode()], name=str(item.number), user=self._user)
        return delay_s

    def _with_attempts(self, item: QueueItem) -> QueueItem:
        try:
            (data,) = self._store.get(self._attempts, name=str(item.number), user=self._user)
        except KeyError:
            return item
        facts = json.loads(data)
        attempts, due_unix_s, reason = facts["attempts"], facts["due_unix_s"], facts.get("reason", "")
        return replace(item, attempts=attempts, due_unix_s=due_unix_s, reason=reason)

    def _drop(self, item: QueueItem, error: ServerRefusedError) -> None:
        entry = Dropped(item.endpoint, item.round_id, error.status, error.kind, self._clock())
        with self._store.lock():
            kept = [asdict(dropped) for dropped in (*self.dropped(), entry)][-_DROPPED_KEPT:]
            self._store.put(self._dropped, [json.dumps(kept).encode()], user=self._user)
            self._remove(item)

    def _remove(self, item: QueueItem) -> None:
        self._store.drop(self._item, name=str(item.number), user=self._user)
        self._store.drop(self._attempts, name=str(item.number), user=self._user)
