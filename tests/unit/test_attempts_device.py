"""The retry policy around a real encrypted store: threads, processes, kills, clocks, the agent and the command."""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.builders import Clock, open_store
from tests.unit.conftest import IMPOSTORS, MakeBundle
from uvsdk.bundle import Bundle, shipped
from uvsdk.cli import main
from uvsdk.enroll import enroll
from uvsdk.errors import (
    DisabledError,
    NoInkError,
    StoreError,
    ThresholdError,
    TooManyAttemptsError,
    UnknownUserError,
)
from uvsdk.identify import SearchThreshold
from uvsdk.scoring import Decision, Threshold
from uvsdk.templates.attempts import Attempts, RetryPolicy
from uvsdk_device.attempts import AttemptGate, read_attempts, reset_attempts
from uvsdk_device.keystore import ATTEMPTS, EncryptedStore
from uvsdk_device.runtime import Runtime

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bundle(identity_bundle: MakeBundle, store: EncryptedStore) -> Bundle:
    made = identity_bundle(IMPOSTORS)
    enroll("ana", [b"1 0 0", b"1 0 0.1", b"1 0 -0.1"], model=made, store=store, fmr=0.01)
    enroll("bea", [b"0 1 0", b"0 1 0.1", b"0 1 -0.1"], model=made, store=store, fmr=0.01)
    return made


def decided(score: float) -> Decision:
    return Decision(score, Threshold(0.5, 0.01, 1000), "m")


def refuse(gate: AttemptGate, times: int, user: str = "ana") -> None:
    for _ in range(times):
        assert not gate.decide(user, lambda: decided(0.0)).accepted


def test_five_failures_then_30_seconds_then_60(store: EncryptedStore, bundle: Bundle) -> None:
    clock = Clock()
    runtime = Runtime(store, bundle, clock=clock)
    for _ in range(5):
        assert not runtime.verify("ana", b"0 1 0").accepted
    with pytest.raises(TooManyAttemptsError) as caught:
        runtime.verify("ana", b"1 0 0")
    assert caught.value.retry_after_s == 30
    clock.now_s += 29
    with pytest.raises(TooManyAttemptsError):
        runtime.verify("ana", b"1 0 0")
    clock.now_s += 1
    assert not runtime.verify("ana", b"0 1 0").accepted
    clock.now_s += 59
    with pytest.raises(TooManyAttemptsError):
        runtime.verify("ana", b"1 0 0")
    clock.now_s += 1
    assert runtime.verify("ana", b"1 0 0").accepted
    assert read_attempts(store, "ana").failures == 0
    assert read_attempts(store).failures == 0


def test_one_persons_failures_do_not_close_another_but_the_devices_do(store: EncryptedStore, bundle: Bundle) -> None:
    clock = Clock()
    gate = AttemptGate(store, clock=clock)
    refuse(gate, 3, "ana")
    refuse(gate, 2, "bea")
    # Five in a row on this device: whoever comes next waits.
    with pytest.raises(TooManyAttemptsError, match="this device"):
        gate.decide("bea", lambda: decided(1.0))
    clock.now_s += 30
    assert gate.decide("bea", lambda: decided(1.0)).accepted
    assert gate.state("bea").failures == gate.state().failures == 0
    assert gate.state("ana").failures == 3
    refuse(gate, 2, "ana")
    with pytest.raises(TooManyAttemptsError, match="this person"):
        gate.decide("ana", lambda: decided(1.0))
    assert gate.decide("bea", lambda: decided(1.0)).accepted


def test_it_survives_a_restart_and_another_spelling(store: EncryptedStore, bundle: Bundle) -> None:
    clock = Clock()
    refuse(AttemptGate(store, clock=clock), 5)
    again = AttemptGate(open_store(store.folder), clock=clock)
    with pytest.raises(TooManyAttemptsError):
        again.decide("ANA", lambda: decided(1.0))
    assert again.wait_s("Ana") == 30


def test_disabled_until_reset_or_enrolled_again(store: EncryptedStore, bundle: Bundle) -> None:
    clock = Clock()
    policy = RetryPolicy(free_failures=2, disabled_at=3, first_delay_s=1.0)
    runtime = Runtime(store, bundle, retry=policy, clock=clock)
    gate = AttemptGate(store, policy, clock)
    for _ in range(3):
        assert not runtime.verify("ana", b"0 1 0").accepted
        clock.now_s += 100
    clock.now_s += 1e9
    assert gate.wait_s("ana") == math.inf
    with pytest.raises(DisabledError, match="disabled"):
        runtime.verify("ana", b"1 0 0")
    reset_attempts(store)  # the device alone is not enough
    with pytest.raises(DisabledError, match=r"this person.*attempts reset USER"):
        runtime.verify("ana", b"1 0 0")
    reset_attempts(store, "ana")
    assert runtime.verify("ana", b"1 0 0").accepted
    for _ in range(3):
        assert not runtime.verify("ana", b"0 1 0").accepted
        clock.now_s += 100
    enroll("ana", [b"1 0 0", b"1 0 0.1", b"1 0 -0.1"], model=bundle, store=store)
    with pytest.raises(DisabledError, match=r"this device.*--device"):
        runtime.verify("ana", b"1 0 0")
    reset_attempts(store)
    assert runtime.verify("ana", b"1 0 0").accepted


def test_a_template_made_again_by_a_newer_model_keeps_the_count(
    store: EncryptedStore, bundle: Bundle, identity_bundle: MakeBundle
) -> None:
    clock = Clock()
    refuse(AttemptGate(store, clock=clock), 5)
    newer = identity_bundle(IMPOSTORS, name="newer")
    store.accept_model(newer)
    with pytest.raises(TooManyAttemptsError):
        Runtime(store, newer, clock=clock).verify("ana", b"1 0 0")
    assert read_attempts(store, "ana").failures == 5


def test_unusable_samples_and_other_errors(store: EncryptedStore, bundle: Bundle) -> None:
    runtime = Runtime(store, bundle, clock=Clock())
    for _ in range(9):
        with pytest.raises(NoInkError):
            runtime.verify("ana", b"")
    state = read_attempts(store, "ana")
    assert (state.failures, state.unusable, state.recent.hour) == (0, 9, pytest.approx(0.9))
    with pytest.raises(NoInkError):
        runtime.verify("ana", b"")
    assert read_attempts(store, "ana").failures == 1
    for _ in range(20):
        with pytest.raises(ThresholdError):
            runtime.verify("ana", b"1 0 0", threshold=Threshold(0.5, 0.01, 100, model_version="another"))
    assert read_attempts(store, "ana").failures == 1
    with pytest.raises(UnknownUserError):
        runtime.verify("cleo", b"1 0 0")
    assert read_attempts(store).failures == 1
    with pytest.raises(KeyboardInterrupt):
        AttemptGate(store).decide("ana", interrupted)
    assert read_attempts(store, "ana").failures == 2


def interrupted() -> Decision:
    raise KeyboardInterrupt


def test_fifty_threads_get_five_comparisons(store: EncryptedStore, bundle: Bundle) -> None:
    gate = AttemptGate(store, clock=Clock())
    compared, started = [], threading.Barrier(50)

    def compare() -> Decision:
        compared.append(1)
        return decided(0.0)

    def one() -> str:
        started.wait()
        try:
            return str(gate.decide("ana", compare).accepted)
        except TooManyAttemptsError:
            return "refused"

    with ThreadPoolExecutor(50) as pool:
        answers = [item.result() for item in [pool.submit(one) for _ in range(50)]]
    assert len(compared) == 5
    assert sorted(answers) == ["False"] * 5 + ["refused"] * 45


def test_fifty_threads_of_the_right_person_are_all_let_in(store: EncryptedStore, bundle: Bundle) -> None:
    """Attempts under way take up what is left for a moment only: the others wait for them."""
    gate = AttemptGate(store, clock=Clock())
    with ThreadPoolExecutor(50) as pool:
        answers = [pool.submit(gate.decide, "ana", lambda: decided(0.9)) for _ in range(50)]
        assert all(answer.result().accepted for answer in answers)
    assert gate.state("ana").failures == 0
    assert not gate._undecided


def test_two_gates_on_one_store_share_the_count(store: EncryptedStore, bundle: Bundle) -> None:
    clock = Clock()
    gates = [AttemptGate(open_store(store.folder), clock=clock) for _ in range(2)]
    compared = []

    def one(number: int) -> None:
        try:
            gates[number % 2].decide("ana", lambda: compared.append(1) or decided(0.0))  # type: ignore[func-returns-value]
        except TooManyAttemptsError:
            return

    with ThreadPoolExecutor(20) as pool:
        for done in [pool.submit(one, number) for number in range(20)]:
            done.result()
    assert len(compared) == 5


KILLED = """
import os, signal, sys
from uvsdk.templates.attempts import RetryPolicy
from uvsdk.identify import SearchThreshold
from uvsdk.scoring import Decision, Threshold
from uvsdk_device.attempts import AttemptGate
from uvsdk_device.keystore import EncryptedStore

def compare():
    print("compared", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

AttemptGate(EncryptedStore.open(sys.argv[1], passphrase="p"), RetryPolicy(free_failures=2)).decide("ana", compare)
"""


def test_kill_9_before_the_answer_gives_no_free_attempts(store: EncryptedStore, bundle: Bundle) -> None:
    """A process that is killed while it compares has counted that attempt; after two the third is not compared."""
    path = os.pathsep.join(str(ROOT / part) for part in (".", "server", "device"))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    for number in range(1, 4):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(store.folder)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        if number <= 2:
            assert (done.returncode, done.stdout) == (-signal.SIGKILL, "compared\n"), done.stderr
            assert read_attempts(store, "ana").failures == number
        else:
            assert done.returncode == 1
            assert done.stdout == ""
            assert "TooManyAttemptsError: 2 failed attempts in a row for this person" in done.stderr


def test_a_clock_that_is_set_back_is_noticed_and_waited_out(store: EncryptedStore, bundle: Bundle) -> None:
    clock = Clock()
    gate = AttemptGate(store, clock=clock)
    clock.now_s = 2e9
    refuse(gate, 5)
    clock.now_s = 1e9
    with pytest.raises(TooManyAttemptsError) as caught:
        gate.decide("ana", lambda: decided(1.0))
    assert caught.value.retry_after_s == 30
    clock.now_s += 30
    assert gate.decide("ana", lambda: decided(1.0)).accepted


def test_the_count_lies_sealed_and_goes_with_the_person(store: EncryptedStore, bundle: Bundle) -> None:
    clock = Clock()
    gate = AttemptGate(store, clock=clock)
    refuse(gate, 4)
    sizes = {path.stat().st_size for path in store.folder.rglob(ATTEMPTS)}
    assert len(sizes) == 1
    before = {path: path.read_bytes() for path in store.folder.rglob(ATTEMPTS)}
    refuse(gate, 1)
    # In place, under a new salt: nothing of the former content is left to compare.
    for path, content in before.items():
        assert len(path.read_bytes()) == len(content)
        assert path.read_bytes()[4:36] != content[4:36]
    store.delete("ana")
    enroll("ana", [b"1 0 0", b"1 0 0.1", b"1 0 -0.1"], model=bundle, store=store)
    assert read_attempts(store, "ana") == Attempts()


def test_a_damaged_count_closes_and_a_reset_opens(store: EncryptedStore, bundle: Bundle) -> None:
    gate = AttemptGate(store)
    refuse(gate, 1)
    for path in store.folder.rglob(ATTEMPTS):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(StoreError, match="attempts"):
        gate.decide("ana", lambda: decided(1.0))
    reset_attempts(store)
    reset_attempts(store, "ana")
    assert gate.decide("ana", lambda: decided(1.0)).accepted


def test_a_person_who_is_deleted_meanwhile(store: EncryptedStore, bundle: Bundle) -> None:
    gate = AttemptGate(store)

    def compare() -> Decision:
        store.delete("ana")
        return decided(0.9)

    assert gate.decide("ana", compare).accepted
    assert gate.state().failures == 0
    with pytest.raises(UnknownUserError):
        gate.state("ana")
    with pytest.raises(UnknownUserError):
        reset_attempts(store, "ana")


def test_no_policy_counts_nothing(store: EncryptedStore, bundle: Bundle) -> None:
    runtime = Runtime(store, bundle, retry=None)
    for _ in range(60):
        assert not runtime.verify("ana", b"0 1 0").accepted
    assert runtime.verify("ana", b"1 0 0").accepted
    assert not list(store.folder.rglob(ATTEMPTS))


def test_an_acceptance_at_a_higher_rate_is_what_the_rate_in_force_makes_of_it(
    store: EncryptedStore, bundle: Bundle
) -> None:
    """Enrolled at 1 %, Ana is accepted at 40 % with a probe that 1 % rejects: that is a failure, and tells as much."""
    runtime = Runtime(store, bundle, clock=Clock())
    # 1 % of the impostors score above about 0.49, 40 % above about 0.1; this probe scores 0.3.
    probe = b"0.3 0.954 0"
    for _ in range(3):
        assert not runtime.verify("ana", probe).accepted
    assert runtime.verify("ana", probe, fmr=0.4).accepted
    assert read_attempts(store, "ana").failures == read_attempts(store).failures == 4
    assert runtime.verify("ana", b"1 0 0", fmr=0.4).accepted  # and at 1 % as well
    assert read_attempts(store, "ana").failures == read_attempts(store).failures == 0
    assert not runtime.verify("ana", probe, fmr=0.005).accepted
    assert read_attempts(store, "ana").failures == 1
    assert runtime.verify("ana", b"1 0 0", fmr=0.005).accepted
    assert read_attempts(store, "ana").failures == read_attempts(store).failures == 0


def test_searches_that_name_nobody_count_for_the_device(store: EncryptedStore, bundle: Bundle) -> None:
    """Else `identify` would be a way to try probes without end."""
    clock = Clock()
    runtime = Runtime(store, bundle, clock=clock)
    people = runtime.gallery()
    by_hand = SearchThreshold(0.5, 0.01, 2, 0)
    assert runtime.identify(b"1 0 0", people, threshold=by_hand).user_id == "ana"
    for _ in range(5):
        assert runtime.identify(b"0 0 1", people, threshold=by_hand).user_id is None
    for attempt in (
        lambda: runtime.identify(b"1 0 0", people, threshold=by_hand),
        lambda: runtime.verify("ana", b"1 0 0"),
    ):
        with pytest.raises(TooManyAttemptsError, match="this device"):
            attempt()
    assert read_attempts(store, "ana") == Attempts()
    clock.now_s += 30
    assert runtime.identify(b"1 0 0", people, threshold=by_hand).user_id == "ana"
    assert read_attempts(store).failures == 0
    with pytest.raises(NoInkError):
        runtime.identify(b"", people, threshold=by_hand)
    assert read_attempts(store).unusable == 1


def test_one_who_is_enrolled_here_cannot_try_the_others_without_end(store: EncryptedStore, bundle: Bundle) -> None:
    """Bea's own acceptances reset the count in a row, and not the device's window."""
    clock = Clock()
    gate, tried = AttemptGate(store, clock=clock), 0

    def spray() -> None:
        nonlocal tried
        while True:
            for _ in range(4):
                assert not gate.decide("ana", lambda: decided(0.0)).accepted
                tried += 1
                reset_attempts(store, "ana")  # as if there were many people to try
            assert gate.decide("bea", lambda: decided(1.0)).accepted

    with pytest.raises(TooManyAttemptsError, match="lately for this device"):
        spray()
    assert tried == 20
    clock.now_s += 3600 / 20
    assert gate.decide("ana", lambda: decided(1.0)).accepted


def test_a_score_that_somebody_else_is_told_counts(store: EncryptedStore, bundle: Bundle) -> None:
    runtime = Runtime(store, bundle, clock=Clock())
    for _ in range(20):
        assert runtime.verify("ana", b"1 0 0", told=True).accepted
    with pytest.raises(TooManyAttemptsError, match="lately"):
        runtime.verify("ana", b"1 0 0")


def test_a_search_at_a_rate_that_names_anybody_counts_as_naming_nobody(store: EncryptedStore, bundle: Bundle) -> None:
    runtime = Runtime(store, bundle, clock=Clock())
    people = runtime.gallery()
    lax = SearchThreshold(-1.0, 0.99, 2, 0)
    for _ in range(5):
        assert runtime.identify(b"0 0.1 1", people, threshold=lax).user_id == "bea"
    assert read_attempts(store).failures == 5


def test_a_count_of_a_version_without_windows_is_read(store: EncryptedStore, bundle: Bundle) -> None:
    store.put(ATTEMPTS, [struct.pack("<IId", 4, 7, 990.0)], user="ana")
    assert read_attempts(store, "ana") == Attempts(4, 7, 990.0)
    refuse(AttemptGate(store, clock=Clock()), 1)
    state = read_attempts(store, "ana")
    assert (state.failures, state.recent.day) == (5, 1)


def test_decisions_made_otherwise_count_as_one_attempt(store: EncryptedStore, bundle: Bundle) -> None:
    runtime = Runtime(store, bundle, clock=Clock())
    for _ in range(5):
        assert not runtime.count_attempt("ana", lambda: decided(0.1)).accepted
    with pytest.raises(TooManyAttemptsError):
        runtime.count_attempt("ana", lambda: decided(0.9))
    reset_attempts(store)
    with pytest.raises(UnknownUserError):
        runtime.count_attempt("cleo", lambda: decided(0.9))
    assert Runtime(store, bundle, retry=None).count_attempt("ana", lambda: decided(0.9)).accepted


def command(store: EncryptedStore, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """``uvsdk ARGUMENTS --store STORE`` in this process."""
    monkeypatch.setenv("UVSDK_PASSPHRASE", "p")
    return main([*arguments, "--store", str(store.folder)])


def test_the_command_shows_and_resets(
    store: EncryptedStore, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(AttemptGate(store), 5)
    assert command(store, "attempts", "show", "ana", monkeypatch=monkeypatch) == 0
    assert "5 failed attempts in a row, 0 samples that could not be used, 5.0 failures in the hour's window" in (
        capsys.readouterr().out
    )
    assert command(store, "attempts", "reset", "ana", monkeypatch=monkeypatch) == 0
    assert command(store, "attempts", "show", "ana", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.startswith("0 failed attempts")
    assert command(store, "attempts", "show", "--device", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.startswith("5 failed attempts")
    assert command(store, "attempts", "reset", "--device", monkeypatch=monkeypatch) == 0
    assert read_attempts(store) == Attempts()
    assert command(store, "attempts", "reset", "cleo", monkeypatch=monkeypatch) == 1
    assert "enrol first" in capsys.readouterr().err
    for wrong in (("attempts", "reset"), ("attempts", "reset", "ana", "--device"), ("attempts",)):
        with pytest.raises(SystemExit):
            command(store, *wrong, monkeypatch=monkeypatch)


def drawn(path: Path, *, pen: float | None) -> str:
    """A handwritten O by a pen of that width, or a bar, as a file."""
    y, x = np.mgrid[-1:1:32j, -1:1:32j]
    ink = (abs(x) < 0.2) & (abs(y) < 0.8) if pen is None else abs(np.hypot(x, y) - 0.7) < pen
    Image.fromarray(np.where(ink, 0, 255).astype(np.uint8)).save(path)
    return str(path)


def test_verifying_on_the_command_line_counts(
    store: EncryptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "model.uvb")
    shipped().save(model)
    rings = [drawn(tmp_path / f"{number}.png", pen=pen) for number, pen in enumerate((0.15, 0.2, 0.25, 0.18))]
    bar = drawn(tmp_path / "bar.png", pen=None)
    run = partial(command, store, monkeypatch=monkeypatch)
    assert run("enroll", "ada", *rings[:3], "--model", model, "--quality", "strict") == 0
    capsys.readouterr()
    strict = ("--model", model, "--quality", "strict", "--faces", "only", "--no-presentation-detector")
    assert run("verify", "ada", rings[3], *strict, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["accepted"] is True
    assert {"llr", "presentations", "quality", "threshold", "score"} <= set(answer)
    for _ in range(5):
        assert run("verify", "ada", bar, *strict) == 3
    assert run("verify", "ada", rings[3], *strict) == 1
    assert "5 failed attempts in a row for this" in capsys.readouterr().err
    assert run("identify", rings[3], "--model", model) == 1
    assert "5 failed attempts in a row for this device" in capsys.readouterr().err
    assert run("attempts", "reset", "ada") == 0
    assert run("attempts", "reset", "--device") == 0
    assert run("verify", "ada", rings[3], *strict) == 0
    with pytest.raises(SystemExit) as caught:
        run("verify", "ada", bar, "--model", model, "--quality", "best")
    assert caught.value.code == 2
