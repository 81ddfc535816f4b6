"""What many tests are made of: unit vectors, files of every kind, a clock that stands, a store that opens fast."""

from __future__ import annotations

import argparse
import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import soundfile
from PIL import Image

from uvsdk.arrays import Array, Float32, Float64
from uvsdk.cli import Command
from uvsdk.errors import NoSpeechError
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.wrapping import ScryptCost

if TYPE_CHECKING:
    from starlette.applications import Starlette

CHEAP = ScryptCost(n=1 << 12, r=8, p=1)
"""Milliseconds for a passphrase where a real store takes a second: for passphrases that guard nothing."""


def open_store(folder: str | Path, passphrase: str | None = "p") -> EncryptedStore:
    """The store in ``folder``, made where there is none."""
    return EncryptedStore.open(folder, passphrase=passphrase, cost=CHEAP)


class Clock:
    """Unix time that stands until a test sets ``now_s``."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def unit(rows: Float64) -> Float64:
    """The rows (..., d) scaled to length 1."""
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def plane(*degrees: float) -> Float64:
    """Unit vectors (n, 2) at these angles."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def image_file(picture: Image.Image | Array, kind: str = "PNG", **options: object) -> bytes:
    """The picture, or pixels, as a file of that format."""
    file = io.BytesIO()
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def sound_file(pcm: Array, rate: int, kind: str = "WAV", subtype: str | None = None) -> bytes:
    """The samples (n,) or (n, channels) as a file of that format."""
    file = io.BytesIO()
    soundfile.write(file, pcm, rate, format=kind, subtype=subtype)
    return file.getvalue()


def page(ink: Array) -> bytes:
    """An image file of handwriting as scikit-learn's digits have it: ink 0 to 16, here dark on white paper."""
    return image_file((255 - np.clip(ink, 0, 16) / 16 * 255).astype(np.uint8))


def angle_file(path: Path, degrees: float | str) -> Path:
    """A sample of a modality that :func:`embed_angle` reads: text that is an angle, or "silence"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(degrees))
    return path


def embed_angle(path: Path) -> Float32:
    """The unit vector (2,) at the angle in the file."""
    text = path.read_text()
    if text == "silence":
        raise NoSpeechError("0.0 s of speech, need 1.0 s")
    return plane(float(text))[0].astype(np.float32)


def run_command(command: Command, *words: str) -> int:
    """Run a command of the command line in this process."""
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(words))


@contextlib.contextmanager
def on_loopback(app: Starlette) -> Iterator[str]:
    """Serve the app on a socket of this machine; its address."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        thread.join(0.01)
    try:
        yield "http://{}:{}".format(*server.servers[0].sockets[0].getsockname()[:2])
    finally:
        server.should_exit = True
        thread.join()
