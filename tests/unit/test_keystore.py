"""The encrypted store: what it refuses, and what survives a full disk, rivals and a kill at any moment."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import resource
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path

import keyring
import keyring.backend
import keyring.errors
import numpy as np
import pytest

from tests.builders import CHEAP, open_store
from uvsdk.errors import SettingsError, StoreError, StoreFullError, StoreLockedError, UnknownUserError
from uvsdk.scoring import Threshold
from uvsdk.templates.template import Template
from uvsdk_device.kept_templates import KEPT
from uvsdk_device.keystore import EncryptedStore

FEATURES = (np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[1, 2]], np.uint8))


def template(samples: int = 2, *, version: str = "m" * 64) -> Template:
    threshold = Threshold(0.5, 0.01, 300, (0.0, 0.02), version)
    return Template(np.array([0.6, 0.8], np.float32), version, "voice", samples, threshold)


class MemoryKeyring(keyring.backend.KeyringBackend):
    """A keyring for one test."""

    priority = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password


class NoKeyring(MemoryKeyring):
    """What a machine without a desktop has."""

    def get_password(self, service: str, username: str) -> str | None:
        raise keyring.errors.NoKeyringError

    set_password = get_password  # type: ignore[assignment]


@pytest.fixture
def system_keyring() -> Iterator[MemoryKeyring]:
    before = keyring.get_keyring()
    ring = MemoryKeyring()
    keyring.set_keyring(ring)
    yield ring
    keyring.set_keyring(before)


def test_an_enrolment_comes_back_after_the_store_is_opened_again(tmp_path: Path) -> None:
    open_store(tmp_path / "s").save_enrolment("ana", template(), FEATURES)
    store = open_store(tmp_path / "s")
    assert store.users() == ("ana",)
    assert store.template("ana") == template()
    for kept, given in zip(store.features("ana"), FEATURES, strict=True):
        np.testing.assert_array_equal(kept, given)
        assert kept.dtype == given.dtype


def test_enrolling_again_replaces_and_deleting_leaves_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", template(2), FEATURES)
    store.put("device", [b"key"], name="server", user="ana")
    store.save_enrolment("ana", template(3), FEATURES[:1])
    assert store.template("ana").samples == 3
    assert len(store.features("ana")) == 1
    store.delete("ana")
    assert store.users() == ()
    assert list((tmp_path / "s" / "users").iterdir()) == []
    for read in (store.template, store.features, store.delete):
        with pytest.raises(UnknownUserError, match="nobody of that name"):
            read("ana")


def test_spellings_of_one_id_are_one_person(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("Ana", template(2), FEATURES)
    store.put("device", [b"key"], name="server", user="ANA")
    store.save_enrolment("ana", template(3), FEATURES)
    assert store.users() == ("ana",)  # as the application wrote it last
    assert store.template("Ana").samples == 3
    assert store.get("device", name="server", user="aNa") == [b"key"]
    store.update_template("ANA", lambda features: template(4))
    assert store.users() == ("ana",)
    store.save_enrolment("Jose\N{COMBINING ACUTE ACCENT}", template(), FEATURES)
    assert store.template("JOS\u00c9") == template()
    store.delete("AnA")
    assert store.users() == ("Jose\N{COMBINING ACUTE ACCENT}",)
    for bad in ("", "half\ud800"):
        with pytest.raises(SettingsError):
            store.save_enrolment(bad, template(), FEATURES)
        with pytest.raises(SettingsError):
            store.template(bad)


def test_nothing_of_a_user_is_written_after_the_deletion(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", template(), FEATURES)
    store.delete("ana")
    with pytest.raises(UnknownUserError):
        store.put("memory", [b"late"], user="ana")
    assert list((tmp_path / "s" / "users").iterdir()) == []


def test_a_wrong_a_missing_and_an_empty_passphrase_are_refused(tmp_path: Path) -> None:
    open_store(tmp_path / "s").save_enrolment("ana", template(), FEATURES)
    with pytest.raises(StoreLockedError, match="passphrase is wrong"):
        open_store(tmp_path / "s", "battery staple")
    with pytest.raises(StoreLockedError, match="none was given"):
        open_store(tmp_path / "s", None)
    with pytest.raises(StoreLockedError, match="empty"):
        open_store(tmp_path / "t", "")
    assert open_store(tmp_path / "s").users() == ("ana",)


def test_two_spellings_of_one_passphrase_open_the_store(tmp_path: Path) -> None:
    open_store(tmp_path / "s", "caf\u00e9")
    open_store(tmp_path / "s", "cafe\u0301")


def test_the_passphrase_changes_without_touching_a_record(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", template(), FEATURES)
    (record,) = (tmp_path / "s" / "users").glob("*/enrolment")
    before = record.read_bytes()
    store.change_passphrase("another", cost=CHEAP)
    assert record.read_bytes() == before
    with pytest.raises(StoreLockedError):
        open_store(tmp_path / "s")
    assert open_store(tmp_path / "s", "another").template("ana") == template()


def test_the_keyring_holds_the_key_where_no_passphrase_is_given(tmp_path: Path, system_keyring: MemoryKeyring) -> None:
    open_store(tmp_path / "s", None).save_enrolment("ana", template(), FEATURES)
    assert open_store(tmp_path / "s", None).users() == ("ana",)
    with pytest.raises(StoreLockedError, match="keyring, not by a passphrase"):
        open_store(tmp_path / "s", "a passphrase")
    system_keyring.entries.clear()
    with pytest.raises(StoreLockedError, match="no key for this store"):
        open_store(tmp_path / "s", None)


@pytest.mark.usefixtures("system_keyring")
def test_without_a_keyring_the_error_says_to_pass_a_passphrase(tmp_path: Path) -> None:
    keyring.set_keyring(NoKeyring())
    with pytest.raises(StoreLockedError, match="pass a passphrase"):
        open_store(tmp_path / "s", None)


def test_the_folder_is_private_and_names_nobody(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana-maria", template(), FEATURES)
    store.put("memory", [b"x"], name="https://server.example", user="ana-maria")
    for path in [tmp_path / "s", *(tmp_path / "s").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
        assert "ana" not in str(path.relative_to(tmp_path))
        if path.is_file():
            data = path.read_bytes()
            assert b"ana-maria" not in data
            assert b"server.example" not in data
            assert np.float32(0.6).tobytes() + np.float32(0.8).tobytes() not in data
    assert "ana" not in repr(store)


def test_any_flipped_bit_of_a_record_is_noticed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", template(), FEATURES)
    (record,) = (tmp_path / "s" / "users").glob("*/enrolment")
    whole = record.read_bytes()
    # Every byte of the header, and a spread of the rest.
    for position in [*range(64), *range(64, len(whole), 23), len(whole) - 1]:
        record.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(StoreError):
            (store.template("ana"), store.features("ana"))
    for cut in (0, 3, 40, len(whole) - 1):
        record.write_bytes(whole[:cut])
        with pytest.raises(StoreError, match="does not open"):
            store.template("ana")
    record.write_bytes(whole)
    assert store.template("ana") == template()


def test_a_record_does_not_open_in_the_place_of_another(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    for user in ("ana", "bea"):
        store.save_enrolment(user, template(), FEATURES)
    first, second = (tmp_path / "s" / "users").glob("*/enrolment")
    second.write_bytes(first.read_bytes())
    opened = []
    for user in ("ana", "bea"):
        try:
            opened.append(store.template(user))
        except StoreError:
            opened.append(None)
    assert opened.count(None) == 1


def test_a_tampered_key_file_neither_opens_nor_exhausts_the_machine(tmp_path: Path) -> None:
    open_store(tmp_path / "s")
    key_file = tmp_path / "s" / "store.json"
    text = key_file.read_text()
    for old, new in (('"n": 4096', '"n": 8192'), ('"passphrase"', '"keyring"')):
        assert old in text
        key_file.write_text(text.replace(old, new))
        with pytest.raises(StoreLockedError):
            open_store(tmp_path / "s")
    for broken in ("", "[]", "{}", text.replace('"n": 4096', '"n": 1073741824'), text.replace("uvsdk-store/1", "x")):
        key_file.write_text(broken)
        with pytest.raises(StoreError):
            open_store(tmp_path / "s")
    key_file.unlink()
    with pytest.raises(StoreError, match="has records and"):
        open_store(tmp_path / "s")


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear Ana")
    with pytest.raises(StoreError, match="not empty"):
        open_store(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["letter.txt"]


def start(work: Callable[..., None], *arguments: object) -> multiprocessing.context.ForkProcess:
    """``work`` in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


def fill_the_disk(folder: Path) -> None:
    store = open_store(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    for _ in range(2):
        with pytest.raises(StoreFullError, match="nothing stored was lost"):
            store.save_enrolment("ana", template(9), [np.zeros(100_000, np.float32)])
    assert store.template("ana").samples == 2
    store.save_enrolment("bea", template(3), FEATURES)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of a file stands in for a full disk: the write fails half-way either way."""
    open_store(tmp_path / "s").save_enrolment("ana", template(2), FEATURES)
    process = start(fill_the_disk, tmp_path / "s")
    process.join(60)
    assert process.exitcode == 0
    store = open_store(tmp_path / "s")
    assert store.template("ana").samples == 2
    assert store.users() == ("ana", "bea")
    assert list((tmp_path / "s").rglob("*.tmp")) == []


def write_and_read(folder: Path, me: int) -> None:
    store = open_store(folder)
    for step in range(10):
        value = 100 * me + step
        store.save_enrolment("shared", template(value + 1), [np.full(5000, value, np.float32)])
        store.save_enrolment(f"own-{me}", template(step + 1), FEATURES)
        features = store.features("shared")[0]
        assert (features == features[0]).all()


def test_processes_that_write_at_once_leave_whole_records(tmp_path: Path) -> None:
    processes = [start(write_and_read, tmp_path / "s", me) for me in range(3)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    store = open_store(tmp_path / "s")
    assert store.users() == ("own-0", "own-1", "own-2", "shared")
    assert store.template("shared").samples == store.features("shared")[0][0] + 1


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    failures: list[BaseException] = []

    def work(me: int) -> None:
        try:
            for step in range(10):
                store.save_enrolment(f"user-{me}", template(step + 1), FEATURES)
                assert store.template(f"user-{me}").samples == step + 1
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.users()) == 8


def enrol_for_ever(folder: Path, ready: Event) -> None:
    store = open_store(folder)
    value = store.template("ana").samples
    ready.set()
    while True:
        store.save_enrolment("ana", template(value + 1), [np.full(20_000, value, np.float32)])
        value += 1


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_enrolment(tmp_path: Path) -> None:
    """Features and template carry the same number, so that a mixture would show."""
    folder = tmp_path / "s"
    open_store(folder).save_enrolment("ana", template(1), [np.full(20_000, 0, np.float32)])
    rng = np.random.default_rng(7)
    last = 0
    for _ in range(20):
        ready = multiprocessing.get_context("fork").Event()
        process = start(enrol_for_ever, folder, ready)
        assert ready.wait(30)
        time.sleep(float(rng.uniform(0.0, 0.03)))
        process.kill()
        process.join()
        store = open_store(folder)
        value = store.features("ana")[0]
        assert (value == value[0]).all()
        assert store.template("ana").samples == value[0] + 1
        assert value[0] >= last
        assert list(folder.rglob("*.tmp")) == []
        last = int(value[0])
    assert last > 0


class Garbled(Template):
    """A template whose bytes do not open under the store's key."""

    def to_bytes(self, key: bytes) -> bytes:
        return super().to_bytes(bytes(32))


class Other(Template):
    """A template whose bytes are another template's."""

    def to_bytes(self, key: bytes) -> bytes:
        return template(7).to_bytes(key)


@pytest.mark.parametrize("kind", [Garbled, Other])
def test_only_what_reads_back_takes_the_old_ones_place(tmp_path: Path, kind: type[Template]) -> None:
    store = open_store(tmp_path / "s")
    bad = kind(np.array([0.6, 0.8], np.float32), "m", "voice", 2)
    with pytest.raises(StoreError, match="nothing was changed"):
        store.save_enrolment("ana", bad, FEATURES)
    assert store.users() == ()
    store.save_enrolment("ana", template(), FEATURES)
    store.put("attempts", [b"count"], user="ana")
    for write in (
        lambda: store.save_enrolment("ana", bad, []),
        lambda: store.update_template("ana", lambda features: bad),
        lambda: store.save_enrolment("ana", template(), [np.ones(2, np.float16)]),  # type: ignore[list-item]
        lambda: store.save_enrolment("ana", template(), [np.array([{}])]),  # type: ignore[list-item]
    ):
        with pytest.raises(StoreError):
            write()
    again = open_store(tmp_path / "s")
    assert again.template("ana") == template()
    assert len(again.features("ana")) == 2
    assert again.get("attempts", user="ana") == [b"count"]
    assert list(tmp_path.rglob("*.tmp")) == []


def test_a_kill_within_a_deletion_leaves_all_or_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", template(), FEATURES)
    (folder,) = (tmp_path / "s" / "users").iterdir()
    # What a kill after the rename leaves behind.
    folder.rename(folder.with_name(".trash-0"))
    store = open_store(tmp_path / "s")
    assert store.users() == ()
    assert list((tmp_path / "s" / "users").iterdir()) == []


def test_another_stores_key_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name in ("one", "two"):
        open_store(tmp_path / name).save_enrolment("ana", template(), FEATURES)
    (tmp_path / "one" / "store.json").write_bytes((tmp_path / "two" / "store.json").read_bytes())
    before = {path: path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match="another store's"):
        open_store(tmp_path / "one")
    assert {path: path.read_bytes() for path in (tmp_path / "one").rglob("*") if path.is_file()} == before


def test_a_damaged_note_of_the_stores_name_locks_nobody_out(tmp_path: Path) -> None:
    open_store(tmp_path / "s").save_enrolment("ana", template(), FEATURES)
    (tmp_path / "s" / "shared" / "store").write_bytes(b"damaged")
    assert open_store(tmp_path / "s").users() == ("ana",)
    (tmp_path / "s" / "shared" / "store").unlink()  # as an earlier version left it
    assert open_store(tmp_path / "s").users() == ("ana",)
    assert (tmp_path / "s" / "shared" / "store").exists()


def test_a_store_that_is_not_there_is_made_only_where_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "typo", tmp_path / "empty"):
        with pytest.raises(StoreError, match="there is no store"):
            EncryptedStore.open(folder, passphrase="p", create=False)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert list((tmp_path / "empty").iterdir()) == []


def test_templates_of_other_models_wait_beside_the_one_in_use(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", template(), FEATURES)
    first = store.enrolment("ana")
    made = [replace(template(), model_version=f"model {number}", threshold=None) for number in range(KEPT + 3)]
    for item in made:
        assert store.use_template("ana", item, enrolment_id=first.enrolment_id)
    # The one in use, and of the others those that were put aside last.
    assert store.templates("ana") == tuple(reversed(made[2:]))
    assert store.template("ana") == made[-1]
    assert store.template_for("ana", lambda item: item.model_version == "model 9") == made[9]
    assert store.template_for("ana", lambda item: item.model_version == "model 1") is None
    assert [array.tobytes() for array in store.features("ana")] == [array.tobytes() for array in FEATURES]
    # Each has one place: put aside twice it is there once.
    assert store.keep_template("ana", made[5], enrolment_id=first.enrolment_id)
    assert store.templates("ana")[1] == made[5]
    assert len(store.templates("ana")) == KEPT + 1
    # Whoever enrols anew makes all of it void, and what was made of the old samples comes too late.
    store.save_enrolment("ana", template(), FEATURES[:1])
    assert store.templates("ana") == (template(),)
    assert not store.keep_template("ana", made[0], enrolment_id=first.enrolment_id)
    assert not store.use_template("ana", made[0], enrolment_id=first.enrolment_id)
    assert store.templates("ana") == (template(),)
    store.delete("ana")
    with pytest.raises(UnknownUserError):
        store.templates("ana")
