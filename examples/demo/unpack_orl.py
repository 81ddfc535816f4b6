"""Turn an ``orl_faces.npz`` (faces ``uint8 (N, 112, 92)``, ``subject``) into a folder of PNGs per person.

Usage: python examples/demo/unpack_orl.py orl_faces.npz FOLDER; make demo DATA=FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image


def main(archive: Path, folder: Path) -> None:
    """Write ``folder/sNN/MM.png``."""
    with np.load(archive) as stored:
        data = {name: stored[name] for name in stored.files}
    images = next(array for array in data.values() if array.ndim == 3 and array.dtype == np.uint8)
    counts: dict[int, int] = {}
    for subject, image in zip(data["subject"].tolist(), images, strict=True):
        counts[subject] = counts.get(subject, 0) + 1
        path = folder / f"s{subject:02}" / f"{counts[subject]:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
