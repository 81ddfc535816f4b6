"""Conditions of each sample: kept beside its features, and counted in their own cell when a model is evaluated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builders import CHEAP, open_store
from tests.modality_graphs import register
from tests.unit.conftest import MakeBundle, Numbers
from uvsdk.arrays import Array
from uvsdk.bundle import Bundle
from uvsdk.enroll import enroll
from uvsdk.errors import StoreError, UnknownUserError, WireError
from uvsdk.release import grid
from uvsdk.release.report import EvaluationTask
from uvsdk.scoring.cells import Division
from uvsdk.scoring.conditions import Conditions
from uvsdk.templates.storage import KeepsConditions, MemoryStore
from uvsdk.templates.template import Template
from uvsdk_device import sample_conditions
from uvsdk_device.evaluations import answer
from uvsdk_device.keystore import EncryptedStore

FEATURES = (np.array([1, 0, 0], np.float32), np.array([0, 1, 0], np.float32))
CONDITIONS = ({"speech_s": 1.5, "yaw": -0.25}, {"speech_s": 4.0})
TEMPLATE = Template(np.array([0.6, 0.8], np.float32), "m" * 64, "voice", 2)
# Lengths of 1.0, 1.0 and 2.0: the last is alone above the bound.
SAMPLES = [b"1 0 0", b"0.8 0.6 0", b"1.6 0 1.2"]


@pytest.fixture
def bundle(numbers: Numbers, identity_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """Of a modality that divides samples by their length, which no calibration looks at."""
    register("numbers", replace(numbers.record(), cells=(Division("length", (1.5,)),)), monkeypatch)
    return identity_bundle()


def report_of(store: EncryptedStore, bundle: Bundle) -> list[list[int]]:
    """The filled bins of each cell, as the device of ``ana`` reports them."""
    kept = store.enrolment("ana")
    nobody = np.zeros((0, 3), np.float32)
    task = EvaluationTask(1, bundle.version, bundle.version, "moments", True, nobody, nobody)
    found = answer(
        task,
        "moments",
        features=kept.features,
        candidate=bundle,
        released=bundle,
        conditions=kept.template.conditions,
        each=kept.conditions,
    )
    return [np.flatnonzero(row).tolist() for row in found.report.candidate.genuine]


def test_they_come_back_and_what_was_not_measured_stays_out() -> None:
    assert sample_conditions.unpacked(sample_conditions.packed(CONDITIONS, samples=2)) == CONDITIONS
    assert sample_conditions.unpacked(sample_conditions.packed((), samples=2)) == ()
    assert sample_conditions.unpacked(sample_conditions.packed(({}, {}), samples=2)) == ({}, {})


@pytest.mark.parametrize("wrong", [CONDITIONS[:1], ({"yaw": math.nan}, {}), ({}, {"snr_db": math.inf})])
def test_what_is_not_of_each_sample_is_refused(tmp_path: Path, wrong: Sequence[Conditions]) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", TEMPLATE, FEATURES, CONDITIONS)
    with pytest.raises(StoreError, match="conditions of"):
        store.save_enrolment("ana", TEMPLATE, FEATURES, wrong)
    assert store.conditions("ana") == CONDITIONS


def test_another_template_of_the_same_samples_leaves_them(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", TEMPLATE, FEATURES, CONDITIONS)
    store.update_template("ana", lambda features: replace(TEMPLATE, model_version="n" * 64))
    assert open_store(tmp_path / "s").enrolment("ana").conditions == CONDITIONS
    store.save_enrolment("ana", TEMPLATE, FEATURES)  # enrolled anew by somebody who measures nothing
    assert store.conditions("ana") == ()
    with pytest.raises(UnknownUserError):
        store.conditions("ben")


def test_a_store_of_an_earlier_version_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", TEMPLATE, FEATURES, CONDITIONS)
    # As it was written before: the same record without its last section.
    sections = store.get("enrolment", user="ana")
    store.put("enrolment", sections[:4], user="ana")
    old = store.enrolment("ana")
    assert (old.enrolment_id, old.conditions) == (sections[3], ())
    assert (store.template("ana"), store.conditions("ana")) == (TEMPLATE, ())
    # And it stays usable: the next template takes it over.
    store.update_template("ana", lambda features: replace(TEMPLATE, model_version="n" * 64))
    assert store.enrolment("ana").enrolment_id == sections[3]
    assert [array.tobytes() for array in store.features("ana")] == [array.tobytes() for array in FEATURES]


def test_a_flipped_bit_of_them_is_noticed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", TEMPLATE, FEATURES, CONDITIONS)
    (record,) = (tmp_path / "s" / "users").glob("*/enrolment")
    whole = record.read_bytes()
    for position in (len(whole) - 1, len(whole) - 60):
        record.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(StoreError):
            store.conditions("ana")


def test_enrolment_keeps_them_and_an_extension_adds_to_them(bundle: Bundle, tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    enroll("ana", SAMPLES, model=bundle, store=store, outliers="keep")
    assert store.conditions("ana") == ({"length": 1.0}, {"length": pytest.approx(1.0)}, {"length": 2.0})
    enroll("ana", [b"3 0 0.1"], model=bundle, store=store, outliers="keep", existing="extend")
    assert [round(item["length"], 2) for item in store.conditions("ana")] == [1.0, 1.0, 2.0, 3.0]


def test_a_store_that_keeps_none_enrols_and_extends(bundle: Bundle) -> None:
    store = MemoryStore()
    assert not isinstance(store, KeepsConditions)
    enroll("ana", SAMPLES, model=bundle, store=store, outliers="keep")
    assert (
        enroll("ana", [b"3 0 1"], model=bundle, store=store, outliers="keep", existing="extend").template.samples == 4
    )


class Rounding(EncryptedStore):
    """A store that does not give back what it was given, once told."""

    rounds = False

    def template(self, user_id: str) -> Template:
        found = super().template(user_id)
        return replace(found, samples=99) if self.rounds and found.samples == 4 else found


def test_the_earlier_ones_outlive_an_enrolment_that_does_not_read_back(bundle: Bundle, tmp_path: Path) -> None:
    store = Rounding.open(tmp_path / "s", passphrase="p", cost=CHEAP)
    enroll("ana", SAMPLES, model=bundle, store=store, outliers="keep")
    kept = store.conditions("ana")
    store.rounds = True
    with pytest.raises(StoreError, match="The earlier enrolment is in place again"):
        enroll("ana", [*SAMPLES, b"3 0 1"], model=bundle, store=store, outliers="keep")
    assert store.conditions("ana") == kept
    assert len(kept) == 3


def test_each_sample_is_counted_in_its_own_cell(bundle: Bundle, tmp_path: Path) -> None:
    # Against the normalised sum of the others: (1, 0, 0) with (0.8, 0.6, 0) + (0.8, 0, 0.6) is 1.6 / sqrt 3.28 =
    # 0.883; the second with (1, 0, 0) + (0.8, 0, 0.6) is 1.44 / sqrt 3.6 = 0.759; so is the third with the first two.
    # A fresh probe meets three samples in place of two: their cosines are 0.8, 0.8 and 0.64, on average a = 2.24 / 3.
    a = 2.24 / 3
    raised = math.sqrt((a + (1 - a) / 2) / (a + (1 - a) / 3))
    store = open_store(tmp_path / "s")
    enroll("ana", SAMPLES, model=bundle, store=store, outliers="keep")
    alike, other = grid.bin_of(raised * np.array([1.6 / math.sqrt(3.28), 1.44 / math.sqrt(3.6)])).tolist()
    assert report_of(store, bundle) == [[other, alike], [other, alike], [other]]
    # Where only averages are known, 4/3 here, all samples lie on one side; without those in no cell at all.
    arrays: Sequence[Array] = store.features("ana")
    store.save_enrolment("ana", store.template("ana"), arrays)
    assert report_of(store, bundle) == [[other, alike], [], []]


def test_a_damaged_section_is_a_store_error(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    store.save_enrolment("ana", TEMPLATE, FEATURES, CONDITIONS)
    sections = store.get("enrolment", user="ana")
    store.put("enrolment", [*sections[:4], sections[4][:-3]], user="ana")
    with pytest.raises(WireError):
        store.conditions("ana")
    assert store.template("ana") == TEMPLATE  # whoever verifies does not read it
