"""How far CAM++'s activations reach: makes ``uvsdk/data/campplus_ranges.npz``, which its integer graph is built from.

The lowest and highest value per channel over speech of which nobody is in the test sets of this folder: letters and
syllables of 20 languages (Debian's ``klettres-data``) and spoken digits (FSDD), several of one speaker joined to
:data:`SECONDS`, as recorded, over a telephone (8 kHz, mu-law), and with noise. No label but the speaker is looked at.
Two numbers per channel of the network are kept, nothing of a person.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.voice.measure_ranges --data FOLDER --letters /usr/share/klettres
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import Tensor, nn

from uvsdk.arrays import Float32
from uvsdk.modality.voice import audio, fbank
from uvsdk.training import backbones
from uvsdk.training.graphs.campplus.integer import digest, measured

HERE = Path(__file__).resolve()
SECONDS = (0.7, 1.5, 3.0, 5.0)
CLIPS = 160
SEED = 0
RATE = 16_000
NOISE_DB = (5.0, 20.0)
# A channel's reach is what this part of the clips stays within: one cough is not to cost all others a bit.
WITHIN = 1.0


def main() -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parents[4] / "shared" / "data")
    parser.add_argument("--letters", type=Path, default=Path("/usr/share/klettres"))
    parser.add_argument("--output", type=Path, default=HERE.parents[3] / "uvsdk" / "data" / "campplus_ranges.npz")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    speech = [*letters(arguments.letters), *digits(arguments.data / "fsdd_8k.npz")]
    backbone = backbones.get("campplus").load()
    low, high = reach(backbone, clips(speech, np.random.default_rng(SEED)))
    frozen = backbones.get("campplus", "head").load()
    state = {name: value.numpy() for name, value in frozen.stem.state_dict().items()}  # type: ignore[union-attr, operator]
    np.savez_compressed(
        arguments.output,
        low=low,
        high=high,
        weights=digest(state),
        source=f"{CLIPS} clips of {len(speech)} speakers or languages: klettres-data, FSDD; telephone and noise",
    )
    print(f"{len(low)} channels -> {arguments.output}, {arguments.output.stat().st_size} bytes")


def reach(backbone: nn.Module, views: Iterator[Float32]) -> tuple[Float32, Float32]:
    """What :data:`WITHIN` of the views stay within, float32 (channels of all :func:`measured` tensors,) twice."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> object:
        def hook(_: nn.Module, __: object, out: Tensor) -> None:
            rows = out.transpose(0, 1).flatten(1)
            found[name] = torch.stack((rows.amin(dim=1), rows.amax(dim=1)))

        return hook

    layers = dict(backbone.named_modules())
    names = list(measured())
    for name in names[1:]:
        layers[name].register_forward_hook(keep(name))  # type: ignore[arg-type]
    ends = []
    with torch.no_grad():
        for view in views:
            found["views"] = torch.tensor([[float(view.min())], [float(view.max())]])
            backbone(torch.from_numpy(view[None]))
            ends.append(torch.cat([found[name] for name in names], dim=1).numpy())
    lows, highs = np.stack(ends, axis=1)
    return (
        np.quantile(lows, 1.0 - WITHIN, axis=0).astype(np.float32),
        np.quantile(highs, WITHIN, axis=0).astype(np.float32),
    )


def clips(speech: list[list[Float32]], rng: np.random.Generator) -> Iterator[Float32]:
    """Log mel energies less their mean, float32 (frames, 80), of every speaker in turn."""
    for index in range(CLIPS):
        speaker, want = speech[index % len(speech)], round(RATE * SECONDS[index % len(SECONDS)])
        joined: Float32 = np.zeros(0, np.float32)
        while len(joined) < want:
            joined = np.append(joined, speaker[int(rng.integers(len(speaker)))])
        pcm = joined[:want]
        kind = index // len(SECONDS) % 3
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
