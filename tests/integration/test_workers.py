"""Children that are forked while other threads open models, change galleries and hold stores: each verifies."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.integration.harness import ROOT
from tests.integration.numpy_devices import make_store, pages
from uvsdk import Gallery, MemoryStore, enroll, identify, verify
from uvsdk.bundle import Bundle, inference, shipped
from uvsdk.identify import SearchThreshold
from uvsdk.presentation.challenge import Challenges
from uvsdk.system import forking
from uvsdk_device import EncryptedStore, Runtime

# Python 3.12 and later say that a fork among threads may deadlock; that it does not is what these tests are for.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

CHILDREN = 20


def forked(work: Callable[[], None]) -> int:
    """The id of a child that does ``work`` and ends with 0, or with 1 where it raises."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as a test run
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def status(child: int, *, within_s: float = 60.0) -> str:
    """How it ended; one that hangs is ended here."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        found, code = os.waitpid(child, os.WNOHANG)
        if found:
            return "well" if code == 0 else f"status {code}"
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


@contextmanager
def busy(*works: Callable[[], object]) -> Iterator[None]:
    """Each of ``works`` over and over in a thread of its own."""
    over = threading.Event()
    failures: list[BaseException] = []

    def loop(work: Callable[[], object]) -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - shown by the thread that started this one
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


def test_children_forked_while_threads_open_bundles_all_verify(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shipped().save(tmp_path / f"{name}.uvb")
    template = enroll("ada", pages(1), model=shipped(), store=MemoryStore()).template
    probe = pages(1)[0]

    def open_anew() -> None:
        inference._cache.clear()
        verify(probe, template, model=tmp_path / "a.uvb")

    def build() -> None:
        shipped().session()

    def work() -> None:
        assert verify(probe, template, model=tmp_path / "a.uvb").accepted
        assert verify(probe, template, model=tmp_path / "b.uvb").accepted
        assert verify(probe, template, model=shipped()).accepted

    with busy(open_anew, build, build):
        children = []
        for _ in range(CHILDREN):
            children.append(forked(work))
            time.sleep(0.003)
        assert [status(child) for child in children] == ["well"] * CHILDREN


def test_no_import_begins_between_the_last_look_and_the_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that a thread has begun to import stays locked in the child for ever."""
    (tmp_path / "imported_anew.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    thread = threading.Thread(target=importlib.import_module, args=("imported_anew",))
    forking._before()
    try:
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert "imported_anew" not in vars(sys.modules["_frozen_importlib"])["_module_locks"]
    finally:
        forking._after()
    thread.join(60)
    assert sys.modules.pop("imported_anew").value == 1


@pytest.mark.parametrize("pause_s", ["0", "0.01"])
def test_children_forked_during_the_first_verification_of_all_verify(tmp_path: Path, pause_s: str) -> None:
    """Then onnxruntime, Pillow and the rest of numpy are being imported, whose locks a child would wait for."""
    shipped().save(tmp_path / "model.uvb")
    template = enroll("ada", pages(1), model=shipped(), store=MemoryStore()).template
    (tmp_path / "sent").write_bytes(pickle.dumps((pages(1)[0], template)))
    path = os.pathsep.join(str(ROOT / part) for part in (".", "server", "device"))
    command = [sys.executable, str(Path(__file__).with_name("fresh_forks.py")), "model.uvb", "sent", pause_s]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.split() == ["0"] * CHILDREN, done.stderr[-2000:]


def test_what_was_made_before_the_fork_works_in_the_child(tmp_path: Path) -> None:
    bundle, store, gallery, challenges = shipped(), MemoryStore(), Gallery(), Challenges()
    other = enroll("bea", pages(2), model=bundle, store=store).template
    template = enroll("ada", pages(1), model=bundle, store=store).template
    disk = make_store(tmp_path, 1)
    enroll("ada", pages(1), model=bundle, store=disk)
    gallery.add("ada", template)
    runtime = Runtime(disk, bundle)
    threshold = SearchThreshold(0.9, 0.01, 10, 0)
    rng = np.random.default_rng(1)
    probe = pages(1)[0]

    def work() -> None:
        assert runtime.verify("ada", probe).accepted
        assert identify(probe, gallery, model=bundle, threshold=threshold).user_id == "ada"
        gallery.add("bea", other)
        assert gallery.users()[0] == "ada"
        assert store.template("ada") == template
        store.save_enrolment("bea", template, [])
        challenges.redeem(challenges.issue("digits").identifier)
        enroll(f"child {os.getpid()}", pages(2), model=bundle, store=disk)
        disk.delete(f"child {os.getpid()}")

    def change() -> None:
        gallery.add(f"person {rng.integers(50)}", other)

    def write() -> None:
        disk.save_enrolment("dee", template, [])

    for _ in range(2):
        with busy(
            change,
            write,
            lambda: runtime.verify("ada", probe),
            lambda: challenges.issue("digits"),
            lambda: store.save_enrolment("dee", template, []),
        ):
            children = [forked(work) for _ in range(3)]
            assert [status(child) for child in children] == ["well"] * 3
        gallery = Gallery({"ada": template})


def test_every_session_is_the_childs_own() -> None:
    bundle = shipped()
    alone, several = bundle.session(), bundle.session(threads=2)
    held = bundle.with_calibration(bundle.calibration)

    def work() -> None:
        assert bundle.session() is not alone
        assert bundle.session(threads=2) is not several
        assert held.session() is bundle.session()

    assert status(forked(work)) == "well"
    assert bundle.session() is alone


def test_a_child_that_lives_on_keeps_no_lock_of_its_parents_store(tmp_path: Path) -> None:
    store = make_store(tmp_path, 1)
    reader, writer = os.pipe()
    with store.lock():
        child = forked(lambda: bool(os.read(reader, 1)) and None)
    try:
        # Another descriptor, as another process has: it waits for ever if the child still holds the lock.
        other = threading.Thread(target=EncryptedStore.open, args=(store.folder,), kwargs={"passphrase": "p"})
        other.start()
        other.join(30)
        assert not other.is_alive()
    finally:
        os.write(writer, b"x")
    assert status(child) == "well"


def test_a_child_waits_for_what_its_parent_holds(tmp_path: Path) -> None:
    store = make_store(tmp_path, 1)
    done = tmp_path / "done"

    def work() -> None:
        with store.lock():
            done.touch()

    with store.lock():
        child = forked(work)
        time.sleep(0.3)
        assert not done.exists()
    assert status(child) == "well"
    assert done.exists()


def test_a_fork_waits_until_a_session_is_built() -> None:
    building, go_on = threading.Event(), threading.Event()

    def build() -> None:
        with forking.steady():
            building.set()
            go_on.wait(30)

    thread = threading.Thread(target=build)
    thread.start()
    assert building.wait(30)
    threading.Timer(0.3, go_on.set).start()
    start = time.monotonic()
    child = forked(lambda: forking.steady().acquire() and None)
    assert time.monotonic() - start > 0.2
    assert status(child) == "well"
    thread.join(30)


def test_renewing_holds_on_to_nothing() -> None:
    gc.collect()
    known = len(forking._owners)
    bundles = [Bundle(shipped().manifest, shipped().theta, shipped().graphs) for _ in range(5)]
    assert len(forking._owners) > known
    del bundles
    gc.collect()
    assert len(forking._owners) <= known
