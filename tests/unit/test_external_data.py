"""A graph that keeps a tensor in another file is refused when its bundle is opened, wherever the tensor stands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from uvsdk.bundle import Bundle, shipped
from uvsdk.bundle.archive import MANIFEST, manifest_text, pack_members, read_members
from uvsdk.bundle.external_data import check_external, external_tensors
from uvsdk.errors import BundleError, WeightsError

onnx = pytest.importorskip("onnx", reason="graphs are made with the train extra")
from onnx import AttributeProto, SparseTensorProto, TensorProto, helper, numpy_helper  # noqa: E402

ELSEWHERE = ("/etc/hostname", "../secret.bin", "a/../../secret.bin", "theta.f32/../x", "other.bin", "", "theta.f32")


def outside(location: str, *, name: str = "w") -> TensorProto:
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def model(nodes: list[object], initialisers: list[TensorProto] | None = None) -> onnx.ModelProto:
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph(nodes, "g", [], [output], initialisers or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def initialiser(tensor: TensorProto) -> onnx.ModelProto:
    return model([helper.make_node("Identity", ["w"], ["y"])], [tensor])


def attribute(tensor: TensorProto) -> onnx.ModelProto:
    return model([helper.make_node("Constant", [], ["y"], value=tensor)])


def attribute_list(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Identity", ["w"], ["y"])
    node.attribute.add(name="values", type=AttributeProto.TENSORS).tensors.append(tensor)
    return model([node])


def sparse(tensor: TensorProto) -> SparseTensorProto:
    found = SparseTensorProto(dims=[4])
    found.values.CopyFrom(tensor)
    found.indices.CopyFrom(numpy_helper.from_array(np.arange(4, dtype=np.int64), "i"))
    return found


def sparse_values(tensor: TensorProto) -> onnx.ModelProto:
    return model([helper.make_node("Constant", [], ["y"], sparse_value=sparse(tensor))])


def sparse_indices(tensor: TensorProto) -> onnx.ModelProto:
    found = sparse(numpy_helper.from_array(np.zeros(4, np.float32), "v"))
    found.indices.CopyFrom(tensor)
    return model([helper.make_node("Constant", [], ["y"], sparse_value=found)])


def sparse_initialiser(tensor: TensorProto) -> onnx.ModelProto:
    made = model([helper.make_node("Identity", ["w"], ["y"])])
    made.graph.sparse_initializer.append(sparse(tensor))
    return made


def subgraph(tensor: TensorProto) -> onnx.ModelProto:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["z"])],
        "branch",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4])],
        [tensor],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    return model([node], [numpy_helper.from_array(np.array(True), "c")])


def function(tensor: TensorProto) -> onnx.ModelProto:
    made = model([helper.make_node("F", [], ["y"], domain="d")])
    made.functions.append(
        helper.make_function(
            "d",
            "F",
            [],
            ["y"],
            [helper.make_node("Constant", [], ["y"], value=tensor)],
            [helper.make_opsetid("", 17)],
        )
    )
    return made


def training(tensor: TensorProto) -> onnx.ModelProto:
    made = model([])
    made.training_info.add().initialization.CopyFrom(initialiser(tensor).graph)
    return made


PLACES: list[Callable[[TensorProto], onnx.ModelProto]] = [
    initialiser,
    attribute,
    attribute_list,
    sparse_values,
    sparse_indices,
    sparse_initialiser,
    subgraph,
    function,
    training,
]


@pytest.mark.parametrize("location", ELSEWHERE)
@pytest.mark.parametrize("place", PLACES)
def test_every_place_is_seen(place: Callable[[TensorProto], onnx.ModelProto], location: str) -> None:
    graph = place(outside(location)).SerializeToString()
    assert [dict(item.entries)["location"] for item in external_tensors(graph)] == [location] * (
        2 if place is subgraph else 1
    )
    for file, size in (("", 0), ("theta.f32", 16)):
        if (file, location, place) == ("theta.f32", "theta.f32", initialiser):
            check_external("embedding", graph, file=file, size=size)  # the one place that a bundle has
            continue
        with pytest.raises(BundleError, match="in another file"):
            check_external("embedding", graph, file=file, size=size)


@pytest.mark.parametrize(
    "change",
    [
        {"offset": "4"},
        {"length": "17"},
        {"length": "0"},
        {"offset": "-4"},
        {"length": "99999999999999999999"},
        {"length": "x"},
        {"length": None},
        {"checksum": "0"},
    ],
)
def test_only_what_lies_inside_theta(change: dict[str, str | None]) -> None:
    tensor = outside("theta.f32")
    entries = {entry.key: entry.value for entry in tensor.external_data} | change
    del tensor.external_data[:]
    for key, value in entries.items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    with pytest.raises(BundleError):
        check_external("embedding", initialiser(tensor).SerializeToString(), file="theta.f32", size=16)


def test_two_places_for_one_tensor() -> None:
    tensor = outside("theta.f32")
    tensor.external_data.add(key="location", value="/etc/hostname")
    with pytest.raises(BundleError, match="in another file"):
        check_external("embedding", initialiser(tensor).SerializeToString(), file="theta.f32", size=16)


def test_a_place_without_the_mark_counts() -> None:
    """Not marked external, and yet with a place: refused rather than left to the reader."""
    tensor = outside("/etc/hostname")
    tensor.data_location = TensorProto.DEFAULT
    with pytest.raises(BundleError, match="in another file"):
        check_external("vad", initialiser(tensor).SerializeToString())


def test_bytes_that_are_no_graph() -> None:
    good = initialiser(outside("theta.f32")).SerializeToString()
    for body in (b"\x00\x00\x00\x00ORTM", b"\x0b", good[:-3], b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"):
        with pytest.raises(BundleError):
            check_external("embedding", body, file="theta.f32", size=16)
    nested = b""
    for _ in range(70):  # graph > node > attribute > graph
        for field in (6, 5, 1):
            nested = bytes([field << 3 | 2]) + varint(len(nested)) + nested
    with pytest.raises(BundleError, match="deep"):
        check_external("embedding", b"\x3a" + varint(len(nested)) + nested, file="theta.f32", size=16)


def varint(value: int) -> bytes:
    body = bytearray()
    while value > 0x7F:
        body.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*body, value])


@pytest.mark.parametrize("name", ["embedding", "vad"])
def test_a_bundle_that_reads_elsewhere_does_not_open(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.full(4, 42, np.float32).tobytes())
    bundle = shipped()
    graph = initialiser(outside(str(secret))).SerializeToString()
    with pytest.raises(BundleError, match="nothing was read"):
        Bundle(replace(bundle.manifest, modality="voice"), bundle.theta, {**bundle.graphs, name: graph})


def test_a_bundle_file_that_reads_elsewhere_does_not_open() -> None:
    """The file as an attacker would write it, every digest right."""
    bundle = shipped()
    graph = attribute(outside("../secret.bin")).SerializeToString()
    members = read_members(bundle.to_bytes()) | {"embedding.onnx": graph}
    record = json.loads(members.pop(MANIFEST))
    digests = {item: hashlib.sha256(body).digest() for item, body in members.items()}
    data = pack_members({MANIFEST: manifest_text(record, members, digests), **members})
    with pytest.raises(BundleError, match="nothing was read"):
        Bundle.from_bytes(data)


def test_a_graph_to_be_exported_is_looked_at_as_well() -> None:
    from uvsdk.training.graphs import parse

    with pytest.raises(WeightsError, match="other files"):
        parse(attribute(outside("/etc/hostname")).SerializeToString(), "yunet")


def test_onnxruntime_itself_refuses_what_would_pass_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest onnxruntime that is taken, 1.27, reads no file outside the model's folder; 1.24.2 still did."""
    from uvsdk.system.execution import onnxruntime

    (tmp_path / "model").mkdir()
    (tmp_path / "secret.bin").write_bytes(np.full(4, 42, np.float32).tobytes())
    monkeypatch.chdir(tmp_path / "model")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for place in (initialiser, attribute):
        for location in ("../secret.bin", str(tmp_path / "secret.bin")):
            graph = place(outside(location)).SerializeToString()
            with pytest.raises(Exception, match=r"validation failed|FAIL"):
                onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
