"""Resemblyzer as its users call it, on whole lists of recordings, in a Python that has it.

Each line of standard input names a NumPy archive with float32 recordings at 16 kHz (``0``, ``1``, ...) and one to
write: ``embeddings``, float32 (n, 256), NaN where nothing was left of a recording. A line of standard output says that
it is there. Its ``embed_utterance``, but for the windows of many recordings that share a batch, which takes a third of
the time and changes rounding alone.
"""

from __future__ import annotations

import sys
import warnings

_RATE = 16_000
_BATCH = 64


def main() -> None:
    """Answer until standard input ends."""
    warnings.filterwarnings("ignore")
    import numpy as np
    import torch
    from resemblyzer import VoiceEncoder, audio, preprocess_wav

    torch.set_num_threads(1)
    encoder = VoiceEncoder("cpu", verbose=False)
    for line in sys.stdin:
        source, target = line.split()
        with np.load(source) as archive:
            recordings = [archive[str(place)] for place in range(len(archive.files))]
        windows, counts = [], []
        for pcm in recordings:
            speech = preprocess_wav(pcm, source_sr=_RATE)
            counts.append(0)
            if len(speech) and np.isfinite(speech).all():
                parts, slices = encoder.compute_partial_slices(len(speech), rate=1.3, min_coverage=0.75)
                mels = audio.wav_to_mel_spectrogram(np.pad(speech, (0, max(parts[-1].stop - len(speech), 0))))
                windows += [mels[each] for each in slices]
                counts[-1] = len(slices)
        with torch.no_grad():
            starts = range(0, len(windows), _BATCH)
            made = [encoder(torch.from_numpy(np.stack(windows[start : start + _BATCH]))) for start in starts]
        rows = torch.cat(made).numpy()
        means = [part.mean(axis=0) for part in np.split(rows, np.cumsum(counts)[:-1])]
        np.savez(target, embeddings=np.stack([mean / np.linalg.norm(mean) for mean in means]).astype(np.float32))
        print(target, flush=True)


if __name__ == "__main__":
    main()
