"""A modality and a model so small that every score in the tests can be worked out by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.builders import open_store
from tests.modality_graphs import register
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.manifest import Manifest
from uvsdk.errors import NoInkError, UndecodableSampleError
from uvsdk.modality import Capture, Modality, Prepared, Sample
from uvsdk.modality.voice import SNR_DB, SPEECH_S
from uvsdk.scoring import Calibration, Quality
from uvsdk_device.keystore import EncryptedStore

DIMENSION = 3
MakeBundle = Callable[..., Bundle]
"""What the fixture ``identity_bundle`` gives."""

IMPOSTORS = np.linspace(-0.5, 0.5, 1000, dtype=np.float32)
"""Scores to calibrate it with."""


@dataclass(frozen=True)
class CapturedNumbers:
    """What presentation attack detectors look at: the numbers themselves."""

    numbers: Float32
    modality: str = "numbers"


class Numbers:
    """Samples are three numbers as text, ``b"1 0 0"``, and the features are those numbers."""

    def __init__(self) -> None:
        self.prepared = 0

    def record(self) -> Modality:
        def prepare(sample: Sample, bundle: object, *, capture: Capture | None = None) -> Prepared:
            return self.prepare(sample, bundle, capture=capture)  # looked up anew, so that a test may exchange it

        conditions = (SPEECH_S, SNR_DB)
        return Modality(prepare=prepare, views=self.views, crop=self.crop, conditions=conditions)

    def prepare(self, sample: Sample, bundle: object, *, capture: Capture | None = None) -> Prepared:
        self.prepared += 1
        if sample == b"":
            raise NoInkError("the page is empty; write something")
        try:
            assert isinstance(sample, bytes)
            features = np.array([float(word) for word in sample.split()], np.float32)
        except (AssertionError, ValueError) as error:
            raise UndecodableSampleError("not three numbers") from error
        timings_s = {"decode": 0.0, "detect": 0.0, "features": 0.0}
        quality = Quality({"length": float(np.linalg.norm(features))})
        return Prepared(features, quality, timings_s, CapturedNumbers(features))

    def views(self, features: Array, preprocessing: Mapping[str, object]) -> Float32:
        return np.asarray(features, np.float32)[None]

    def crop(self, features: Array, preprocessing: Mapping[str, object], rng: np.random.Generator) -> Float32:
        return np.asarray(features, np.float32)


@functools.cache
def _identity_graph() -> bytes:
    shape: list[str | int | None] = ["batch", DIMENSION]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["views"], ["z"])],
        "identity",
        [helper.make_tensor_value_info("views", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Numbers:
    """The modality, registered for the length of a test."""
    reader = Numbers()
    register("numbers", reader.record(), monkeypatch)
    return reader


@pytest.fixture
def identity_bundle(numbers: Numbers) -> MakeBundle:
    """Makes a bundle whose embedding is the normalised sample; ``impostors`` calibrates it, ``name`` varies it."""

    def make(impostors: Float32 | None = None, *, name: str = "identity") -> Bundle:
        manifest = Manifest("numbers", name, DIMENSION, {}, (), ())
        bundle = Bundle(manifest, np.empty(0, np.float32), {"embedding": _identity_graph()})
        if impostors is None:
            return bundle
        return bundle.with_calibration(
            Calibration.from_scores(impostors, model_version=bundle.version, source="made by hand")
        )

    return make


@pytest.fixture
def store(tmp_path: Path) -> EncryptedStore:
    return open_store(tmp_path / "store")
