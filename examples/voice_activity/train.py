"""Train the speech detector that voice bundles carry: a small convolutional net taught by Silero VAD.

    python -m examples.voice_activity.train --data FOLDER --output uvsdk/modality/voice/speech.onnx

``FOLDER`` holds ``speech_librispeech/`` with its ``manifest.csv``. See README.md for what it was trained on.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import onnx
import soundfile
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from examples.voice_activity import silero, sounds
from uvsdk.arrays import Float32
from uvsdk.modality.voice import audio, mel
from uvsdk.modality.voice.frames import louder
from uvsdk.training.graphs import serialise

HOP, WINDOW, MELS = 160, 400, 40
WIDTH = 24
DILATIONS = (1, 2, 4, 8)
KERNEL = 5
FLOOR = 1e-6
CLIP_FRAMES = 501  # 5 s
EPOCHS, BATCH, RATE = 30, 16, 3e-3
VARIANTS = 4
SPLIT = "cohort_train-clean-100"


class SpeechNet(nn.Module):
    """float32 (B, T, 40) power mel -> (B, T) logits; each sees 0.3 s to either side."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.full((MELS,), 6.0))
        sizes = (MELS, *(WIDTH,) * len(DILATIONS))
        self.layers = nn.ModuleList(
            nn.Conv1d(before, after, KERNEL, padding=2 * dilation, dilation=dilation)
            for before, after, dilation in zip(sizes[:-1], sizes[1:], DILATIONS, strict=True)
        )
        self.last = nn.Conv1d(WIDTH, 1, 1)

    def forward(self, power: Tensor) -> Tensor:
        """See the class."""
        hidden = ((torch.log(power + FLOOR) + self.shift) * 0.25).transpose(1, 2)
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        logits: Tensor = self.last(hidden)[:, 0]
        return logits


def main() -> None:
    """Train and write the graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("speech.onnx"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(arguments.seed)
    frames, targets = examples(arguments.data / "speech_librispeech", rng)
    net = SpeechNet()
    optimiser = torch.optim.Adam(net.parameters(), RATE)
    steps = -(-len(frames) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=EPOCHS * steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for batch in torch.from_numpy(rng.permutation(len(frames))).split(BATCH):
            loss = nn.functional.binary_cross_entropy_with_logits(net(frames[batch]), targets[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += float(loss.detach()) * len(batch)
        print(f"epoch {epoch + 1:2d} cross-entropy {total / len(frames):.4f}", flush=True)
    arguments.output.write_bytes(graph(net))


def examples(folder: Path, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Power mel (n, 501, 40) and the probability of speech (n, 501)."""
    teacher = silero.session()
    rows: list[tuple[Float32, Float32]] = []
    with (folder / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        chosen = [folder / row["path"] for row in csv.DictReader(lines) if row["split"] == SPLIT]
    for path in chosen:
        pcm, _ = soundfile.read(path, dtype="float32")
        spoken = np.asarray(pcm, np.float32)
        for _ in range(VARIANTS):
            rows.append(speech_example(spoken, teacher, rng))
    for maker in sounds.NOT_SPEECH:
        for _ in range(len(chosen) // 2):
            sound = maker((CLIP_FRAMES - 1) * HOP, rng)
            if rng.random() < 0.3:
                sound = sound + sounds.noise(len(sound), rng) * np.float32(10 ** rng.uniform(-2, 0))
            if rng.random() < 0.3:
                sound = sounds.telephone(sound)
            rows.append((power(levelled(sound, rng)), np.zeros(CLIP_FRAMES, np.float32)))
    return tuple(torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))  # type: ignore[return-value]


def speech_example(pcm: Float32, teacher: object, rng: np.random.Generator) -> tuple[Float32, Float32]:
    """Speech as the teacher hears it clean, heard by the pupil through a room, a line and noise."""
    count = (CLIP_FRAMES - 1) * HOP
    clip = np.zeros(count, np.float32)
    if rng.random() < 0.5:  # short pieces between pauses
        position = int(rng.integers(0, RATE_S))
        while position < count:
            size = min(int(rng.uniform(0.2, 1.5) * RATE_S), count - position, len(pcm))
            start = int(rng.integers(0, len(pcm) - size + 1))
            clip[position : position + size] = pcm[start : start + size]
            position += size + int(rng.uniform(0.1, 1.5) * RATE_S)
    else:
        clip[: min(count, len(pcm))] = pcm[:count]
    clip = louder(clip, audio.level_dbfs(clip))
    target = silero.per_frame(silero.probabilities(clip, teacher), CLIP_FRAMES, HOP)  # type: ignore[arg-type]
    if rng.random() < 0.3:
        clip = sounds.room(clip, rng)
    if rng.random() < 0.5:
        clip = sounds.coloured(clip, rng)
    if rng.random() < 0.7:
        maker = sounds.NOT_SPEECH[int(rng.integers(len(sounds.NOT_SPEECH)))]
        other = sounds.noise if rng.random() < 0.6 else maker
        level = float(np.sqrt(np.mean(clip[clip != 0] ** 2)))
        clip = clip + other(count, rng) * np.float32(level / 0.1 * 10 ** (-rng.uniform(5, 40) / 20))
    if rng.random() < 0.3:
        clip = sounds.telephone(clip)
    return power(levelled(clip, rng)), target


RATE_S = sounds.RATE


def levelled(pcm: Float32, rng: np.random.Generator) -> Float32:
    """At a random level between that of the quietest recording after amplification and a loud one, clipped."""
    gain = 10 ** ((rng.uniform(-32, -12) - audio.level_dbfs(pcm)) / 20)
    return np.clip(pcm * np.float32(gain), -1, 1)


def power(pcm: Float32) -> Float32:
    """Power mel, (501, 40)."""
    return mel.spectrogram(pcm, sample_rate=RATE_S, window=WINDOW, hop=HOP, mels=MELS)


def graph(net: SpeechNet) -> bytes:
    """``power`` float32 (T, 40) -> ``speech`` float32 (T,), probabilities."""
    constants = {"floor": np.float32(FLOOR), "quarter": np.float32(0.25), "shift": _array(net.shift)}
    nodes = [
        helper.make_node("Add", ["power", "floor"], ["lifted"]),
        helper.make_node("Log", ["lifted"], ["log"]),
        helper.make_node("Add", ["log", "shift"], ["shifted"]),
        helper.make_node("Mul", ["shifted", "quarter"], ["scaled"]),
        helper.make_node("Transpose", ["scaled"], ["turned"], perm=[1, 0]),
        helper.make_node("Unsqueeze", ["turned", "first"], ["x0"]),
    ]
    constants["first"] = np.array([0], np.int64)
    for index, dilation in enumerate(DILATIONS):
        layer = net.layers[index]
        constants[f"w{index}"], constants[f"b{index}"] = _array(layer.weight), _array(layer.bias)
        settings = {"kernel_shape": [KERNEL], "pads": [2 * dilation] * 2, "dilations": [dilation]}
        nodes.append(helper.make_node("Conv", [f"x{index}", f"w{index}", f"b{index}"], [f"c{index}"], **settings))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"x{index + 1}"]))
    constants["w"], constants["b"] = _array(net.last.weight), _array(net.last.bias)
    constants["both"] = np.array([0, 1], np.int64)
    nodes += [
        helper.make_node("Conv", [f"x{len(DILATIONS)}", "w", "b"], ["logits"], kernel_shape=[1]),
        helper.make_node("Sigmoid", ["logits"], ["probability"]),
        helper.make_node("Squeeze", ["probability", "both"], ["speech"]),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "speech",
            [helper.make_tensor_value_info("power", TensorProto.FLOAT, ["frames", MELS])],
            [helper.make_tensor_value_info("speech", TensorProto.FLOAT, ["frames"])],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    return serialise(model)


def _array(tensor: Tensor) -> Float32:
    return np.ascontiguousarray(tensor.detach().numpy(), np.float32)


if __name__ == "__main__":
    main()
