"""What makes embeddings of recordings: a bundle of this library, and Resemblyzer in a Python of its own."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from uvsdk import modality
from uvsdk.arrays import Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.bundle.bundle import direction
from uvsdk.bundle.inference import embed
from uvsdk.errors import SampleError
from uvsdk.modality import Capture, Sample
from uvsdk.modality.voice import MODALITY
from uvsdk.modality.voice.quality import REQUIREMENTS

MEASURED = tuple(dict.fromkeys(item.name for item in (*REQUIREMENTS, *MODALITY.conditions)))
OFF = Capture(quality="off")
CENTRED_HEAD = "+centred"
"""How backbones end whose head is an affine map of unit embeddings."""

PEER = "resemblyzer"

_SAME = 0.9999
"""Cosine of an embedding by the cached layers and a head to that by the whole way."""


class Model(Protocol):
    """What makes embeddings of recordings."""

    @property
    def key(self) -> str:
        """Names what :meth:`windows` depends on."""
        ...

    @property
    def megabytes(self) -> float:
        """Of the file that holds it, in millions of bytes."""
        ...

    def windows(self, samples: Sequence[Sample | None]) -> tuple[list[Float32], Float64]:
        """Of every sample the unit rows of its windows, float32 (w, d), w = 0 where it gave nothing; and what was
        measured, float64 (n, k), the columns of :data:`MEASURED`, NaN where nothing was.
        """
        ...

    def rows(self, windows: Float32) -> Float32:
        """Unit rows, float32 (w, d), w > 0, to those that are averaged over the windows of a recording."""
        ...


class Bundled:
    """A bundle. Of one whose head is an affine map of unit embeddings the layers before it are run once for all heads.

    Args:
        path: of a bundle for voices.
    """

    def __init__(self, path: Path) -> None:
        self.bundle = bundle = Bundle.open(path)
        self.megabytes = path.stat().st_size / 1e6
        manifest = bundle.manifest
        self._affine = manifest.backbone.endswith(CENTRED_HEAD) and manifest.train == "head"
        self._start = bundle
        if self._affine:
            # Theta is the matrix and then the shift.
            identity = np.eye(manifest.dimension, dtype=np.float32)
            self._start = bundle.with_theta(
                np.concatenate([identity.ravel(), np.zeros(manifest.dimension, np.float32)])
            )
        self._reader = modality.get("voice")

    @property
    def key(self) -> str:
        """See :class:`Model`."""
        return self._start.version[:12]

    def windows(self, samples: Sequence[Sample | None]) -> tuple[list[Float32], Float64]:
        """See :class:`Model`. The first recording is held against :func:`uvsdk.bundle.inference.embed`."""
        found = [np.zeros((0, self.bundle.manifest.dimension), np.float32)] * len(samples)
        measured = np.full((len(samples), len(MEASURED)), np.nan)
        for place, sample in enumerate(samples):
            if sample is None:
                continue
            try:
                prepared = self._reader.prepare(sample, self.bundle, capture=OFF)
            except SampleError:
                continue
            views = self._reader.views(prepared.features, self.bundle.manifest.preprocessing)
            rows, spans = self._start.embed_with_spans(views)
            if not place:
                same = float(direction(self.rows(rows)) @ embed(sample, self.bundle, capture=OFF).embedding)
                assert same > _SAME, f"the embedding is another than the bundle's own: cosine {same}"
            quality = prepared.quality if prepared.review is None else prepared.review(rows, spans)
            found[place] = rows
            measured[place] = [quality.measured[name] for name in MEASURED]
        return found, measured

    def rows(self, windows: Float32) -> Float32:
        """See :class:`Model`."""
        if not self._affine:
            return windows
        dimension = self.bundle.manifest.dimension
        weight, bias = np.split(self.bundle.theta, [dimension**2])
        found = windows @ weight.reshape(dimension, dimension).T + bias
        return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


class Peer:
    """Resemblyzer, whose own preprocessing finds the speech; it measures no conditions.

    Args:
        python: of an environment that has it.
    """

    key = PEER

    def __init__(self, python: Path) -> None:
        command = [str(python), str(Path(__file__).with_name("peer.py"))]
        where = "import pathlib, resemblyzer; print(pathlib.Path(resemblyzer.__file__).with_name('pretrained.pt'))"
        found = subprocess.run([str(python), "-c", where], capture_output=True, text=True, check=True).stdout
        self.megabytes = Path(found.strip()).stat().st_size / 1e6
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def windows(self, samples: Sequence[Sample | None]) -> tuple[list[Float32], Float64]:
        """See :class:`Model`; samples are pairs of float32 (n,) and 16,000."""
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "recordings.npz", Path(folder) / "embeddings.npz"
            np.savez(source, **{str(place): _pcm(sample) for place, sample in enumerate(samples)})
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(source, target, file=self._process.stdin, flush=True)
            self._process.stdout.readline()
            with np.load(target) as archive:
                rows = archive["embeddings"]
        return [row[None] if np.isfinite(row).all() else row[None][:0] for row in rows], np.full(
            (len(rows), len(MEASURED)), np.nan
        )

    def rows(self, windows: Float32) -> Float32:
        """See :class:`Model`."""
        return windows


def _pcm(sample: Sample | None) -> Float32:
    assert isinstance(sample, tuple)
    return np.asarray(sample[0], np.float32)
