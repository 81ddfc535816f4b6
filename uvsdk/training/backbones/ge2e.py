"""The GE2E speaker encoder: three LSTM layers over power mel frames, starting from Resemblyzer's weights.

Source: Wan et al., "Generalized End-to-End Loss for Speaker Verification", ICASSP 2018. As Resemblyzer (and unlike
the paper) the projection ends in a ReLU; keeping it in training gives the better federated models here.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor, nn, relu

from uvsdk.errors import WeightsError
from uvsdk.training import weights as catalogue
from uvsdk.training.backbones import Backbone, load_tensors, read_state


class Ge2e(Backbone):
    """float32 (B, frames, 40) power mel -> (B, 256), not negative; 1.42 M parameters."""

    name = "ge2e"
    modality = "voice"
    dimension = 256
    view_shape = (160, 40)
    dynamic_axes = MappingProxyType({1: "frames"})
    preprocessing = MappingProxyType(
        {
            "sample_rate": 16_000,
            "mels": 40,
            "window_s": 0.025,
            "hop_s": 0.010,
            "scale": "power",
            "mean": "none",
            "view_frames": 160,
            # No overlap: 5 s are three windows in place of Resemblyzer's five, and the error rates are no higher.
            "view_hop_frames": 160,
            "minimum_speech_s": 0.5,
            # Of the exported graph; training is in float. See uvsdk.training.graphs.recurrent.
            "recurrent": "int8",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, views: Tensor) -> Tensor:
        """See :class:`Backbone`."""
        _, (hidden, _) = self.lstm(views)
        return relu(self.linear(hidden[-1]))

    def split(self, part: str) -> tuple[nn.Module, nn.Module]:
        """See :class:`Backbone`: the head is the projection with its ReLU, the block begins with the third layer."""
        head = (self.linear, nn.ReLU())
        if part == "head":
            return _LastState(self.lstm), nn.Sequential(*head)
        return _Frames(_layers(self.lstm, 0, 2)), nn.Sequential(_LastState(_layers(self.lstm, 2, 3)), *head)

    @classmethod
    def load(cls, *, weights: Path | None = None, download: bool = False, seed: int = 0) -> Self:
        """Start from the pretrained weights; ``seed`` is not used."""
        path = catalogue.find("ge2e", path=weights, download=download)
        state = read_state(path).get("model_state")
        if not isinstance(state, dict):
            raise WeightsError(f"{path} has no 'model_state'; expected Resemblyzer's pretrained.pt")
        backbone = cls()
        load_tensors(backbone, state, path)
        backbone.sources = (catalogue.CATALOGUE["ge2e"].source if weights is None else f"{path.name}, given by path",)
        return backbone.eval()


class _Frames(nn.Module):
    """The top layer's output at every frame, (B, frames, 256)."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.lstm(rows)[0]
        return out


class _LastState(_Frames):
    """The top layer's state after the last frame, (B, 256)."""

    def forward(self, rows: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(rows)
        last: Tensor = hidden[-1]
        return last


def _layers(lstm: nn.LSTM, first: int, end: int) -> nn.LSTM:
    """Layers ``first`` to ``end`` of ``lstm``, with copies of its weights."""
    inputs = lstm.input_size if first == 0 else lstm.hidden_size
    part = nn.LSTM(inputs, lstm.hidden_size, end - first, batch_first=True)
    with torch.no_grad():
        for name, value in part.named_parameters():
            kind, _, layer = name.rpartition("_l")
            value.copy_(getattr(lstm, f"{kind}_l{first + int(layer)}"))
    return part


BACKBONE = Ge2e
