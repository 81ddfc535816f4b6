"""Resemblyzer's own way from a file to an embedding, asked by ``run.py`` line by line.

It runs in an environment that has Resemblyzer with its dependencies. Each line of standard input is a file; each line
of standard output is JSON: seconds of processor time per stage, the process's peak memory, and the embedding.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import warnings
from pathlib import Path


def main() -> None:
    """Answer until standard input ends."""
    warnings.filterwarnings("ignore")
    import librosa
    import torch
    from resemblyzer import VoiceEncoder, audio, preprocess_wav

    torch.set_num_threads(1)
    encoder = VoiceEncoder("cpu", verbose=False)
    for line in sys.stdin:
        path = line.strip()
        times = [time.process_time()]
        wav = preprocess_wav(path)
        times.append(time.process_time())
        embedding = encoder.embed_utterance(wav)
        times.append(time.process_time())
        # The whole path is timed as its users call it; its stages are timed again, apart.
        loaded, _ = librosa.load(path, sr=None)
        times.append(time.process_time())
        audio.trim_long_silences(loaded)
        times.append(time.process_time())
        audio.wav_to_mel_spectrogram(wav)
        times.append(time.process_time())
        spent = [after - before for before, after in itertools.pairwise(times)]
        found = {
            "total": spent[0] + spent[1],
            "decode": spent[2],
            "detect": spent[3],
            "features": spent[4],
            "model": spent[1] - spent[4],
            "peak_mb": peak_mb(),
        }
        print(json.dumps({"seconds": found, "embedding": embedding.tolist()}), flush=True)


def peak_mb() -> float:
    """Megabytes that this process has had at most; getrusage would count those of the one that started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6


if __name__ == "__main__":
    main()
