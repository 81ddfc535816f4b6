"""The store that forgets."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from uvsdk.errors import SettingsError, UnknownUserError
from uvsdk.templates.storage import LockingStore, MemoryStore, Store, same_arrays
from uvsdk.templates.template import Template

ANA = Template(np.array([1, 0], np.float32), "m", "voice", 3)
BEN = Template(np.array([0, 1], np.float32), "m", "voice", 4)


def test_it_keeps_template_and_features() -> None:
    store: Store = MemoryStore()
    features = np.arange(3, dtype=np.float32)
    store.save_enrolment("ana", ANA, [features])
    features[0] = 7
    assert store.template("ana") == ANA
    assert [array.tolist() for array in store.features("ana")] == [[0, 1, 2]]
    assert not store.features("ana")[0].flags.writeable
    store.save_enrolment("ana", BEN, [])
    assert store.template("ana") == BEN
    assert store.features("ana") == ()


def test_users_are_sorted_and_deleted() -> None:
    store = MemoryStore()
    for name in ("cy", "ana", "ben"):
        store.save_enrolment(name, ANA, [])
    assert store.users() == ("ana", "ben", "cy")
    store.delete("ben")
    assert store.users() == ("ana", "cy")
    assert repr(store) == "MemoryStore(2 users)"


def test_nobody_of_that_name_and_the_name_is_not_repeated() -> None:
    store = MemoryStore()
    for call in (store.template, store.features, store.delete):
        with pytest.raises(UnknownUserError) as caught:
            call("secret-name")
        assert "secret-name" not in str(caught.value)


def test_spellings_of_one_id_are_one_person() -> None:
    store = MemoryStore()
    store.save_enrolment("Ana", ANA, [])
    store.save_enrolment("ana", BEN, [])
    assert store.users() == ("ana",)
    assert store.template("ANA") == BEN
    store.save_enrolment("Jose\N{COMBINING ACUTE ACCENT}", ANA, [])
    assert store.users() == ("Jose\N{COMBINING ACUTE ACCENT}", "ana")  # as the application wrote it last
    store.delete("jos\u00e9")
    assert store.users() == ("ana",)
    for bad in ("", "half\ud800"):
        for call in (store.template, store.features, store.delete):
            with pytest.raises(SettingsError):
                call(bad)


def test_other_writers_wait_for_the_lock() -> None:
    store = MemoryStore()
    assert isinstance(store, LockingStore)
    writer = threading.Thread(target=store.save_enrolment, args=("ana", ANA, []))
    with store.lock():
        writer.start()
        writer.join(0.05)
        assert writer.is_alive()
        assert store.users() == ()
    writer.join(10)
    assert store.users() == ("ana",)


def test_arrays_are_the_same_by_type_and_number() -> None:
    one = np.array([1.0, np.nan], np.float32)
    assert same_arrays([one], [one.copy()])
    assert same_arrays([one.astype(">f4")], [one])
    assert not same_arrays([one], [])
    for other in (one.astype(np.float64), one[:1], one[None], np.array([1.0, 2.0], np.float32)):
        assert not same_arrays([one], [other])
