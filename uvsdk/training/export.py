"""From a torch backbone to a bundle that runs without torch."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.bundle import SPANS
from uvsdk.bundle.frozen import OUTPUT
from uvsdk.bundle.manifest import Manifest
from uvsdk.errors import BundleError, SettingsError
from uvsdk.records.codec import Scalar
from uvsdk.training.backbones import Backbone, Partial, Pooling, flatten, freeze, parameters, unflatten
from uvsdk.training.graphs import auxiliary, externalise
from uvsdk.training.graphs.recurrent import quantise_recurrent

PARITY = 1e-4
# What 8 bits may change, as a part of the embeddings' norm; 0.03 is a cosine of 0.9995 for GE2E.
AGREEMENT = 0.08
_OPSET = 17

# The tracing exporter is chosen on purpose: it keeps parameter names, which theta needs. Its notices are that it is the
# older one; that an LSTM traced with one batch size may not take another (ours starts from zeros, and the parity check
# runs another batch size than the traced one); and that it leaves a constant for onnxruntime to fold.
_NOTICES: tuple[tuple[str, type[Warning]], ...] = (
    ("You are using the legacy TorchScript-based ONNX export", DeprecationWarning),
    ("The feature will be removed. Please remove usage of this function", DeprecationWarning),
    ("Exporting a model to ONNX with a batch_size other than 1", UserWarning),
    ("Constant folding - Only steps=1 can be constant folded", UserWarning),
)


def export_bundle(
    backbone: Backbone,
    *,
    download: bool = False,
    preprocessing: Mapping[str, Scalar] | None = None,
) -> Bundle:
    """Export ``backbone`` with the detectors its modality needs, and check it against torch before returning it.

    Args:
        backbone: the trunk; exported in evaluation mode, on the CPU. Of one that is trained in part, the rest becomes
            constants of the graph, which gives what they make of the views as the output ``frozen`` too.
        download: whether missing detector weights may be fetched.
        preprocessing: settings that replace some of the backbone's, e.g. ``{"minimum_speech_s": 0.3}``.

    Raises:
        BundleError: the graph's embeddings differ from torch's by more than 1e-4, relative to their largest entry; or,
            where the preprocessing says ``recurrent: int8``, those of the quantised graph by more than 8 % of the norm;
            or ``frozen: int8`` was asked for layers whose activations were never measured.
        WeightsNotFoundError: a detector is nowhere to be found.
        SettingsError: no such preprocessing setting.
    """
    was_training = backbone.training
    backbone.eval()
    try:
        settings = {**backbone.preprocessing, **_known(backbone, preprocessing or {})}
        frozen = _frozen(backbone, settings, asked=preprocessing or {})
        traced = _trace(_distinct(backbone), like=backbone)
        graph = externalise(traced, parameters(backbone))
        detectors, detector_sources = auxiliary(backbone.modality, download=download)
        manifest = Manifest(
            backbone.modality,
            backbone.name,
            backbone.dimension,
            settings,
            parameters(backbone),
            (*(backbone.sources or ("random initialisation",)), *detector_sources),
            backbone.part,
        )
        bundle = Bundle(manifest, flatten(backbone), {"embedding": graph, **detectors})
        views = _example(backbone, batch=3)
        difference = parity(backbone, bundle, views=views)
        if manifest.preprocessing.get("recurrent") == "int8":
            graph = externalise(quantise_recurrent(traced), parameters(backbone))
            exact, bundle = bundle, Bundle(manifest, flatten(backbone), {"embedding": graph, **detectors})
            _check_agreement(exact, bundle, views)
        if frozen is not None:
            graph = externalise(frozen, parameters(backbone))
            bundle = Bundle(manifest, flatten(backbone), {"embedding": graph, **detectors})
    finally:
        backbone.train(was_training)
    if not difference <= PARITY:
        raise BundleError(f"the exported graph differs from torch by {difference:.2e}, allowed {PARITY:.0e}")
    return bundle


def _frozen(backbone: Backbone, settings: dict[str, Scalar], *, asked: Mapping[str, Scalar]) -> bytes | None:
    """The graph whose frozen layers compute in 8 bits, where ``settings`` say so; they are corrected where none can."""
    if settings.get("frozen") != "int8":
        return None
    from uvsdk.training.graphs.campplus import frozen_in_8_bits

    graph = frozen_in_8_bits(backbone) if isinstance(backbone, Partial) and backbone.part == "head" else None
    if graph is None:
        if "frozen" in asked:
            raise BundleError(
                "8 bits are for the layers below a head that alone is trained, with the weights on record; export with "
                "--train head, or with frozen=float32"
            )
        settings["frozen"] = "float32"
    return graph


def parity(backbone: Backbone, bundle: Bundle, *, views: Float32) -> float:
    """The largest difference between torch's and the bundle's raw embeddings of float32 (n, *view_shape) ``views``.

    It is relative to the largest entry of the embeddings where that exceeds 1, since float32 is.
    """
    with torch.no_grad():
        expected = backbone(torch.from_numpy(views)).numpy()
    actual = bundle.session().run(["z"], {"views": views})[0]
    return float(np.abs(actual - expected).max() / max(1.0, float(np.abs(expected).max())))


def _check_agreement(exact: Bundle, quantised: Bundle, views: Float32) -> None:
    expected, actual = (bundle.session().run(["z"], {"views": views})[0] for bundle in (exact, quantised))
    difference = float(np.linalg.norm(actual - expected)) / max(float(np.linalg.norm(expected)), 1e-6)
    if not difference <= AGREEMENT:
        raise BundleError(
            f"8 bits change the embeddings by {difference:.1%} of their norm, allowed {AGREEMENT:.0%}; export with "
            "preprocessing={'recurrent': 'float32'}"
        )


def _known(backbone: Backbone, changed: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    unknown = set(changed) - set(backbone.preprocessing)
    if unknown:
        raise SettingsError(
            f"{backbone.name} has no preprocessing {sorted(unknown)}; it has {sorted(backbone.preprocessing)}"
        )
    return changed


def _example(backbone: Backbone, batch: int) -> Float32:
    """Views whose values have the range of real ones."""
    top = modality.get(backbone.modality).highest
    return np.random.default_rng(0).uniform(0.0, top, (batch, *backbone.view_shape)).astype(np.float32)


def _distinct(backbone: Backbone) -> Backbone:
    """A copy with arbitrary parameters, no two tensors alike.

    The exporter merges tensors of equal content, such as the ones of two fresh normalisation layers, which would tie
    parameters that training must move apart. It also makes the graph the same whatever theta is.
    """
    skeleton = copy.deepcopy(backbone)
    unflatten(skeleton, np.random.default_rng(0).normal(0.0, 0.01, flatten(backbone).size).astype(np.float32))
    return skeleton


class _Tapped(nn.Module):
    """A partial backbone that gives what its frozen part made of the views too; parameters keep their names."""

    def __init__(self, backbone: Partial) -> None:
        super().__init__()
        self.stem, self.rest = backbone.stem, backbone.rest

    def forward(self, views: Tensor) -> tuple[Tensor, ...]:
        frozen = self.stem(views)
        return self.rest(frozen), frozen


def _trace(backbone: Backbone, *, like: Backbone) -> bytes:
    """The graph of ``backbone``, a skeleton of ``like``."""
    example = torch.from_numpy(_example(backbone, batch=2))
    module, outputs, axes = _outputs(backbone, example)
    pooling = _pooling(backbone)
    if pooling is not None:
        _give_spans(module, pooling, _span_head(backbone, pooling, like))
        outputs, axes = [*outputs, SPANS], {**axes, SPANS: {0: "batch", 1: SPANS}}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        for message, category in _NOTICES:
            warnings.filterwarnings("ignore", message, category)
        # Size checks inside torch's own layers; a data-dependent branch in a backbone still warns.
        warnings.filterwarnings("ignore", "Converting a tensor to a Python boolean", module=r"torch\.nn\.")
        file = Path(folder) / "graph.onnx"
        torch.onnx.export(
            module,
            (example,),
            file,
            dynamo=False,
            input_names=["views"],
            output_names=outputs,
            dynamic_axes={"views": {0: "batch", **backbone.dynamic_axes}, "z": {0: "batch"}, **axes},
            do_constant_folding=False,
            opset_version=_OPSET,
            # In evaluation mode the exporter would melt BatchNorm into the convolutions and lose their parameters.
            training=torch.onnx.TrainingMode.PRESERVE,
        )
        return file.read_bytes()


def _outputs(backbone: Backbone, example: Tensor) -> tuple[nn.Module, list[str], dict[str, dict[int, str]]]:
    """What to trace, the names of its outputs, and the axes of those beside ``z`` that may have any length."""
    if not isinstance(backbone, Partial):
        return backbone, ["z"], {}
    with torch.no_grad():
        sides = backbone.stem(example).ndim
    free = range(sides if backbone.dynamic_axes else 1)
    return _Tapped(backbone), ["z", OUTPUT], {OUTPUT: {axis: f"{OUTPUT}_{axis}" if axis else "batch" for axis in free}}


def _pooling(backbone: nn.Module) -> Pooling | None:
    return next((module for module in backbone.modules() if isinstance(module, Pooling)), None)


def _span_head(backbone: Backbone, pooling: Pooling, like: Backbone) -> nn.Module:
    """What spans are taken through: the head after the pooling, but where it alone is trained a copy of its own.

    What is told by the spans would else move with every round, and their limit with it.
    """
    if not isinstance(backbone, Partial) or pooling.head is not backbone.rest:
        return pooling.head
    assert isinstance(like, Partial)
    head = copy.deepcopy(like.rest)
    freeze(head)
    return head


def _give_spans(module: nn.Module, pooling: Pooling, head: nn.Module) -> None:
    """Let ``module`` give the spans as its last output."""
    heard: list[Tensor] = []
    pooling.register_forward_hook(lambda _, inputs, __: heard.append(inputs[0]))
    plain = module.forward

    def forward(views: Tensor) -> tuple[Tensor, ...]:
        heard.clear()
        outputs = plain(views)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return (*outputs, head(pooling.spans(heard[0])))

    module.forward = forward
