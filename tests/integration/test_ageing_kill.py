"""``kill -9`` in the middle of steps: the template is that before or that after, and the enrolment is untouched."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from tests.builders import open_store
from tests.integration import ageing_process
from uvsdk import enroll
from uvsdk.bundle import shipped
from uvsdk.enrolment.ageing import History
from uvsdk_device import EncryptedStore
from uvsdk_device.ageing import read_history, revert_template

ROOT = Path(__file__).resolve().parents[2]
KILLS = 3


def test_a_killed_step_leaves_a_whole_template(tmp_path: Path) -> None:
    digits = load_digits()
    pages = [(255 - 15 * page).astype(np.uint8) for page in digits.images[digits.target == 3][:5]]
    store = open_store(tmp_path / "s")
    enrolled = enroll("ana", pages, model=shipped(), store=store).template
    features = [array.tobytes() for array in store.features("ana")]
    before = 0
    for attempt in range(KILLS):
        _walk_until_killed(tmp_path / "s", random.Random(attempt))
        reopened = EncryptedStore.open(tmp_path / "s", passphrase="p")
        assert reopened.template("ana") == enrolled
        assert [array.tobytes() for array in reopened.features("ana")] == features
        history = read_history(reopened, "ana")
        assert history is not None
        _check(history, enrolled.embedding, before)
        before = history.steps
        # What the killed writer left half done is gone.
        assert not list((tmp_path / "s").glob("**/*.tmp"))
    assert before > KILLS
    assert revert_template(reopened, "ana") == enrolled
    reopened.delete("ana")
    assert list((tmp_path / "s" / "users").iterdir()) == []


def _walk_until_killed(folder: Path, rng: random.Random) -> None:
    """Killed somewhere in one of the steps after the third, however long a step takes here."""
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "device"))
    walker = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.ageing_process", str(folder), "ana"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert walker.stdout is not None
    with walker.stdout:
        assert walker.stdout.readline() == b"ready\n"
        began = time.monotonic()
        for _ in range(rng.randint(3, 10)):
            assert walker.stdout.readline() == b"learned\n"
            step_s, began = time.monotonic() - began, time.monotonic()
        time.sleep(rng.uniform(0, step_s))
        walker.send_signal(signal.SIGKILL)
        assert walker.wait() == -signal.SIGKILL


def _check(history: History, original: np.ndarray, steps_before: int) -> None:
    policy = ageing_process.POLICY
    assert np.array_equal(history.original, original)
    assert history.steps > steps_before
    assert 1 <= len(history.versions) <= policy.keep
    cosines = history.versions.astype(np.float64) @ original.astype(np.float64)
    assert (cosines >= policy.minimum_cosine).all()
