"""The server's way from sealed files to their mean: exact, whatever the cohort, and closed to damage."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from uvsdk.arrays import Float32
from uvsdk.errors import SealError
from uvsdk.federation.aggregation import weighted_mean
from uvsdk.privacy.sealing import Binding, new_nonce, seal
from uvsdk_server.aggregation import SealedDelta

RECIPIENT = X25519PrivateKey.from_private_bytes(bytes(range(32)))
SENDER = Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64)))


@pytest.fixture
def _few_descriptors() -> Iterator[None]:
    """No more open files than there are, and eight."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def write(path: Path, delta: Float32, cut: int = 3) -> Path:
    binding = Binding("clinic", "up", "update", "fedaws", 7, "ab" * 32, "device-1", "key-1", new_nonce())
    slices = [delta[start : start + cut].tobytes() for start in range(0, len(delta), cut)]
    path.write_bytes(seal([b"head", *slices], binding, recipient=RECIPIENT.public_key(), signing_key=SENDER))
    return path


@pytest.mark.usefixtures("_few_descriptors")
def test_a_cohort_larger_than_the_limit_of_open_files(tmp_path: Path) -> None:
    rows = np.arange(40 * 8, dtype=np.float32).reshape(40, 8)
    sources = [SealedDelta(write(tmp_path / str(number), row), RECIPIENT) for number, row in enumerate(rows)]
    mean = weighted_mean(sources, np.full(40, 1 / 32), 8, together=1)  # a power of two, so that no sum is rounded
    np.testing.assert_array_equal(mean, rows.sum(axis=0) / 32)


def test_a_file_is_opened_when_its_first_chunk_is_asked_for(tmp_path: Path) -> None:
    chunks = SealedDelta(tmp_path / "a", RECIPIENT).chunks()
    write(tmp_path / "a", np.ones(8, np.float32))
    assert [len(chunk) for chunk in chunks] == [3, 3, 2]


def test_a_damaged_or_missing_file_is_a_seal_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a", np.ones(8, np.float32))
    data = bytearray(path.read_bytes())
    data[-70] ^= 1  # in the tag of the last chunk
    path.write_bytes(data)
    with pytest.raises(SealError, match="does not open"):
        weighted_mean([SealedDelta(path, RECIPIENT)], np.ones(1), 8, together=1)
    path.unlink()
    with pytest.raises(SealError, match="missing"):
        weighted_mean([SealedDelta(path, RECIPIENT)], np.ones(1), 8, together=1)
