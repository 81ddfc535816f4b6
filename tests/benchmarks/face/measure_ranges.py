"""How far SFace's activations reach: makes ``uvsdk/data/sface_ranges.npz``, which the integer graph is built from.

The lowest and highest value per channel over the photographs of the last fold of LFW's View 2 that is at hand (those
that no other fold uses), over the ORL portraits, and over their mirror images. No label is looked at. Two numbers per
channel of the network are kept, nothing of a person.

    OMP_NUM_THREADS=1 python tests/benchmarks/face/measure_ranges.py --data FOLDER
"""

from __future__ import annotations

import argparse
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper
from PIL import Image

from uvsdk.arrays import Float32, UInt8
from uvsdk.modality.face import alignment
from uvsdk.system.execution import onnxruntime
from uvsdk.training import graphs, weights
from uvsdk.training.graphs.sface import float_graph
from uvsdk.training.graphs.sface.layers import fold

FOLD = 4
BATCH = 16


def main() -> None:
    """Measure and write the file."""
    here = Path(__file__).resolve()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=here.parents[4] / "shared" / "data")
    parser.add_argument("--output", type=Path, default=here.parents[3] / "uvsdk" / "data" / "sface_ranges.npz")
    arguments = parser.parse_args()
    path = weights.find("sface")
    chips = np.concatenate([lfw(arguments.data / "lfw_folds1-5_aligned112.npz"), orl(arguments.data / "orl_faces.npz")])
    low, high = measure(path, chips)
    np.savez(
        arguments.output,
        low=low,
        high=high,
        weights=hashlib.sha256(path.read_bytes()).hexdigest(),
        source=f"{len(chips)} faces: LFW View 2, only fold {FOLD} (from 0); ORL; and their mirror images",
    )
    print(f"{len(low)} channels over {len(chips)} faces -> {arguments.output}")


def measure(path: Path, chips: UInt8) -> tuple[Float32, Float32]:
    """Lowest and highest value before every PReLU, float32 (channels of all layers,)."""
    model = graphs.parse(float_graph(path), str(path))
    names = [layer.name for layer in fold(model)[0]]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(graphs.serialise(model), options)
    low, high = [np.inf] * len(names), [-np.inf] * len(names)
    for views in _batches(chips):
        for index, values in enumerate(session.run(names, {"views": views})):
            low[index] = np.minimum(low[index], values.min(axis=(0, 2, 3)))
            high[index] = np.maximum(high[index], values.max(axis=(0, 2, 3)))
    return np.concatenate(low), np.concatenate(high)


def lfw(path: Path) -> UInt8:
    """The aligned faces that only the last fold uses, uint8 (n, 112, 112, 3)."""
    with np.load(path) as archive:
        blobs, ends, pairs, folds = (archive[name] for name in ("jpeg", "off", "pairs", "fold"))
    only = np.setdiff1d(pairs[folds == FOLD], pairs[folds != FOLD])
    files = [blobs[ends[index] : ends[index + 1]].tobytes() for index in only]
    return np.stack([np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])


def orl(path: Path) -> UInt8:
    """The ORL portraits, aligned by the landmarks that come with them."""
    with np.load(path) as archive:
        portraits, landmarks = archive["images"], archive["landmarks5"]
    template = alignment.TEMPLATES["arcface"]
    return np.stack(
        [
            alignment.warp(Image.fromarray(portrait).convert("RGB"), template.fit(points, 112), 112)
            for portrait, points in zip(portraits, landmarks, strict=True)
        ]
    )


def _batches(chips: UInt8) -> Iterator[Float32]:
    for start in range(0, len(chips), BATCH):
        views = chips[start : start + BATCH].transpose(0, 3, 1, 2).astype(np.float32)
        yield views
        yield np.ascontiguousarray(views[:, :, :, ::-1])


if __name__ == "__main__":
    main()
