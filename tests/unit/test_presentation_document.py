"""``docs/presentation.md``: its code runs, its detector is one, and it names every detector there is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from uvsdk import presentation
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.face.detector import Detection
from uvsdk.scoring import Presentation

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "presentation.md").read_text(encoding="utf-8")


def scopes() -> list[dict[str, object]]:
    found = []
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        scope: dict[str, object] = {}
        exec(compile(block, "presentation.md", "exec"), scope)
        found.append(scope)
    return found


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run = scopes()
    assert len(run) == 5
    printed = capsys.readouterr().out
    assert "say: " in printed
    assert "screen Rate(events=" in printed
    detector = next(scope["DarkBorder"] for scope in run if "DarkBorder" in scope)
    assert isinstance(detector, type)
    framed = np.full((50, 50, 3), 128, np.uint8)
    chip = framed.copy()
    face = Detection(np.array([10, 10, 20, 20], np.float32), np.zeros((5, 2), np.float32), 0.9)
    answers: list[Presentation] = []
    for edge in (128, 0):
        framed[[0, -1]] = framed[:, [0, -1]] = edge
        sample = CapturedFace(Image.fromarray(framed), face, chip)
        presentation.check((detector(),), "face")
        answers += presentation.examine((detector(),), sample, embedding=np.ones(1, np.float32))[0]
    assert [answer.bona_fide for answer in answers] == [True, False]


def test_every_detector_is_named() -> None:
    for name in presentation.__all__:
        if hasattr(getattr(presentation, name), "assess") and name != "PresentationAttackDetector":
            assert f"`{name}`" in TEXT, name
