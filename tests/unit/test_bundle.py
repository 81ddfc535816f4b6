"""The bundle format: what goes in comes out, and whatever is cut, altered or foreign is a BundleError."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle, shipped
from uvsdk.bundle.manifest import Manifest, Parameter
from uvsdk.errors import BundleError, ModelMismatchError, UnknownNameError
from uvsdk.scoring import Calibration

# The format does not look inside graphs until one is used, so small stand-ins do.
MANIFEST = Manifest(
    "voice", "toy", 2, {"size": 8, "scale": "log", "gain": 0.5, "flip": False}, (Parameter("w", (2, 3)),), ("us",)
)
THETA = np.arange(6, dtype=np.float32)
GRAPHS = {"embedding": b"graph of the embedding", "vad": b"graph of the detector"}


def toy(*, calibrated: bool = True) -> Bundle:
    bundle = Bundle(MANIFEST, THETA, GRAPHS)
    if not calibrated:
        return bundle
    scores = np.array([-0.5, 0.0, 0.25], np.float32)
    return bundle.with_calibration(Calibration(scores, bundle.version, "three made-up trials"))


def rewritten(data: bytes, change: dict[str, bytes | None], *, compression: int = zipfile.ZIP_STORED) -> bytes:
    """The archive with members replaced, added, or left out where ``None``, and otherwise written as ours are."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members: dict[str, bytes | None] = {name: archive.read(name) for name in archive.namelist()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, body in (members | change).items():
            if body is not None:
                archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), body, compression)
    return file.getvalue()


def described(data: bytes, **fields: object) -> bytes:
    """The archive with fields of its manifest replaced."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        record = json.loads(archive.read("manifest.json"))
    text = json.dumps(record | fields, indent=1, sort_keys=True, ensure_ascii=False)
    return rewritten(data, {"manifest.json": text.encode()})


def test_round_trip() -> None:
    bundle = toy()
    again = Bundle.from_bytes(bundle.to_bytes())
    assert again.manifest == MANIFEST
    assert again.theta.tolist() == THETA.tolist()
    assert dict(again.graphs) == GRAPHS
    assert again.version == bundle.version
    assert again.calibration is not None
    assert again.calibration.impostor.tolist() == [-0.5, 0.0, 0.25]
    assert again.calibration.source == "three made-up trials"
    assert again.to_bytes() == bundle.to_bytes()


def test_theta_is_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        toy().theta[0] = 1.0


def test_version_depends_on_what_decides_an_embedding_and_on_nothing_else() -> None:
    bundle = toy(calibrated=False)
    assert toy().version == bundle.version
    words = replace(MANIFEST, sources=("other words",))
    assert Bundle(words, THETA, GRAPHS).version == bundle.version
    settings_changed = replace(MANIFEST, preprocessing={"size": 9})
    versions = {
        bundle.version,
        bundle.with_theta(THETA + 1).version,
        Bundle(settings_changed, THETA, GRAPHS).version,
        Bundle(MANIFEST, THETA, GRAPHS | {"vad": b"another"}).version,
        Bundle(MANIFEST, THETA, {"embedding": GRAPHS["embedding"]}).version,
    }
    assert len(versions) == 5


def test_with_theta_shares_graphs_and_drops_the_calibration() -> None:
    bundle = toy()
    other = bundle.with_theta(THETA * 2)
    assert other.graphs["embedding"] is bundle.graphs["embedding"]
    assert other.calibration is None
    assert other.with_theta(THETA).version == bundle.version


def test_calibration_of_another_model_is_refused() -> None:
    with pytest.raises(ModelMismatchError):
        toy().with_theta(THETA * 2).with_calibration(toy().calibration)


@pytest.mark.parametrize(
    "theta",
    [
        np.zeros(5, np.float32),
        np.zeros((2, 3), np.float32),
        np.zeros(6),
        np.array([0, 0, 0, 0, 0, np.nan], np.float32),
        np.array([0, 0, 0, 0, 0, np.inf], np.float32),
    ],
    ids=["count", "shape", "float64", "nan", "inf"],
)
def test_theta_must_fit(theta: Float32) -> None:
    with pytest.raises(BundleError, match="theta"):
        toy().with_theta(theta)


def test_cut_at_and_around_every_member_boundary() -> None:
    data = toy().to_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        starts = [entry.header_offset for entry in archive.infolist()]
    cuts = {near for start in [*starts, len(data)] for near in range(start - 2, start + 3) if 0 <= near < len(data)}
    for cut in sorted(cuts):
        with pytest.raises(BundleError):
            Bundle.from_bytes(data[:cut])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_flipped_bit_is_an_error(draw: st.DataObject) -> None:
    # Also in the fields of zip headers that mean nothing here (dates, permissions).
    data = bytearray(toy().to_bytes())
    position = draw.draw(st.integers(0, len(data) - 1))
    data[position] ^= 1 << draw.draw(st.integers(0, 7))
    with pytest.raises(BundleError):
        Bundle.from_bytes(bytes(data))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_foreign_bytes(data: bytes) -> None:
    with pytest.raises(BundleError):
        Bundle.from_bytes(data)


@pytest.mark.parametrize(
    "change",
    [
        {"theta.f32": THETA[:5].tobytes()},
        {"theta.f32": THETA.tobytes() + b"\0"},
        {"theta.f32": None},
        {"embedding.onnx": b"another graph"},
        {"embedding.onnx": None},
        {"impostors.f32": None},
        {"impostors.f32": b""},
        {"../outside.onnx": b"x"},
        {"manifest.json": b"{}"},
        {"manifest.json": b"not json"},
        {"manifest.json": b"[" * 100_000},
        {"manifest.json": None},
    ],
    ids=str,
)
def test_altered_members(change: dict[str, bytes | None]) -> None:
    with pytest.raises(BundleError):
        Bundle.from_bytes(rewritten(toy().to_bytes(), change))


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2},
        {"format": None},
        {"dimension": 0},
        {"dimension": "2"},
        {"dimension": True},
        {"modality": ""},
        {"preprocessing": {"size": [8]}},
        {"preprocessing": []},
        {"parameters": [["w", [2, 4]]]},
        {"parameters": [["w", [2]]]},
        {"parameters": [["w", [-2, -3]]]},
        {"parameters": [["w", [2]], ["w", [4]]]},
        {"parameters": [["w"]]},
        {"parameters": {}},
        {"sources": "us"},
        {"members": {}},
        {"calibration": None},
        {"calibration": {"model_version": "other", "source": "s"}},
        {"calibration": {"source": "s"}},
        {"calibration": 3},
        {"version": "0" * 64},
    ],
    ids=str,
)
def test_altered_manifest(fields: dict[str, object]) -> None:
    with pytest.raises(BundleError):
        Bundle.from_bytes(described(toy().to_bytes(), **fields))


def test_compressed_members_are_refused_before_they_are_inflated() -> None:
    bomb = rewritten(toy().to_bytes(), {"embedding.onnx": bytes(1 << 20)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(BundleError, match="stored"):
        Bundle.from_bytes(bomb)


def test_two_members_of_one_name_are_refused() -> None:
    file = io.BytesIO(toy().to_bytes())
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("theta.f32", THETA.tobytes())
    with pytest.raises(BundleError, match="members"):
        Bundle.from_bytes(file.getvalue())


@pytest.mark.parametrize("scores", [[0.5, 0.0], [0.0, np.nan], [0.0, 1.5]], ids=["order", "nan", "range"])
def test_impostor_scores_are_checked(scores: list[float]) -> None:
    bundle = toy(calibrated=False)
    made = bundle.with_calibration(Calibration(np.array(scores, np.float32), bundle.version, "s"))
    with pytest.raises(BundleError, match="impostor"):
        Bundle.from_bytes(made.to_bytes())


def test_save_and_open(tmp_path: Path) -> None:
    path = tmp_path / "toy.uvb"
    path.write_bytes(b"what was there before")
    toy().save(path)
    assert Bundle.open(path).version == toy().version
    assert [entry.name for entry in tmp_path.iterdir()] == ["toy.uvb"]


class Unreadable(Bundle):
    def to_bytes(self) -> bytes:
        return rewritten(super().to_bytes(), {"calibration.bin": b"UVCA", "impostors.f32": None})


def test_what_does_not_open_is_not_saved_over_what_does(tmp_path: Path) -> None:
    toy().save(tmp_path / "toy.uvb")
    with pytest.raises(BundleError):
        Unreadable(MANIFEST, THETA, GRAPHS, toy().calibration).save(tmp_path / "toy.uvb")
    assert Bundle.open(tmp_path / "toy.uvb").calibration is not None
    assert list(tmp_path.iterdir()) == [tmp_path / "toy.uvb"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "toy.uvb"
    path.write_bytes(b"what was there before")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BundleError, match="No space left"):
        toy().save(path)
    assert path.read_bytes() == b"what was there before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["toy.uvb"]


def test_missing_file_and_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot read"):
        Bundle.open(tmp_path / "absent.uvb")
    with pytest.raises(BundleError, match="cannot write"):
        toy().save(tmp_path / "absent" / "toy.uvb")


def test_a_graph_that_is_not_onnx_is_found_when_it_is_used() -> None:
    bundle = Bundle.from_bytes(toy().to_bytes())
    with pytest.raises(BundleError, match="cannot load"):
        bundle.session("vad")
    with pytest.raises(BundleError, match="no graph 'detector'"):
        bundle.session("detector")


def test_shipped_bundle_embeds_unit_rows() -> None:
    bundle = shipped()
    assert bundle.calibration is not None
    assert len(bundle.to_bytes()) < 300_000
    views = np.random.default_rng(0).random((70, 1, 8, 8), dtype=np.float32)  # more than one batch
    rows = bundle.embed(views)
    assert rows.shape == (70, 32)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, abs=1e-6)
    assert rows[69] == pytest.approx(bundle.embed(views[69:])[0], abs=1e-6)
    # The one embedding of several views is the direction of the mean of their unit rows.
    mean = rows.mean(axis=0)
    assert bundle.embedding(views) == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)


def test_sessions_are_built_once_and_shared_by_recalibration() -> None:
    bundle = shipped()
    assert bundle.session() is bundle.session()
    assert bundle.session() is not bundle.session(threads=2)
    assert bundle.with_calibration(None).session() is bundle.session()
    assert bundle.with_theta(bundle.theta * 2).session() is not bundle.session()


def test_views_that_do_not_fit() -> None:
    bundle = shipped()
    for views in (np.zeros((1, 1, 9, 9), np.float32), np.zeros((1, 1, 8, 8), np.float64)):
        with pytest.raises(BundleError, match="does not take views"):
            bundle.embed(views)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match="at least one view"):
        bundle.embedding(np.zeros((0, 1, 8, 8), np.float32))


def test_an_embedding_without_direction_is_an_error() -> None:
    bundle = shipped()
    silent = bundle.with_theta(np.zeros_like(bundle.theta))
    with pytest.raises(BundleError, match="without a direction"):
        silent.embed(np.zeros((1, 1, 8, 8), np.float32))


def test_unknown_shipped_name() -> None:
    with pytest.raises(UnknownNameError, match="digits"):
        shipped("other")
