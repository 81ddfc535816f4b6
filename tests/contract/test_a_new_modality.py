"""A modality that nobody here knows, added as a folder and a file with its backbone, does all that the others do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import uvsdk
from uvsdk import modality
from uvsdk.bundle import Bundle
from uvsdk.cli import main
from uvsdk.errors import BundleError, LowQualityError
from uvsdk.training import backbones

ROOT = Path(__file__).resolve().parents[2]
RATE = 50

MODALITY = '''
    """Gait: a text file of accelerations (x, y, z a line, 50 a second) to the magnitude of the acceleration."""

    from dataclasses import dataclass
    from time import perf_counter

    import numpy as np

    from uvsdk.arrays import Float32
    from uvsdk.errors import UndecodableSampleError
    from uvsdk.modality.contract import Graph, Modality, Prepared, number, run
    from uvsdk.modality.sample import Capture, read_bytes
    from uvsdk.scoring import Requirement, assess
    from uvsdk.scoring.conditions import Condition

    RATE, WINDOW = 50, 128
    LONG_ENOUGH = Requirement("walk_s", "walk", "s", (4.0, np.inf), (6.0, np.inf), "walk on for a while")


    @dataclass(frozen=True, slots=True, eq=False)
    class CapturedGait:
        rows: Float32
        modality: str = "gait"


    def prepare(sample, bundle, *, capture=Capture()):
        started = perf_counter()
        try:
            lines = read_bytes(sample, capture.limits).decode().splitlines()
            rows = np.array([[float(value) for value in line.split(",")] for line in lines], np.float32)
        except ValueError as error:
            raise UndecodableSampleError(f"not a file of accelerations: {error}") from error
        decoded = perf_counter()
        size = run(bundle.session("size"), ["y"], {"x": rows})[0][:, 0]
        measured = {"walk_s": len(rows) / RATE, "shake": float(size.std())}
        quality = assess(measured, [LONG_ENOUGH], policy=capture.quality)
        timings_s = {"decode": decoded - started, "detect": 0.0, "features": perf_counter() - decoded}
        return Prepared(size - size.mean(), quality, timings_s, CapturedGait(rows))


    def views(features, preprocessing):
        starts = range(0, len(features) - WINDOW + 1, WINDOW // 2)
        return np.stack([_spectrum(features[start : start + WINDOW], preprocessing) for start in starts])


    def crop(features, preprocessing, rng):
        start = int(rng.integers(0, len(features) - WINDOW + 1))
        return _spectrum(features[start : start + WINDOW], preprocessing)


    def worsen(captured, measured, rng, others):
        rows = captured.rows[: 4 * RATE]
        if len(rows) == len(captured.rows):
            return {}
        return {"4 s": "\\n".join(",".join(str(value) for value in row) for row in rows.tolist()).encode()}


    def _spectrum(window, preprocessing):
        bands = int(number(preprocessing, "bands", default=24))
        power = np.abs(np.fft.rfft(window * np.hanning(WINDOW)))[1 : 1 + bands]
        level = np.log(power + 0.3)
        return np.asarray(level - level.mean(), np.float32)


    MODALITY = Modality(
        prepare=prepare,
        views=views,
        crop=crop,
        graphs={"size": Graph("size.onnx", "made by hand for a test")},
        highest=4.0,
        conditions=(Condition("walk_s", logarithmic=True, complete=40.0),),
        reported={"walk_s": "Seconds of walking"},
        worsen=worsen,
        directions=2,
        advice="walk on another ground",
    )
'''

BACKBONE = '''
    """A linear map of a spectrum, trained from nothing."""

    from types import MappingProxyType

    from torch import nn

    from uvsdk.training.backbones import Backbone


    class GaitLinear(Backbone):
        """float32 (B, 24) -> (B, 16)."""

        name = "gait-linear"
        modality = "gait"
        dimension = 16
        view_shape = (24,)
        preprocessing = MappingProxyType({"bands": 24})

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(24, self.dimension)

        def forward(self, views):
            return self.linear(views)

        @classmethod
        def load(cls, *, weights=None, download=False, seed=0):
            return cls.random(seed)


    BACKBONE = GaitLinear
'''


def size_of_rows() -> bytes:
    """x float32 (n, 3) -> y (n, 1), the length of each row."""
    graph = helper.make_graph(
        [helper.make_node("ReduceL2", ["x"], ["y"], axes=[1])],
        "size",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def walk(person: int, number: int, seconds: float = 8.0) -> bytes:
    """Steps at a pace, and with overtones, of the person's own."""
    own, rng = np.random.default_rng(person), np.random.default_rng([person, number])
    pace, overtones = own.uniform(0.8, 3.0), own.uniform(0.0, 1.0, 5)
    time = np.arange(round(seconds * RATE)) / RATE
    turns = 2 * np.pi * (pace * rng.normal(1, 0.01) * time + rng.uniform())
    up = sum(part * np.sin((index + 1) * turns) for index, part in enumerate(overtones))
    rows = np.stack([np.zeros_like(time), np.zeros_like(time), 9.8 + up], axis=1) + rng.normal(0, 0.05, (len(time), 3))
    return "\n".join(",".join(f"{value:.4f}" for value in row) for row in rows).encode()


@pytest.fixture
def gait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the folder and the backbone lie for the length of a test."""
    before = set(sys.modules)
    for packages, files in (
        (modality, {"gait/__init__.py": MODALITY, "gait/size.onnx": size_of_rows()}),
        (backbones, {"gait_linear.py": BACKBONE}),
    ):
        root = tmp_path / packages.__name__
        for name, body in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(body if isinstance(body, bytes) else dedent(body).lstrip().encode())
        monkeypatch.setattr(packages, "__path__", [*packages.__path__, str(root)])
    importlib.invalidate_caches()
    yield tmp_path
    backbones.get.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith(("uvsdk.modality.gait", "uvsdk.training.backbones.gait")):
            del sys.modules[name]


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Sixteen people with five walks each."""
    root = tmp_path / "people"
    for person in range(16):
        (root / f"p{person:02}").mkdir(parents=True)
        for number in range(5):
            (root / f"p{person:02}" / f"{number}.csv").write_bytes(walk(person, number, 5 + number + person / 8))
    return root


def tree() -> dict[Path, bytes]:
    folders = (ROOT / "uvsdk", ROOT / "server", ROOT / "device")
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*.py")}


def run(*words: str | Path) -> None:
    assert main([str(word) for word in words]) == 0


def check(bundle: Bundle) -> None:
    """The person who enrolled is accepted, another is not, and nobody where the walk is too short."""
    mine = [walk(100, number) for number in range(3)]
    enrolment = uvsdk.enroll("ana", mine, model=bundle, store=uvsdk.MemoryStore(), fmr=0.1)
    template = enrolment.template
    assert dict(template.conditions) == {"walk_s": 24.0}
    assert "16.0 s more walk (24.0 of 40 s)" in enrolment.completeness.missing
    decisions = [uvsdk.verify(walk(who, 9), template, model=bundle) for who in (100, 101)]
    assert [decision.accepted for decision in decisions] == [True, False]
    assert all(decision.llr is not None for decision in decisions)
    with pytest.raises(LowQualityError, match="walk on for a while"):
        uvsdk.verify(walk(100, 9, seconds=3.0), template, model=bundle)


def test_it_enrols_verifies_trains_exports_and_calibrates_with_no_other_edit(gait: Path, people: Path) -> None:
    before = tree()
    assert "gait" in modality.names()
    model, out = gait / "model.uvb", gait / "out"
    run("export", "gait-linear", "-o", model)
    run("calibrate", model, people, "-o", gait / "calibrated.uvb")
    first = Bundle.open(gait / "calibrated.uvb")
    assert (first.manifest.modality, set(first.graphs)) == ("gait", {"embedding", "size"})
    assert "made by hand for a test" in first.manifest.sources
    assert first.calibration is not None
    assert first.calibration.ratio is not None
    assert first.calibration.ratio.surroundings.names == ("walk_s",)
    check(first)
    run("simulate", "--algorithm", "fedaws", "--data", people, "--backbone", model, "--rounds", "2", "--output", out)
    run("calibrate", out / "model.uvb", people, "-o", gait / "trained.uvb")
    trained = Bundle.open(gait / "trained.uvb")
    assert trained.version != first.version
    assert not np.array_equal(trained.theta, first.theta)
    check(trained)
    run("evaluate", gait / "trained.uvb", people, "--bootstrap", "20", "--output", gait / "report")
    page = (gait / "report" / "report.html").read_text()
    assert "gait bundle gait-linear" in page
    assert "Seconds of walking" in page
    assert tree() == before


def test_it_is_gone_with_its_folder(gait: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("export", "gait-linear", "-o", gait / "model.uvb")
    monkeypatch.setattr(modality, "__path__", modality.__path__[:-1])
    assert "gait" not in modality.names()
    with pytest.raises(BundleError, match="no modality 'gait'; there are face, handwriting, voice"):
        Bundle.open(gait / "model.uvb")
