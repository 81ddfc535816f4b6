"""The teacher: Silero VAD 6 (MIT), the variant that takes a whole clip in one call."""

from __future__ import annotations

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.system.execution import onnxruntime
from uvsdk.training import weights

FRAME = 512
_CONTEXT = 64
# A quarter of a second of silence first: it is slow to start, and would miss the first sound of a close cut.
_LEAD_FRAMES = 8


def session() -> onnxruntime.InferenceSession:
    """The graph, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(weights.find("silero-vad", download=True).read_bytes(), options)


def probabilities(pcm: Float32, graph: onnxruntime.InferenceSession) -> Float32:
    """Probability of speech per 512 samples of 16 kHz sound, (ceil(n / 512),)."""
    count = _LEAD_FRAMES + -(-len(pcm) // FRAME)
    padded = np.zeros(_CONTEXT + count * FRAME, np.float32)
    begin = _CONTEXT + _LEAD_FRAMES * FRAME
    padded[begin : begin + len(pcm)] = pcm
    # Each row holds the last 64 samples of the row before, then its own 512.
    rows = np.lib.stride_tricks.sliding_window_view(padded, _CONTEXT + FRAME)[::FRAME]
    state = np.zeros((1, 1, 128), np.float32)
    found = graph.run(["speech_probs"], {"input": np.ascontiguousarray(rows), "h": state, "c": state})[0]
    return np.asarray(found, np.float32).reshape(-1)[_LEAD_FRAMES:]


def per_frame(probability: Float32, count: int, hop: int) -> Float32:
    """The same at the centres of ``count`` mel frames, ``hop`` samples apart."""
    centres = np.arange(len(probability)) * FRAME + FRAME // 2
    return np.interp(np.arange(count) * hop, centres, probability).astype(np.float32)
