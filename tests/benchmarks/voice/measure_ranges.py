"""How CAM++'s activations lie: makes ``uvsdk/data/campplus_ranges.npz``, which its integer graph is built from.

The lowest, highest and mean value per channel over speech of which nobody is in the test sets of this folder: letters
and syllables of 20 languages (Debian's ``klettres-data``) and spoken digits (FSDD), several of one speaker joined to
:data:`SECONDS`, as recorded, over a telephone (8 kHz, mu-law), and with noise; then how far the graph's own statistics
lie above the float network's on them. No label but the speaker is looked at. Numbers per channel of the network are
kept, nothing of a person.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.voice.measure_ranges --data FOLDER --letters /usr/share/klettres

How much of what was measured gets codes is chosen by ``choose_reach.py`` beside this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import Tensor, nn

from uvsdk.arrays import Float32
from uvsdk.bundle.frozen import OUTPUT
from uvsdk.modality.voice import audio, fbank
from uvsdk.system.execution import onnxruntime
from uvsdk.training import backbones
from uvsdk.training.backbones import Partial
from uvsdk.training.graphs.campplus import below, graph_in_8_bits
from uvsdk.training.graphs.campplus.ranges import Ranges, digest, heard, measured, ranges_of

HERE = Path(__file__).resolve()
SECONDS = (0.7, 1.0, 1.5, 3.0)
CLIPS = 480
SEED = 0
RATE = 16_000
NOISE_DB = (5.0, 20.0)


def main() -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parents[4] / "shared" / "data")
    parser.add_argument("--letters", type=Path, default=Path("/usr/share/klettres"))
    parser.add_argument("--output", type=Path, default=HERE.parents[3] / "uvsdk" / "data" / "campplus_ranges.npz")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    speech = [*letters(arguments.letters), *digits(arguments.data / "fsdd_8k.npz")]
    views = list(clips(speech, np.random.default_rng(SEED), CLIPS))
    measures = measure(backbones.get("campplus").load(), views)
    frozen = backbones.get("campplus", "head").load()
    assert isinstance(frozen, Partial)
    source = f"{CLIPS} clips of {len(speech)} speakers or languages: klettres-data, FSDD; telephone and noise"
    ranges = measures.ranges(weights=digest(below(frozen)[0]), source=source)
    left = (statistics(frozen, ranges, views) - exact(frozen, views)).mean(axis=0)
    np.savez_compressed(
        arguments.output,
        low=measures.low,
        high=measures.high,
        mean=measures.mean.astype(np.float16),
        left=left,
        weights=ranges.weights,
        source=source,
    )
    print(f"{len(measures.low)} channels -> {arguments.output}, {arguments.output.stat().st_size} bytes")


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """Of activations over views: ``low`` and ``high`` of :func:`measured` tensors, ``mean`` of what is :func:`heard`.

    Each is float32 (channels of all of them,).
    """

    low: Float32
    high: Float32
    mean: Float32

    def ranges(self, *, weights: str = "", source: str = "", left: Float32 | None = None) -> Ranges:
        """With what gets codes of them."""
        found = (np.asarray(part, np.float64) for part in (self.low, self.high, self.mean.astype(np.float16)))
        return ranges_of(*found, None if left is None else left.astype(np.float64), weights=weights, source=source)


def measure(backbone: nn.Module, views: Sequence[Float32]) -> Measures:
    """What all float32 (frames, 80) views of a whole CAM++ stay within, and the means over their frames."""
    reach: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: object, out: Tensor) -> None:
            rows = out.transpose(0, 1).flatten(1)
            reach[name] = torch.stack((rows.amin(dim=1), rows.amax(dim=1)))

        return hook

    def enters(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor]) -> None:
            sums[name] = inputs[0].transpose(0, 1).flatten(1).double().mean(dim=1)

        return hook

    layers = dict(backbone.named_modules())
    names = list(measured())
    hooks = [layers[name].register_forward_hook(keep(name)) for name in names[1:]]
    hooks += [layers[name].register_forward_pre_hook(enters(name)) for name in heard()]
    ends, means, frames = [], [], [len(view) for view in views]
    with torch.no_grad():
        for view in views:
            reach["views"] = torch.tensor([[float(view.min())], [float(view.max())]])
            backbone(torch.from_numpy(view[None]))
            ends.append(torch.cat([reach[name] for name in names], dim=1).numpy())
            means.append(torch.cat([sums[name] for name in heard()]).numpy())
    for hook in hooks:
        hook.remove()
    lows, highs = np.stack(ends, axis=1)
    mean = np.average(np.stack(means), axis=0, weights=frames)
    return Measures(lows.min(axis=0), highs.max(axis=0), mean.astype(np.float32))


def statistics(frozen: Partial, ranges: Ranges, views: Sequence[Float32]) -> Float32:
    """What the head is laid over as the integer graph makes it, float32 (n, 1024)."""
    model = graph_in_8_bits(frozen, ranges).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    return np.concatenate([session.run([OUTPUT], {"views": view[None]})[0] for view in views])


def exact(frozen: Partial, views: Sequence[Float32]) -> Float32:
    """The same as the float network makes it."""
    with torch.no_grad():
        return np.concatenate([frozen.stem(torch.from_numpy(view[None])).numpy() for view in views])


def clips(
    speech: list[list[Float32]], rng: np.random.Generator, count: int, *, seconds: Sequence[float] = SECONDS
) -> Iterator[Float32]:
    """Log mel energies less their mean, float32 (frames, 80), of every speaker in turn."""
    for index in range(count):
        speaker, want = speech[index % len(speech)], round(RATE * seconds[index % len(seconds)])
        joined: Float32 = np.zeros(0, np.float32)
        while len(joined) < want:
            joined = np.append(joined, speaker[int(rng.integers(len(speaker)))])
        pcm = joined[:want]
        kind = index // len(seconds) % 3
        if kind == 1:
            pcm = audio.resample(telephone(audio.resample(pcm, RATE, RATE // 2)), RATE // 2, RATE)
        elif kind == 2:
            level = float(np.sqrt(np.mean(np.square(pcm)))) * 10 ** (-rng.uniform(*NOISE_DB) / 20)
            pcm = (pcm + rng.normal(0.0, level, len(pcm))).astype(np.float32)
        rows = fbank.fbank(pcm, sample_rate=RATE, window=400, hop=160, mels=80)
        yield rows - rows.mean(axis=0)


def telephone(pcm: Float32) -> Float32:
    """G.711 mu-law: 8 bits of the logarithm of the level, of sound whose peak is at half scale."""
    scaled = 0.5 * pcm / max(float(np.abs(pcm).max()), 1e-6)
    companded = np.sign(scaled) * np.log1p(255 * np.abs(scaled)) / np.log1p(255)
    codes = np.round(127.5 * (companded + 1)) / 127.5 - 1
    return np.asarray(np.sign(codes) * np.expm1(np.abs(codes) * np.log1p(255)) / 255, np.float32)


def letters(root: Path) -> list[list[Float32]]:
    """The recordings of each language, which one person spoke."""
    folders = sorted(folder for folder in root.iterdir() if any(folder.glob("*/*.ogg")))
    return [
        [_voiced(*soundfile.read(file, dtype="float32")) for file in sorted(folder.glob("*/*.ogg"))]
        for folder in folders
    ]


def digits(path: Path) -> list[list[Float32]]:
    """The digits of each speaker."""
    with np.load(path) as archive:
        pcm, ends, speakers = (archive[name] for name in ("pcm", "off", "speaker"))
    cut = [pcm[ends[at] : ends[at + 1]].astype(np.float32) / 32768 for at in range(len(speakers))]
    return [
        [audio.resample(cut[at], RATE // 2, RATE) for at in np.flatnonzero(speakers == speaker)]
        for speaker in np.unique(speakers)
    ]


def _voiced(pcm: Float32, rate: int) -> Float32:
    """One channel at :data:`RATE`, without the silence around it."""
    sound = audio.resample(np.asarray(pcm if pcm.ndim == 1 else pcm.mean(axis=1), np.float32), rate, RATE)
    loud = np.flatnonzero(np.abs(sound) > 0.02 * np.abs(sound).max())
    return sound[loud[0] : loud[-1] + 1] if len(loud) else sound


if __name__ == "__main__":
    main()
