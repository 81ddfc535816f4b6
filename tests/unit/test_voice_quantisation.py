"""Recurrent layers in 8 bits: the arithmetic by hand, what it changes, and that theta stays outside the graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("torch", reason="making a bundle needs the train extra")

from uvsdk.bundle import Bundle
from uvsdk.errors import BundleError
from uvsdk.training import backbones
from uvsdk.training.export import AGREEMENT, export_bundle
from uvsdk.training.graphs.recurrent import quantise_recurrent


def ge2e(seed: int, recurrent: str = "int8") -> Bundle:
    return export_bundle(backbones.get("ge2e").random(seed), preprocessing={"recurrent": recurrent})


def views(count: int, seed: int = 0) -> np.ndarray:
    """Power spans decades, as that of speech does."""
    return np.exp(np.random.default_rng(seed).normal(-6, 3, (count, 160, 40))).astype(np.float32)


def test_weights_are_rounded_to_255_steps_of_their_column() -> None:
    # Column 0: largest 2, so a step is 2 / 127; -1 is 63.5 steps, rounded to the even 64. Column 1 is zero.
    from uvsdk.training.graphs.recurrent import _rounding

    weights = np.array([[[2.0, -1.0], [0.0, 0.0]]], np.float32)  # (1, 4 hidden, inputs)
    graph = helper.make_graph(
        _rounding("weights", "w"),
        "rounding",
        [helper.make_tensor_value_info("weights", TensorProto.FLOAT, [1, 2, 2])],
        [
            helper.make_tensor_value_info("w/int8", TensorProto.INT8, None),
            helper.make_tensor_value_info("w/scale", TensorProto.FLOAT, None),
        ],
    )
    from uvsdk.system.execution import onnxruntime

    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    whole, scale = session.run(None, {"weights": weights})
    assert whole.tolist() == [[[127, 0], [-64, 0]]]
    assert scale[0] == pytest.approx([2 / 127, 1e-12])


def test_embeddings_keep_their_direction() -> None:
    exact, quantised = ge2e(1, "float32"), ge2e(1)
    cosine = (exact.embed(views(4)) * quantised.embed(views(4))).sum(axis=1)
    assert cosine.min() > 0.999
    assert exact.version != quantised.version
    assert np.array_equal(exact.theta, quantised.theta)


def test_a_new_theta_is_quantised_anew_without_torch() -> None:
    one, two = ge2e(1), ge2e(2)
    replaced = one.with_theta(two.theta)
    assert replaced.to_bytes() == two.to_bytes()
    assert np.array_equal(replaced.embed(views(3)), two.embed(views(3)))
    assert not np.array_equal(replaced.embed(views(3)), one.embed(views(3)))


def test_theta_stays_outside() -> None:
    model = onnx.load_from_string(ge2e(1).graphs["embedding"])
    external = [item for item in model.graph.initializer if item.data_location == TensorProto.EXTERNAL]
    assert sum(int(np.prod(item.dims)) for item in external) == 1_423_616
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("LSTM"), kinds.count("DynamicQuantizeLSTM")) == (1, 2)


def test_no_sample_depends_on_another() -> None:
    bundle = ge2e(1)
    samples = [views(count, seed) for seed, count in enumerate((1, 3, 2))]
    together = bundle.embeddings(samples)
    assert all(np.array_equal(together[index], bundle.embedding(sample)) for index, sample in enumerate(samples))


def test_a_hundred_calls_give_the_same_bits() -> None:
    bundle = ge2e(1)
    first = bundle.embed(views(2))
    assert all(np.array_equal(bundle.embed(views(2)), first) for _ in range(100))


def test_a_graph_without_layers_to_quantise() -> None:
    node = helper.make_node("Relu", ["views"], ["z"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("views", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.zeros(1, np.float32), "unused")],
    )
    with pytest.raises(BundleError, match="only stacked LSTM layers"):
        quantise_recurrent(helper.make_model(graph).SerializeToString())


def test_weights_that_8_bits_do_not_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvsdk.training.export.AGREEMENT", AGREEMENT * 1e-6)
    with pytest.raises(BundleError, match=r"8 bits change the embeddings .*\{'recurrent': 'float32'"):
        ge2e(1)
