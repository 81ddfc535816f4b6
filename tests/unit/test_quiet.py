"""C's standard error goes nowhere for a while, and nothing else does."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.unit.test_recordings import FRAMES, chatter, decoded
from uvsdk.errors import SampleError
from uvsdk.modality import quiet

pytestmark = pytest.mark.skipif(quiet._variables()[0] is None, reason="C's standard error is a variable in glibc only")


def say(words: str) -> None:
    """As C code does."""
    library = ctypes.CDLL(None)
    library.fputs(words.encode(), ctypes.c_void_p.in_dll(library, "stderr"))


def test_c_is_quiet_and_python_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    say("before ")
    with quiet.standard_error():
        say("hidden ")
        print("python ", file=sys.stderr, end="", flush=True)
        os.write(2, b"descriptor ")
        with quiet.standard_error():
            say("hidden ")
        say("hidden ")
    say("after")
    assert chatter(capfd) == "before python descriptor after"


def test_it_ends_with_an_error_too(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), quiet.standard_error():
        _ = 1 / 0
    say("after")
    assert chatter(capfd) == "after"


def damaged(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    data = bytearray(b"".join(FRAMES[1:200]))
    for place in rng.integers(100, len(data), 200):
        data[place] ^= 1 << rng.integers(8)
    return bytes(data)


def heard(seed: int) -> bytes:
    try:
        return decoded(damaged(seed)).tobytes()
    except SampleError as error:
        return str(error).encode()


def test_damaged_sound_is_decoded_in_many_threads_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    chatter(capfd)
    expected = [heard(seed) for seed in range(12)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(heard, list(range(12)) * 2)) == expected * 2
    assert chatter(capfd) == ""
    say("and after it")
    assert chatter(capfd) == "and after it"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_was_forked_meanwhile_speaks(capfd: pytest.CaptureFixture[str]) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def decode() -> None:
        with quiet.standard_error(), quiet._lock:
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=decode)
    thread.start()
    assert inside.wait(10)
    child = os.fork()
    if not child:
        say("child ")
        with quiet.standard_error():
            say("hidden")
        os._exit(0)
    go_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert chatter(capfd) == "child "
