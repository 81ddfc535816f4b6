"""InceptionResnetV1 as facenet-pytorch defines it, for its ``vggface2`` weights.

Source: Schroff et al., "FaceNet", CVPR 2015; Szegedy et al., "Inception-v4, Inception-ResNet ...", 2016; port by
facenet-pytorch. Unlike that class, the embedding is returned before normalisation, pixels are normalised inside the
graph, and BatchNorm always uses its stored statistics: those of a device's batch would be one person's.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Self

from facenet_pytorch import InceptionResnetV1
from torch import Tensor, nn

from uvsdk.training import weights as catalogue
from uvsdk.training.backbones import Backbone, load_tensors, read_state


class FacenetInception(Backbone):
    """float32 (B, 3, 160, 160) RGB 0-255 -> (B, 512); 23.5 M parameters."""

    name = "inception-resnet-v1"
    modality = "face"
    dimension = 512
    view_shape = (3, 160, 160)
    preprocessing = MappingProxyType({"size": 160, "template": "facenet"})

    def __init__(self) -> None:
        super().__init__()
        self.trunk = InceptionResnetV1(pretrained=None, classify=False)

    def forward(self, views: Tensor) -> Tensor:
        """See :class:`Backbone`."""
        trunk = self.trunk
        out = trunk.conv2d_2b(trunk.conv2d_2a(trunk.conv2d_1a((views - 127.5) / 128.0)))
        out = trunk.conv2d_4b(trunk.conv2d_4a(trunk.conv2d_3b(trunk.maxpool_3a(out))))
        out = trunk.repeat_2(trunk.mixed_6a(trunk.repeat_1(out)))
        out = trunk.block8(trunk.repeat_3(trunk.mixed_7a(out)))
        out = trunk.dropout(trunk.avgpool_1a(out)).flatten(1)
        z: Tensor = trunk.last_bn(trunk.last_linear(out))
        return z

    def split(self, part: str) -> tuple[nn.Module, nn.Module]:
        """See :class:`Backbone`: the head is the linear layer with its BatchNorm, the block begins with ``block8``.

        Their BatchNorm layers keep the statistics that they have, as those of the whole do.
        """
        trunk = self.trunk
        first = (_Scaled(), trunk.conv2d_1a, trunk.conv2d_2a, trunk.conv2d_2b, trunk.maxpool_3a, trunk.conv2d_3b)
        second = (trunk.conv2d_4a, trunk.conv2d_4b, trunk.repeat_1, trunk.mixed_6a, trunk.repeat_2, trunk.mixed_7a)
        last = (trunk.block8, trunk.avgpool_1a, nn.Flatten())
        head = (trunk.dropout, trunk.last_linear, trunk.last_bn)
        if part == "head":
            return nn.Sequential(*first, *second, trunk.repeat_3, *last), nn.Sequential(*head)
        return nn.Sequential(*first, *second, trunk.repeat_3), nn.Sequential(*last, *head)

    def train(self, mode: bool = True) -> Self:
        """Switch dropout on or off; BatchNorm stays in evaluation mode whatever ``mode``."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.eval()
        return self

    @classmethod
    def load(cls, *, weights: Path | None = None, download: bool = False, seed: int = 0) -> Self:
        """Start from the pretrained weights; ``seed`` is not used."""
        path = catalogue.find("facenet-vggface2", path=weights, download=download)
        backbone = cls()
        load_tensors(backbone.trunk, read_state(path), path)
        known = catalogue.CATALOGUE["facenet-vggface2"].source
        backbone.sources = (known if weights is None else f"{path.name}, given by path",)
        return backbone.eval()


class _Scaled(nn.Module):
    """Pixels 0-255 to about -1 to 1."""

    def forward(self, views: Tensor) -> Tensor:
        return (views - 127.5) / 128.0


BACKBONE = FacenetInception
