"""CAM++ against the network of its paper, BatchNorm and all, and what becomes of its published tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, batch_norm, conv1d, conv2d, relu

from uvsdk.errors import WeightsError
from uvsdk.training import backbones
from uvsdk.training.backbones import Pooling, campplus
from uvsdk.training.export import export_bundle

BLOCKS = ((12, 1), (24, 2), (16, 2))


class Paper:
    """The network as published, at inference: every layer from tensors of a checkpoint's names.

    With ``make`` the tensors are drawn, as many and as large as each layer asks for.
    """

    def __init__(self, state: dict[str, Tensor], *, make: bool = False, seed: int = 0) -> None:
        self.state = state
        self._make = make
        self._generator = torch.Generator().manual_seed(seed)

    def tensor(self, name: str, *shape: int) -> Tensor:
        if self._make:
            drawn = torch.randn(shape, generator=self._generator) / np.sqrt(max(np.prod(shape[1:]), 1.0))
            if name.endswith("running_var"):
                drawn = 0.5 + drawn.abs()
            self.state[name] = drawn
        assert self.state[name].shape == shape
        return self.state[name]

    def norm(self, rows: Tensor, name: str, *, affine: bool = True) -> Tensor:
        size = rows.shape[1]
        mean, variance = self.tensor(f"{name}.running_mean", size), self.tensor(f"{name}.running_var", size)
        weight, bias = (self.tensor(f"{name}.{part}", size) if affine else None for part in ("weight", "bias"))
        return batch_norm(rows, mean, variance, weight, bias)

    def plane(self, rows: Tensor, name: str, norm: str, *, size: int = 3, stride: int = 1) -> Tensor:
        weight = self.tensor(f"{name}.weight", 32, rows.shape[1], size, size)
        return self.norm(conv2d(rows, weight, stride=(stride, 1), padding=size // 2), norm)

    def residual(self, rows: Tensor, name: str, stride: int) -> Tensor:
        out = relu(self.plane(rows, f"{name}.conv1", f"{name}.bn1", stride=stride))
        out = self.plane(out, f"{name}.conv2", f"{name}.bn2")
        if stride > 1:
            rows = self.plane(rows, f"{name}.shortcut.0", f"{name}.shortcut.1", size=1, stride=stride)
        return relu(out + rows)

    def masked(self, rows: Tensor, name: str, dilation: int) -> Tensor:
        narrow = relu(self.norm(rows, f"{name}.nonlinear1.batchnorm"))
        narrow = conv1d(narrow, self.tensor(f"{name}.linear1.weight", 128, rows.shape[1], 1))
        narrow = relu(self.norm(narrow, f"{name}.nonlinear2.batchnorm"))
        local = self.tensor(f"{name}.cam_layer.linear_local.weight", 32, 128, 3)
        local = conv1d(narrow, local, padding=dilation, dilation=dilation)
        pooled = [narrow[:, :, at : at + 100].mean(dim=2, keepdim=True) for at in range(0, narrow.shape[2], 100)]
        near = torch.cat([mean.expand(-1, -1, 100) for mean in pooled], dim=2)[:, :, : narrow.shape[2]]
        heard = narrow.mean(dim=2, keepdim=True) + near
        one, two = f"{name}.cam_layer.linear1", f"{name}.cam_layer.linear2"
        mask = relu(conv1d(heard, self.tensor(f"{one}.weight", 64, 128, 1), self.tensor(f"{one}.bias", 64)))
        mask = conv1d(mask, self.tensor(f"{two}.weight", 32, 64, 1), self.tensor(f"{two}.bias", 32))
        return local * torch.sigmoid(mask)

    def __call__(self, views: Tensor) -> Tensor:
        rows = relu(self.plane(views.transpose(1, 2)[:, None], "head.conv1", "head.bn1"))
        for place in range(4):
            rows = self.residual(rows, f"head.layer{place // 2 + 1}.{place % 2}", 2 - place % 2)
        rows = relu(self.plane(rows, "head.conv2", "head.bn2", stride=2)).flatten(1, 2)
        rows = conv1d(rows, self.tensor("xvector.tdnn.linear.weight", 128, 320, 5), stride=2, padding=2)
        rows = relu(self.norm(rows, "xvector.tdnn.nonlinear.batchnorm"))
        for number, (layers, dilation) in enumerate(BLOCKS, start=1):
            for layer in range(layers):
                added = self.masked(rows, f"xvector.block{number}.tdnnd{layer + 1}", dilation)
                rows = torch.cat((rows, added), dim=1)
            name, size = f"xvector.transit{number}", rows.shape[1]
            rows = relu(self.norm(rows, f"{name}.nonlinear.batchnorm"))
            rows = conv1d(rows, self.tensor(f"{name}.linear.weight", size // 2, size, 1))
        rows = relu(self.norm(rows, "xvector.out_nonlinear.batchnorm"))
        pooled = torch.cat((rows.mean(dim=2), rows.std(dim=2, unbiased=True)), dim=1)[:, :, None]
        z = conv1d(pooled, self.tensor("xvector.dense.linear.weight", 192, 1024, 1))
        return self.norm(z, "xvector.dense.nonlinear.batchnorm", affine=False)[:, :, 0]


def views(frames: int, count: int = 2) -> Tensor:
    rows = torch.randn((count, frames, 80), generator=torch.Generator().manual_seed(frames))
    return 3.0 * rows


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Paper]:
    """A checkpoint of random tensors under the published names, and the network of the paper over it."""
    state: dict[str, Tensor] = {}
    with torch.no_grad():
        Paper(state, make=True)(views(10))
    path = tmp_path_factory.mktemp("weights") / "campplus.pt"
    torch.save(state, path)
    return path, Paper(state)


@pytest.mark.parametrize("frames", [57, 200, 331])
def test_without_batchnorm_it_is_the_network_of_the_paper(published: tuple[Path, Paper], frames: int) -> None:
    """Of segments of 100 after the stride of 2: less than one, one to the frame, two of which one is cut."""
    path, paper = published
    backbone = campplus.CamPlusPlus.load(weights=path)
    with torch.no_grad():
        expected, actual = paper(views(frames)), backbone(views(frames))
    assert float(expected.abs().max()) > 0.1
    assert float((actual - expected).abs().max()) < 1e-4 * float(expected.abs().max())
    assert backbone.sources == (f"{path.name}, given by path",)


@pytest.mark.parametrize("change", ["lacks", "shape", "nan"])
def test_a_file_that_is_not_as_published_is_refused(published: tuple[Path, Paper], tmp_path: Path, change: str) -> None:
    path, _ = published
    state = torch.load(path, weights_only=True)
    name = "xvector.block2.tdnnd7.nonlinear2.batchnorm.running_mean"
    if change == "lacks":
        del state[name]
    elif change == "shape":
        state[name] = torch.zeros(5)
    else:
        state[name] = torch.full_like(state[name], float("nan"))
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(WeightsError, match=r"batchnorm|bottleneck"):
        campplus.CamPlusPlus.load(weights=tmp_path / "weights.pt")


@pytest.mark.parametrize("count", [1, 99, 100, 101, 250])
def test_every_frame_hears_the_mean_of_its_segment(count: int) -> None:
    rows = torch.randn((2, 3, count), generator=torch.Generator().manual_seed(0))
    means = avg_pool1d(rows, 100, 100, ceil_mode=True, count_include_pad=False)
    expected = means.repeat_interleave(100, dim=2)[:, :, :count]
    assert campplus._segments(rows).numpy() == pytest.approx(expected.numpy(), abs=1e-6)


def test_statistics_by_hand() -> None:
    """Of -1, 1, 3, 5 what is above zero is 0, 1, 3, 5: mean 9 / 4, squares 35 - 81 / 4 = 14.75, over three."""
    found = campplus._statistics(torch.tensor([[[-1.0, 1.0, 3.0, 5.0]]]))
    assert found.tolist() == [[2.25, pytest.approx((14.75 / 3) ** 0.5, rel=1e-6)]]
    one = campplus._statistics(torch.tensor([[[2.0]]]))
    assert one.tolist() == [[2.0, pytest.approx(0.0, abs=1e-4)]]


def test_no_layer_keeps_statistics() -> None:
    backbone = backbones.get("campplus").random()
    assert not list(backbone.buffers())
    assert not [layer for layer in backbone.modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]


@pytest.mark.parametrize(("name", "part"), [("campplus", "head"), ("campplus", "all"), ("campplus+centred", "head")])
def test_an_exported_graph_gives_spans(name: str, part: str) -> None:
    """The trunk's own head of 25 rows over time, whatever lies behind it; training the head alone does not move them.

    Of 120 frames there are 60 rows: two spans of 30.
    """
    backbone = backbones.get(name, part).random(2)
    bundle = export_bundle(backbone)
    (pooling,) = (module for module in backbone.modules() if isinstance(module, Pooling))
    heard: list[Tensor] = []
    pooling.register_forward_hook(lambda _, inputs, __: heard.append(inputs[0]))
    views = np.random.default_rng(0).normal(size=(1, 120, 80)).astype(np.float32)
    with torch.no_grad():
        backbone(torch.from_numpy(views))
        halves = torch.stack([campplus._statistics(heard[0][0, None, :, at : at + 30])[0] for at in (0, 30)])
        expected = pooling.head(halves).numpy()
    rows, spans = bundle.embed_with_spans(views)
    assert spans == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert np.array_equal(rows, bundle.embed(views))
    if part == "head":
        moved = bundle.with_theta(np.asarray(bundle.theta[::-1], np.float32))
        assert np.array_equal(moved.embed_with_spans(views)[1], spans)


def test_a_graph_without_spans_gives_none() -> None:
    bundle = export_bundle(backbones.get("ge2e").random(0))
    views = np.random.default_rng(0).normal(size=(1, 160, 40)).astype(np.float32)
    rows, spans = bundle.embed_with_spans(views)
    assert spans is None
    assert np.array_equal(rows, bundle.embed(views))
