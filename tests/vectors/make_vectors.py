"""Write the committed vectors again: ``python tests/vectors/make_vectors.py``.

A vector pins a format: bytes that an older version wrote must be read by every later one. Sealing and encryption draw
fresh randomness, so running this gives other bytes of the same format; do so only together with a new format, and
keep the old files. The keys below protect nothing and are for vectors alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from uvsdk.privacy.sealing import SUITES, Binding, seal
from uvsdk.scoring import Threshold
from uvsdk.templates.template import Template

FOLDER = Path(__file__).parent
TEMPLATE_KEY = bytes(range(32))
RECIPIENT = X25519PrivateKey.from_private_bytes(bytes(range(32)))
SENDER = Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64)))

# 0.6^2 + 0.8^2 = 1; both numbers are rounded to float32.
EMBEDDING = np.array([0.6, -0.8, 0.0], np.float32)
CHUNKS = (b"head", b"", np.arange(4, dtype="<f4").tobytes())

# Written by the first version, which knew neither conditions nor scales, and by the second, whose thresholds named
# neither their calibration nor who had asked for their rate; today's writes the third format.
FIRST_TEMPLATES = {
    "template_v1.bin": Template(
        EMBEDDING, "ab" * 32, "voice", 5, Threshold(0.5, 0.01, 1000, (0.005, 0.02), model_version="ab" * 32)
    ),
    "template_v1_without_threshold.bin": Template(EMBEDDING, "ab" * 32, "face", 3),
}
SECOND_TEMPLATES = {
    "template_v2.bin": Template(
        EMBEDDING,
        "ab" * 32,
        "voice",
        5,
        Threshold(2.5, 0.01, 1000, (0.005, 0.02), model_version="ab" * 32, scale="llr"),
        {"speech_s": 12.5, "snr_db": 20.0},
    ),
    "template_v2_without_threshold.bin": Template(EMBEDDING, "ab" * 32, "face", 3),
}
TEMPLATES = {
    "template_v3.bin": Template(
        EMBEDDING,
        "ab" * 32,
        "voice",
        5,
        Threshold(
            2.5,
            0.0002,
            40860,
            (8e-5, 0.0004),
            model_version="ab" * 32,
            scale="llr",
            calibration="cd" * 32,
            by_default=True,
        ),
        {"speech_s": 12.5, "snr_db": 20.0},
    ),
    "template_v3_without_threshold.bin": Template(EMBEDDING, "ab" * 32, "face", 3),
}


def binding(suite: str) -> Binding:
    """The binding of the envelope sealed with ``suite``."""
    return Binding("clinic", "up", "update", "fedaws", 7, "ab" * 32, "device-1", "key-1", "01" * 16, suite)


def envelope_name(suite: str) -> str:
    """File of the envelope sealed with ``suite``."""
    return f"envelope_v1_{suite}.bin"


def main() -> None:
    """Write every vector beside this script."""
    for name, template in TEMPLATES.items():
        (FOLDER / name).write_bytes(template.to_bytes(TEMPLATE_KEY))
    for suite in SUITES:
        data = seal(CHUNKS, binding(suite), recipient=RECIPIENT.public_key(), signing_key=SENDER)
        (FOLDER / envelope_name(suite)).write_bytes(data)


if __name__ == "__main__":
    main()
