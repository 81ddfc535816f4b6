"""The upload queue: order, idempotence, bounds, backoff, and a kill between any two steps."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.builders import Clock, open_store
from uvsdk.errors import ServerRefusedError, ServerUnreachableError, StoreFullError
from uvsdk.templates.template import Template
from uvsdk_device import keystore
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.queue import Backoff, QueueItem, UploadQueue

SERVER = "https://server.example"


@pytest.fixture
def store(tmp_path: Path) -> EncryptedStore:
    opened = open_store(tmp_path / "s")
    opened.save_enrolment("ana", Template(np.array([1.0], np.float32), "m", "voice", 1), [])
    return opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_queue(
    store: EncryptedStore, clock: Callable[[], float] = lambda: 1000.0, *, items: int = 16, size: int = 1 << 20
) -> UploadQueue:
    rng = np.random.default_rng(0)
    return UploadQueue(
        store, "ana", server=SERVER, rng=rng, clock=clock, items_limit=items, bytes_limit=size, backoff=Backoff(1, 60)
    )


def refuse(status: int, kind: str) -> Callable[[QueueItem, bytes], None]:
    def send(item: QueueItem, envelope: bytes) -> None:
        raise ServerRefusedError(status, kind, "no")

    return send


def unreachable(item: QueueItem, envelope: bytes) -> None:
    raise ServerUnreachableError("no answer")


def test_items_are_sent_in_order_and_leave_after_the_acknowledgement(store: EncryptedStore) -> None:
    queue = make_queue(store)
    for number in (1, 2, 3):
        queue.put(f"/v1/rounds/{number}/update", b"envelope-%d" % number, round_id=number, note=b"note-%d" % number)
    sent: list[tuple[int, bytes]] = []
    acknowledged: list[bytes] = []

    def acknowledge(item: QueueItem) -> None:
        assert item in make_queue(store).items()  # still there while it is acted upon
        acknowledged.append(item.note)

    assert queue.flush(lambda item, envelope: sent.append((item.round_id, envelope)), acknowledge) is None
    assert sent == [(1, b"envelope-1"), (2, b"envelope-2"), (3, b"envelope-3")]
    assert acknowledged == [b"note-1", b"note-2", b"note-3"]
    assert queue.items() == ()


def test_an_item_knows_the_digest_of_its_bytes(store: EncryptedStore) -> None:
    queue = make_queue(store)
    digest = hashlib.sha256(b"one").digest()
    queue.put("/v1/a", b"one")
    queue.put("/v1/b", b"one", sha256=digest)
    assert [item.sha256 for item in make_queue(store).items()] == [digest.hex()] * 2


def test_one_upload_waits_for_an_endpoint_unless_the_newest_is_wanted(store: EncryptedStore) -> None:
    queue = make_queue(store)
    first = queue.put("/v1/a", b"one")
    assert queue.put("/v1/a", b"two") == first
    assert queue.envelope(first) == b"one"
    newest = queue.put("/v1/a", b"three", newest=True)
    assert queue.items() == (newest,)
    assert queue.envelope(newest) == b"three"


def test_the_queue_is_bounded_and_says_so(store: EncryptedStore) -> None:
    queue = make_queue(store, items=2)
    queue.put("/v1/a", b"")
    queue.put("/v1/b", b"")
    with pytest.raises(StoreFullError, match="let them through first"):
        queue.put("/v1/c", b"")
    with pytest.raises(StoreFullError):
        make_queue(store, size=1000).put("/v1/c", bytes(1001))
    assert [item.endpoint for item in queue.items()] == ["/v1/a", "/v1/b"]


def test_two_servers_and_two_users_do_not_share_a_queue(store: EncryptedStore) -> None:
    make_queue(store).put("/v1/a", b"")
    other = UploadQueue(store, "ana", server="https://b.example", rng=np.random.default_rng(), clock=lambda: 0.0)
    assert other.items() == ()


@pytest.mark.parametrize(
    ("status", "kind"), [(410, "round-closed"), (409, "already-uploaded"), (422, "invalid-update")]
)
def test_a_final_refusal_drops_the_item_with_its_reason(store: EncryptedStore, status: int, kind: str) -> None:
    queue = make_queue(store)
    queue.put("/v1/rounds/7/update", b"x", round_id=7)
    assert queue.flush(refuse(status, kind)) is None
    assert queue.items() == ()
    (dropped,) = make_queue(store).dropped()
    assert (dropped.round_id, dropped.status, dropped.kind) == (7, status, kind)


def test_a_refusal_of_the_device_itself_keeps_the_item(store: EncryptedStore) -> None:
    queue = make_queue(store)
    queue.put("/v1/a", b"x")
    with pytest.raises(ServerRefusedError, match="unknown-device"):
        queue.flush(refuse(401, "unknown-device"))
    assert len(queue.items()) == 1
    assert queue.dropped() == ()


@pytest.mark.parametrize("send", [unreachable, refuse(500, "internal")])
def test_backoff_grows_to_its_cap_and_survives_a_restart(
    store: EncryptedStore, clock: Clock, send: Callable[[QueueItem, bytes], None]
) -> None:
    make_queue(store, clock).put("/v1/a", b"x")
    for attempt in range(10):
        queue = make_queue(store, clock)  # a new process, as far as the queue can tell
        wait_s = queue.flush(send)
        assert wait_s is not None
        # Full jitter: uniform in [0, min(60, 2^attempt)].
        assert 0.0 <= wait_s <= min(60.0, 2.0**attempt)
        assert queue.items()[0].attempts == attempt + 1
        never: list[bytes] = []
        assert queue.flush(lambda item, envelope: never.append(envelope)) == pytest.approx(wait_s)  # noqa: B023
        assert never == []
        clock.now_s += wait_s
    sent: list[bytes] = []
    assert make_queue(store, clock).flush(lambda item, envelope: sent.append(envelope)) is None
    assert sent == [b"x"]


def test_a_clock_that_is_set_back_does_not_hold_an_upload(store: EncryptedStore, clock: Clock) -> None:
    queue = make_queue(store, clock)
    queue.put("/v1/a", b"x")
    queue.flush(unreachable)
    clock.now_s = -1e9
    sent: list[bytes] = []
    assert queue.flush(lambda item, envelope: sent.append(envelope)) is None
    assert sent == [b"x"]


def test_a_deleted_user_leaves_no_upload(store: EncryptedStore, tmp_path: Path) -> None:
    make_queue(store).put("/v1/a", b"x")
    store.delete("ana")
    assert make_queue(store).items() == ()
    assert list((tmp_path / "s" / "users").iterdir()) == []


def killed_at(step: int, folder: Path, received: Path) -> bool:
    """Queue and send two uploads in a process that is killed before its ``step``-th change of the disk.

    Whether it was killed: false once ``step`` is beyond the last change.
    """

    def work() -> None:
        store = open_store(folder)
        left = step

        def count() -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        write, unlink = keystore.write_durably, Path.unlink

        def counted_write(path: Path, parts: list[bytes], *, check: Callable[[Path], None] | None = None) -> None:
            count()
            write(path, parts, check=check)

        def counted_unlink(path: Path, missing_ok: bool = False) -> None:
            count()
            unlink(path, missing_ok=missing_ok)

        keystore.write_durably = counted_write  # type: ignore[assignment]
        Path.unlink = counted_unlink  # type: ignore[method-assign]

        def send(item: QueueItem, envelope: bytes) -> None:
            count()
            with received.open("ab") as file:
                file.write(b"%d %s\n" % (item.round_id, envelope))
            count()

        queue = make_queue(store)
        for number in (1, 2):
            queue.put(f"/v1/rounds/{number}/update", b"sealed-%d" % number, round_id=number, note=b"%d" % number)
        queue.flush(send, lambda item: store.put("memory", [item.note], user="ana"))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(30)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def test_a_kill_between_any_two_steps_loses_nothing(tmp_path: Path) -> None:
    """Whatever was queued arrives, unchanged, in order; what the acknowledgement carried is kept."""
    step = 0
    while True:
        folder, received = tmp_path / f"s{step}", tmp_path / f"received{step}"
        received.touch()
        store = open_store(folder)
        store.save_enrolment("ana", Template(np.array([1.0], np.float32), "m", "voice", 1), [])
        killed = killed_at(step, folder, received)

        def send(item: QueueItem, envelope: bytes, received: Path = received) -> None:
            with received.open("ab") as file:
                file.write(b"%d %s\n" % (item.round_id, envelope))

        store = open_store(folder)
        queue = make_queue(store)
        for number in (1, 2):  # the device comes to the same rounds again
            if b"%d sealed-%d" % (number, number) not in received.read_bytes():
                queue.put(f"/v1/rounds/{number}/update", b"sealed-%d" % number, round_id=number, note=b"%d" % number)
        assert queue.flush(send, lambda item: store.put("memory", [item.note], user="ana")) is None  # noqa: B023
        arrived = received.read_bytes().splitlines()
        assert set(arrived) == {b"1 sealed-1", b"2 sealed-2"}
        assert arrived == sorted(arrived)
        assert store.get("memory", user="ana") == [b"2"]
        assert queue.items() == ()
        if not killed:
            break
        step += 1
    # 2 queued, 2 sent (before and after), 2 memories, 2 removed: a kill before each of them was tried.
    assert step == 10
