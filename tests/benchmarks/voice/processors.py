"""Whether a bundle's integers come out alike on another processor: prints the SHA-256 of what it makes of fixed views.

    python -m tests.benchmarks.voice.processors voice.uvb
    qemu-x86_64-static -cpu max python -m tests.benchmarks.voice.processors voice.uvb

The second is an emulated processor with AVX2 and neither AVX-512 nor VNNI (Debian's ``qemu-user-static`` 7.2).
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle

LENGTHS = (57, 100, 300)
SEED = 0


def main() -> None:
    """Print the digest and what it is of."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    bundle = Bundle.open(parser.parse_args().bundle)
    session, found = bundle.session(), hashlib.sha256()
    for length in LENGTHS:
        found.update(session.run(["frozen"], {"views": _views(length)})[0].tobytes())
    print(f"{found.hexdigest()}  frozen, views of {', '.join(map(str, LENGTHS))} frames, model {bundle.version[:8]}")


def _views(length: int) -> Float32:
    """Rows that change slowly, float32 (1, length, 80), of whole sixteenths, so that they are the same everywhere."""
    rows = np.random.default_rng(SEED).integers(-16, 17, size=(length + 8, 88))
    smooth = np.stack([rows[at : at + length, at : at + 80] for at in range(9)]).sum(axis=0)
    return (smooth[None] / 16).astype(np.float32)


if __name__ == "__main__":
    main()
