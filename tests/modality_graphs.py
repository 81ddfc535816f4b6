"""A modality of a test, and the auxiliary graphs of one without a whole bundle around them.

What needs weights skips where they cannot be had.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType

import pytest

from uvsdk import modality
from uvsdk.errors import WeightsError
from uvsdk.modality import Modality, Preprocessing, Session
from uvsdk.system.execution import onnxruntime


@dataclass(frozen=True)
class Description:
    preprocessing: Preprocessing


@dataclass(frozen=True)
class ModalityGraphs:
    manifest: Description
    sessions: dict[str, Session] = field(default_factory=dict)

    def session(self, name: str) -> Session:
        return self.sessions[name]


def described(preprocessing: Preprocessing) -> ModalityGraphs:
    """No graphs at all: for samples that are refused before one is needed."""
    return ModalityGraphs(Description(preprocessing))


def loaded(modality: str, preprocessing: Preprocessing) -> ModalityGraphs:
    return ModalityGraphs(Description(preprocessing), _sessions(modality))


def register(name: str, record: Modality, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a folder for it, for the length of a test."""
    package = ModuleType(f"uvsdk.modality.{name}")
    package.MODALITY = record  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    there = tuple(sorted({*modality.names(), name}))
    monkeypatch.setattr(modality, "names", lambda: there)


@lru_cache
def _sessions(modality: str) -> dict[str, Session]:
    graphs = pytest.importorskip("uvsdk.training.graphs", reason="making a bundle's graphs needs the train extra")
    try:
        files, _ = graphs.auxiliary(modality)
    except WeightsError as error:
        pytest.skip(f"the detectors cannot be had: {error}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return {name: onnxruntime.InferenceSession(data, options) for name, data in files.items()}
