"""Ageing on a device: sealed beside the enrolment, off unless asked for, revocable, deleted, void when it must be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.builders import Clock
from tests.unit.conftest import MakeBundle
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.enroll import enroll
from uvsdk.enrolment.ageing import AgeingPolicy
from uvsdk.errors import SettingsError, StoreError, StoreFullError, UnknownUserError
from uvsdk.identify import identify
from uvsdk.modality.contract import Captured
from uvsdk.scoring import Presentation, Threshold
from uvsdk.scoring.domain import Domain
from uvsdk.templates.gallery import Gallery
from uvsdk_device.ageing import TemplateAgeing, read_history
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.runtime import Runtime

IMPOSTORS = np.linspace(-0.5, 0.5, 10_000, dtype=np.float32)
ANA = [b"1 0 0", b"1 0 0.1", b"1 0 -0.1"]
OLDER = b"1 0.2 0"
DAY_S = 86_400.0


class Detector:
    """Calls everything live, or everything an attack."""

    name, modality = "by hand", "numbers"

    def __init__(self, score: float = 1.0) -> None:
        self.score = score

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        return Presentation(self.name, self.score, 0.5)


LIVE = (Detector(),)


@pytest.fixture
def bundle(identity_bundle: MakeBundle) -> Bundle:
    return identity_bundle(IMPOSTORS)


@pytest.fixture
def clock() -> Clock:
    return Clock(1e9)


@pytest.fixture
def runtime(store: EncryptedStore, bundle: Bundle, clock: Clock) -> Runtime:
    enroll("ana", ANA, model=bundle, store=store, fmr=0.01)
    return Runtime(store, bundle, ageing=AgeingPolicy(), clock=clock)


def score_of(runtime: Runtime) -> float:
    """How near the template in use is to the older face; nothing moves, since nobody looked for an attack."""
    return runtime.verify("ana", OLDER).score


def test_off_unless_asked_for(store: EncryptedStore, bundle: Bundle, clock: Clock) -> None:
    enroll("ana", ANA, model=bundle, store=store)
    runtime = Runtime(store, bundle, clock=clock)
    assert runtime.verify("ana", OLDER, detectors=LIVE).accepted
    assert read_history(store, "ana") is None


def test_a_strong_live_match_moves_the_template_once_a_day(
    runtime: Runtime, store: EncryptedStore, clock: Clock
) -> None:
    before = score_of(runtime)
    enrolled = store.template("ana")
    assert runtime.verify("ana", OLDER, detectors=LIVE).accepted
    after = score_of(runtime)
    assert after > before
    assert runtime.verify("ana", OLDER, detectors=LIVE).accepted  # the same day
    assert score_of(runtime) == after
    clock.now_s += DAY_S
    runtime.verify("ana", OLDER, detectors=LIVE)
    assert score_of(runtime) > after
    history = read_history(store, "ana")
    assert history is not None
    assert (history.steps, len(history.versions)) == (2, 2)
    # The enrolment itself never changes.
    assert store.template("ana") == enrolled
    assert len(store.features("ana")) == 3


def test_attacks_and_unchecked_and_weak_probes_move_nothing(runtime: Runtime, store: EncryptedStore) -> None:
    assert not runtime.verify("ana", OLDER, detectors=(Detector(0.0),)).accepted
    assert runtime.verify("ana", OLDER).accepted
    # One in a hundred impostors reaches 0.49 and one in a thousand 0.499: 0.495 is accepted and not strong.
    assert runtime.verify("ana", b"0.495 0.8689 0", detectors=LIVE).accepted
    assert read_history(store, "ana") is None


def test_a_probe_of_another_domain_moves_nothing(store: EncryptedStore, bundle: Bundle, clock: Clock) -> None:
    assert bundle.calibration is not None
    # People who hardly differ along the second dimension, where the older probe lies; it is let in nevertheless.
    domain = Domain(
        np.array([0.9, 0, 0], np.float32),
        np.eye(1, 3, dtype=np.float32),
        np.array([0.1]),
        0.01,
        40,
        np.array([0.1, 0.5, 0.9]),
    )
    knowing = bundle.with_calibration(replace(bundle.calibration, domain=domain))
    enroll("ana", ANA, model=knowing, store=store, fmr=0.01)
    runtime = Runtime(store, knowing, ageing=AgeingPolicy(), clock=clock)
    outside = runtime.verify("ana", OLDER, detectors=LIVE)
    assert (outside.accepted, outside.basis.placement.verdict) == (True, "outside")
    assert read_history(store, "ana") is None
    inside = runtime.verify("ana", b"1 0.05 0", detectors=LIVE)
    assert (inside.accepted, inside.basis.placement.verdict) == (True, "inside")
    assert read_history(store, "ana") is not None


def test_a_looser_threshold_of_one_call_does_not_loosen_a_strong_match(runtime: Runtime, store: EncryptedStore) -> None:
    by_hand = Threshold(-1.0, 0.5, 0)
    assert runtime.verify("ana", b"0 1 0", threshold=by_hand, detectors=LIVE).accepted
    assert runtime.verify("ana", b"0.1 1 0", fmr=0.5, detectors=LIVE).accepted
    assert read_history(store, "ana") is None


def test_too_few_trials_for_a_strict_threshold_move_nothing(
    store: EncryptedStore, identity_bundle: MakeBundle, clock: Clock
) -> None:
    bundle = identity_bundle(IMPOSTORS[::20])  # 500 support 1 %, not 0.1 %
    enroll("ana", ANA, model=bundle, store=store)
    runtime = Runtime(store, bundle, ageing=AgeingPolicy(), clock=clock)
    assert runtime.verify("ana", OLDER, detectors=LIVE).accepted
    assert read_history(store, "ana") is None


def test_at_the_strictest_rate_the_strictest_match_is_strong(
    store: EncryptedStore, bundle: Bundle, clock: Clock
) -> None:
    """By default a template has the lowest rate that the trials measure, and nothing lies ten times below it."""
    enroll("ana", ANA, model=bundle, store=store)
    runtime = Runtime(store, bundle, ageing=AgeingPolicy(), clock=clock)
    assert runtime.verify("ana", OLDER, detectors=LIVE).accepted
    history = read_history(store, "ana")
    assert history is not None
    assert history.steps == 1


def test_steps_are_taken_back(runtime: Runtime, store: EncryptedStore, clock: Clock) -> None:
    scores = [score_of(runtime)]
    for _ in range(3):
        runtime.verify("ana", OLDER, detectors=LIVE)
        scores.append(score_of(runtime))
        clock.now_s += DAY_S
    assert scores == sorted(scores)
    runtime.revert_template("ana", steps=1)
    assert score_of(runtime) == scores[2]
    assert runtime.revert_template("ana") == store.template("ana")
    assert score_of(runtime) == scores[0]
    runtime.revert_template("ana", steps=1)  # nothing left to take back
    assert score_of(runtime) == scores[0]
    with pytest.raises(SettingsError):
        runtime.revert_template("ana", steps=0)
    with pytest.raises(UnknownUserError):
        runtime.revert_template("ben")


def test_the_enrolments_own_template_is_back_when_ageing_is_turned_off(
    runtime: Runtime, store: EncryptedStore, bundle: Bundle
) -> None:
    before = score_of(runtime)
    runtime.verify("ana", OLDER, detectors=LIVE)
    assert score_of(Runtime(store, bundle)) == before


def test_another_enrolment_another_model_and_deletion_end_it(
    runtime: Runtime, store: EncryptedStore, bundle: Bundle, identity_bundle: MakeBundle, clock: Clock
) -> None:
    runtime.verify("ana", OLDER, detectors=LIVE)
    enroll("ana", [b"0 1 0", b"0 1 0.1", b"0 1 -0.1"], model=bundle, store=store)
    assert read_history(store, "ana") is None
    assert runtime.verify("ana", b"0 1 0").score == pytest.approx(1.0)
    clock.now_s += DAY_S
    runtime.verify("ana", b"0 1 0.2", detectors=LIVE)
    assert read_history(store, "ana") is not None
    store.accept_model(identity_bundle(IMPOSTORS, name="newer"))
    newer = Runtime(store, identity_bundle(IMPOSTORS, name="newer"), ageing=AgeingPolicy(), clock=clock)
    assert newer.verify("ana", b"0 1 0").score == pytest.approx(1.0)
    assert read_history(store, "ana") is None
    newer.verify("ana", b"0 1 0.2", detectors=LIVE)
    store.delete("ana")
    assert list((store.folder / "users").iterdir()) == []


def test_who_is_recognised_gets_in_even_where_nothing_can_be_written(
    runtime: Runtime, store: EncryptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = score_of(runtime)

    def full(*_: object, **__: object) -> None:
        raise StoreFullError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", full)
        assert runtime.verify("ana", OLDER, detectors=LIVE).accepted
    assert score_of(runtime) == before


def test_a_step_of_a_template_that_was_replaced_meanwhile_is_not_kept(
    runtime: Runtime, store: EncryptedStore, bundle: Bundle, clock: Clock
) -> None:
    enrolled = store.template("ana")
    decision = runtime.verify("ana", OLDER)
    live = type(decision)(decision.score, decision.threshold, bundle.version, presentations=(Presentation("d", 1, 0),))
    ageing = TemplateAgeing(store, bundle, AgeingPolicy(), clock)
    enroll("ana", [b"0 1 0", b"0 1 0.1", b"0 1 -0.1"], model=bundle, store=store)
    probe = np.array([1, 0.2, 0], np.float32) / np.float32(np.sqrt(1.04))
    ageing.learn("ana", enrolled, probe=probe, decision=live)
    assert read_history(store, "ana") is None
    store.delete("ana")
    with pytest.raises(UnknownUserError):
        ageing.learn("ana", enrolled, probe=probe, decision=live)
    assert store.users() == ()


def test_what_is_kept_is_sealed_and_a_damaged_record_can_be_reverted(runtime: Runtime, store: EncryptedStore) -> None:
    runtime.verify("ana", OLDER, detectors=LIVE)
    history = read_history(store, "ana")
    assert history is not None
    folder = next((store.folder / "users").iterdir())
    (record,) = folder.glob("ageing.*")
    content = record.read_bytes()
    assert history.current.tobytes() not in content
    assert history.original.tobytes() not in content
    record.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StoreError):
        runtime.verify("ana", OLDER)
    assert runtime.revert_template("ana") == store.template("ana")
    assert runtime.verify("ana", OLDER).accepted


def test_side_by_side_probes_take_one_step(runtime: Runtime, store: EncryptedStore) -> None:
    barrier = threading.Barrier(4)

    def verify(_: int) -> bool:
        barrier.wait()
        return runtime.verify("ana", OLDER, detectors=LIVE).accepted

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(verify, range(4)))
    history = read_history(store, "ana")
    assert history is not None
    assert history.steps == 1


def test_a_gallery_has_the_templates_in_use(runtime: Runtime, store: EncryptedStore, bundle: Bundle) -> None:
    enroll("ben", [b"0 1 0", b"0 1 0.1", b"0 1 -0.1"], model=bundle, store=store)
    before = Gallery.from_store(store).search(np.array([0, 1, 0], np.float32), 2).candidates[1].score
    runtime.verify("ana", OLDER, detectors=LIVE)
    gallery = runtime.gallery()
    assert gallery.search(np.array([0, 1, 0], np.float32), 2).candidates[1].score > before
    assert identify(b"0 3 0", gallery, model=bundle, fpir=0.01).user_id == "ben"
    assert identify(b"0 0 1", gallery, model=bundle, fpir=0.01).user_id is None


def test_a_gallery_makes_stale_templates_again(
    store: EncryptedStore, bundle: Bundle, identity_bundle: MakeBundle
) -> None:
    enroll("ana", ANA, model=bundle, store=store)
    newer = identity_bundle(IMPOSTORS, name="newer")
    store.accept_model(newer)
    enroll("ben", [b"0 1 0", b"0 1 0.1", b"0 1 -0.1"], model=newer, store=store)
    gallery = Runtime(store, newer).gallery()
    assert gallery.model_version == newer.version
    assert gallery.users() == ("ana", "ben")
