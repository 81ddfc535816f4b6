"""The worse pictures of ``examples/reproduce/augmentation``, and that its page says what its rows say."""

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("torch")
pytest.importorskip("torchaudio")
pytest.importorskip("torchvision")

import torch

from examples.reproduce.augmentation import faces, table


def face() -> torch.Tensor:
    """Bars of two colours, the finest a pixel wide."""
    rows = np.zeros((3, 112, 112), np.uint8)
    rows[0, ::2], rows[1, :, ::7] = 200, 120
    return torch.from_numpy(rows)


@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")  # JPEG, from 0.29 on
@pytest.mark.parametrize("condition", faces.PROBES)
def test_a_worse_picture_is_a_picture_of_the_same_size(condition: str) -> None:
    before = face()
    made = faces.PROBES[condition](before.clone(), np.random.default_rng(0))
    assert (made.shape, made.dtype) == (before.shape, torch.uint8)
    assert torch.equal(made, before) == (condition == "clean")
    again = faces.PROBES[condition](before.clone(), np.random.default_rng(0))
    assert torch.equal(made, again)


def test_what_is_far_has_no_detail() -> None:
    before, made = (rows.float() for rows in (face(), faces.PROBES["20 pixels"](face(), np.random.default_rng(0))))
    # Bars of one pixel in a picture of 20 x 20 are all one grey, half of 200.
    assert float(before[0].std()) == pytest.approx(100.0, abs=1.0)
    assert float(made[0].std()) < 10.0
    assert float(made[0].mean()) == pytest.approx(100.0, abs=2.0)


def test_the_page_shows_its_rows() -> None:
    assert "\n".join(table.lines()) in (table.HERE / "README.md").read_text(encoding="utf-8")
