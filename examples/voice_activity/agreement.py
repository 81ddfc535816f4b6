"""How the speech detector agrees with its teacher, and what each takes for speech that is none.

python -m examples.voice_activity.agreement --data FOLDER --letters /usr/share/klettres
"""

from __future__ import annotations

import argparse
import csv
import importlib.resources
from collections import defaultdict
from pathlib import Path

import numpy as np
import soundfile

from examples.voice_activity import silero, sounds
from uvsdk.arrays import Bool, Float32
from uvsdk.modality.voice import audio, mel, vad
from uvsdk.modality.voice.frames import louder
from uvsdk.system.execution import onnxruntime

# Silero's own thresholds for short utterances; the pupil's are the defaults of ``vad.detect``.
TEACHER_START, TEACHER_STOP = 0.3, 0.15
CLIPS, CLIP_S = 40, 3
SEED = 123


class Both:
    """The two detectors side by side."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        graph = (importlib.resources.files("uvsdk.modality.voice") / "speech.onnx").read_bytes()
        self.pupil = onnxruntime.InferenceSession(graph, options)
        self.teacher = silero.session()

    def voiced(self, pcm: Float32) -> tuple[Bool, Bool]:
        """What pupil and teacher take for speech, per 10 ms."""
        pcm = louder(pcm, audio.level_dbfs(pcm))
        power = mel.spectrogram(pcm, sample_rate=vad.SAMPLE_RATE, window=vad.WINDOW, hop=vad.FRAME, mels=vad.MELS)
        heard = silero.per_frame(silero.probabilities(pcm, self.teacher), len(power), vad.FRAME)
        return vad.detect(power, self.pupil).voiced, vad.hysteresis(heard, TEACHER_START, TEACHER_STOP)


def main() -> None:
    """Print the tables of README.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--letters", type=Path, help="the folder of klettres-data")
    arguments = parser.parse_args()
    both = Both()
    counts: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    folder = arguments.data / "speech_librispeech"
    with (folder / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            ours, theirs = both.voiced(_read(folder / row["path"]))
            counts[row["split"]].append((int((ours == theirs).sum()), int(ours.sum()), int(theirs.sum()), len(ours)))
    for split, found in counts.items():
        same, ours_s, theirs_s, frames = np.sum(found, axis=0)
        print(f"{split}: same {same / frames:.2%}, speech {ours_s / frames:.2%}, Silero {theirs_s / frames:.2%}")
    rng = np.random.default_rng(SEED)
    for maker in sounds.NOT_SPEECH:
        taken = np.zeros(2, int)
        for _ in range(CLIPS):
            loud = maker(CLIP_S * sounds.RATE, rng) * np.float32(10 ** rng.uniform(-1, 0.3))
            taken += [found.sum() >= 50 for found in both.voiced(np.clip(loud, -1, 1))]
        print(
            f"{maker.__name__}: of {CLIPS} clips 0.5 s or more are speech to us in {taken[0]}, to Silero in {taken[1]}"
        )
    if arguments.letters:
        files = sorted(arguments.letters.glob("*/alpha/*.ogg")) + sorted(arguments.letters.glob("*/syllab/*.ogg"))
        heard = [[found.sum() >= 30 for found in both.voiced(_read(file))] for file in files[::3]]
        print(f"{len(heard)} letters and syllables: 0.3 s or more of speech in {np.mean(heard, axis=0)}")


def _read(path: Path) -> Float32:
    pcm, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return audio.resample(np.asarray(pcm.mean(axis=1), np.float32), rate, vad.SAMPLE_RATE)


if __name__ == "__main__":
    main()
