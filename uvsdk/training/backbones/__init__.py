"""The trainable trunks: each module in this folder holds one, under the attribute ``BACKBONE``.

A module's name with hyphens for underscores is the backbone's registry name, so adding one touches one file. Any of
them can be given a linear head of another dimension: ``ge2e+255`` is ``ge2e`` and a matrix of 255 rows after it; or
one that starts where it changes nothing, and whose bias may take a domain's mean off: ``campplus+centred``
(:class:`Centred`). And any of them can be trained in part (:class:`Partial`): the last block, or the head alone, over
layers that stay.
Needs torch (the ``train`` extra); a bundle made from a backbone does not.
"""

from __future__ import annotations

import copy
import functools
import importlib
import pkgutil
import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.bundle.manifest import CENTRED, PARTS, Parameter
from uvsdk.errors import (
    SettingsError,
    TrainingUnavailableError,
    UnknownNameError,
    UpdateRejectedError,
    WeightsError,
)
from uvsdk.records.codec import Scalar

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise TrainingUnavailableError("backbones need torch: pip install 'uvsdk[train]'") from error


_WITH_HEAD = re.compile(rf"(?P<trunk>.+)\+(?P<head>[1-9][0-9]{{0,4}}|{CENTRED})")


class Backbone(nn.Module):
    """A trunk: views in, one embedding each out.

    Every parameter is trainable and belongs to theta; whatever training must leave alone is a buffer. No layer may
    mix the examples of a batch (BatchNorm in training mode does), since a device has one person only.

    Attributes:
        name: the registry's name.
        modality: whose views it takes.
        dimension: d.
        preprocessing: the settings the modality needs to make such views.
        view_shape: shape of one view.
        dynamic_axes: axes of ``views`` besides the batch that may have any length -> their names.
        part: what of it is trained, one of :data:`uvsdk.bundle.manifest.PARTS`.
        sources: per instance: where its values come from, in words; empty where initialised at random.
    """

    name: ClassVar[str]
    modality: ClassVar[str]
    dimension: ClassVar[int]
    preprocessing: ClassVar[Mapping[str, Scalar]]
    view_shape: ClassVar[tuple[int, ...]]
    dynamic_axes: ClassVar[Mapping[int, str]] = MappingProxyType({})
    part: ClassVar[str] = "all"
    sources: tuple[str, ...] = ()

    @abstractmethod
    def forward(self, views: Tensor) -> Tensor:
        """Embed float32 (B, *view_shape) as float32 (B, d), not normalised."""

    def split(self, part: str) -> tuple[nn.Module, nn.Module]:
        """The layers before the one named ``part`` (``block`` or ``head``), and those from it on.

        One after the other they are :meth:`forward`. They are made of this backbone's own layers, which is not to be
        used afterwards.

        Raises:
            SettingsError: this backbone has no such part.
        """
        raise SettingsError(f"the backbone {self.name} is trained as a whole only; leave train at 'all', not {part!r}")

    @classmethod
    def load(cls, *, weights: Path | None = None, download: bool = False, seed: int = 0) -> Self:
        """Start from pretrained weights where the backbone has them, else from ``seed``.

        Args:
            weights: a file, a saved ``state_dict``, to use instead of the one the catalogue finds.
            download: whether missing weights may be fetched.
            seed: of the random initialisation, for backbones trained from scratch.

        Raises:
            WeightsNotFoundError: pretrained weights are nowhere to be found.
            WeightsError: the file does not hold this backbone's weights.
        """
        backbone = cls.random(seed)
        if weights is not None:
            load_tensors(backbone, read_state(weights), weights)
            backbone.sources = (f"{weights.name}, given by path",)
        return backbone

    @classmethod
    def random(cls, seed: int = 0) -> Self:
        """The architecture with random values: for tests, and for training from nothing."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = cls()
        return backbone.eval()


class Pooling(nn.Module):
    """The layer of a trunk that makes one row of rows over time, and what it makes of short spans of them.

    An exported graph gives these spans, each taken through the head, as a second output
    (:data:`uvsdk.bundle.bundle.SPANS`).

    Args:
        head: what the trunk lays over its output; it stays the trunk's own layer and is none of this one's.
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self._head = (head,)

    @property
    def head(self) -> nn.Module:
        """What the trunk lays over the output."""
        return self._head[0]

    @abstractmethod
    def spans(self, rows: Tensor) -> Tensor:
        """Of each span what the head is laid over: rows over time, (B, channels, T) -> (B, k, C), k >= 1."""


class Headed(Backbone):
    """A trunk and a linear map of its embedding without bias, W of FedUV (SPEC 6.2), trained like the rest of theta.

    :func:`get` makes a subclass for each name.

    Attributes:
        inner: the class of the trunk.
    """

    inner: ClassVar[type[Backbone]]

    def __init__(self, trunk: Backbone | None = None) -> None:
        super().__init__()
        self.trunk = self.inner() if trunk is None else trunk
        self.head: nn.Linear = nn.Linear(self.inner.dimension, self.dimension, bias=False)
        self.sources = (*self.trunk.sources, "head: random initialisation") if self.trunk.sources else ()

    def forward(self, views: Tensor) -> Tensor:
        """See :class:`Backbone`."""
        z: Tensor = self.head(self.trunk(views))
        return z

    def split(self, part: str) -> tuple[nn.Module, nn.Module]:
        """See :class:`Backbone`: the head is the matrix alone, the block that of the trunk, the trunk's head and it."""
        if part == "head":
            return self.trunk, self.head
        before, block = self.trunk.split(part)
        return before, nn.Sequential(block, self.head)

    def start_orthogonal(self) -> None:
        """Let the head begin as the identity, or, between two dimensions, as a random orthogonal map.

        With as many dimensions or more, cosines are at first those of the trunk to rounding; with fewer, it is a random
        projection. Over layers that do not move, a random start would undo what they have learnt.
        """
        if self.dimension == self.inner.dimension:
            nn.init.eye_(self.head.weight)
        else:
            nn.init.orthogonal_(self.head.weight)
        self.sources = (*self.trunk.sources, "head: orthogonal initialisation") if self.trunk.sources else ()

    @classmethod
    def load(cls, *, weights: Path | None = None, download: bool = False, seed: int = 0) -> Self:
        """The trunk as its own ``load`` makes it, and a head drawn from ``seed``."""
        trunk = cls.inner.load(weights=weights, download=download, seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = cls(trunk)
        return backbone.eval()


class Affine(nn.Linear):
    """``W e + b`` of the direction e of its input, float32 (B, d) -> (B, d); it starts with W = 1 and b = 0."""

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension, dimension)
        nn.init.eye_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """See the class."""
        z: Tensor = super().forward(nn.functional.normalize(rows, dim=1))
        return z


class Centred(Headed):
    """A trunk and an affine map of its unit embeddings, which at first changes none of them.

    A microphone, a telephone or a language moves everybody's embeddings the same way, and strangers' cosines up with
    it. With b at minus the mean of people's means (:mod:`uvsdk.release.centring`) that is taken off.
    """

    def __init__(self, trunk: Backbone | None = None) -> None:
        super().__init__(trunk)
        self.head = Affine(self.dimension)
        self.start_orthogonal()

    def start_orthogonal(self) -> None:
        """Nothing: it begins as the identity."""
        self.sources = (*self.trunk.sources, "head: identity") if self.trunk.sources else ()


class Partial(Backbone):
    """A backbone of which a part is trained: the layers before it are buffers, so constants of the exported graph.

    Theta, and with it updates, the server's aggregation and its optimiser's state, have the size of that part.
    :func:`get` makes a subclass for each name.

    Attributes:
        inner: the class of the whole backbone.
        stem: the layers that stay as they are; in evaluation mode always.
        rest: those that are trained.
    """

    inner: ClassVar[type[Backbone]]

    def __init__(self, whole: Backbone | None = None) -> None:
        super().__init__()
        # A copy, for its layers are taken apart.
        whole = self.inner() if whole is None else copy.deepcopy(whole)
        self.stem, self.rest = whole.split(self.part)
        freeze(self.stem)
        self.sources = whole.sources

    def forward(self, views: Tensor) -> Tensor:
        """See :class:`Backbone`."""
        z: Tensor = self.rest(self.stem(views))
        return z

    def train(self, mode: bool = True) -> Self:
        """Switch the trained part's mode."""
        super().train(mode)
        self.stem.eval()
        return self

    @classmethod
    def load(cls, *, weights: Path | None = None, download: bool = False, seed: int = 0) -> Self:
        """The whole backbone as its own ``load`` makes it; a linear head begins orthogonal, drawn from ``seed``."""
        whole = cls.inner.load(weights=weights, download=download, seed=seed)
        if isinstance(whole, Headed):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                whole.start_orthogonal()
        return cls(whole).eval()


def freeze(module: nn.Module) -> None:
    """Make every parameter a buffer, in place: nothing trains it, and theta does not hold it."""
    for layer in module.modules():
        for name, value in list(layer.named_parameters(recurse=False)):
            delattr(layer, name)
            layer.register_buffer(name, value.detach().clone())
    module.float()  # recurrent layers keep a list of their weights, which this makes anew
    module.eval()


def names() -> tuple[str, ...]:
    """Every trainable backbone's name without a head, sorted.

    >>> "ge2e" in names()
    True
    """
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


@functools.cache
def get(name: str, part: str = "all") -> type[Backbone]:
    """The class of the backbone ``name``, e.g. ``ge2e`` or, with a head, ``ge2e+255``, of which ``part`` is trained.

    Raises:
        UnknownNameError: no such backbone.
        SettingsError: no such part.
    """
    if part not in PARTS:
        raise SettingsError(f"of a backbone one of {', '.join(PARTS)} is trained, not {part!r}")
    if part != "all":
        return _partial(get(name), part)
    with_head = _WITH_HEAD.fullmatch(name)
    bare = with_head["trunk"] if with_head else name
    if bare not in names():
        raise UnknownNameError(
            f"no backbone {name!r}; there are {', '.join(names())}, each also with a head, as in 'ge2e+255' or "
            f"'ge2e+{CENTRED}'"
        )
    found: type[Backbone] = importlib.import_module(f"{__name__}.{bare.replace('-', '_')}").BACKBONE
    return _headed(found, with_head["head"]) if with_head else found


def _headed(trunk: type[Backbone], head: str) -> type[Headed]:
    kind, size = (Centred, trunk.dimension) if head == CENTRED else (Headed, int(head))

    class Made(kind):  # type: ignore[misc, valid-type]
        inner = trunk
        name = f"{trunk.name}+{head}"
        modality = trunk.modality
        dimension = size
        preprocessing = trunk.preprocessing
        view_shape = trunk.view_shape
        dynamic_axes = trunk.dynamic_axes

    return Made


def _partial(whole: type[Backbone], trained: str) -> type[Partial]:
    class Made(Partial):
        inner = whole
        name = whole.name
        modality = whole.modality
        dimension = whole.dimension
        preprocessing = whole.preprocessing
        view_shape = whole.view_shape
        dynamic_axes = whole.dynamic_axes
        part = trained

    return Made


def parameters(module: nn.Module) -> tuple[Parameter, ...]:
    """Names and shapes in canonical order, which is that of ``named_parameters``."""
    return tuple(Parameter(name, tuple(value.shape)) for name, value in module.named_parameters())


def flatten(module: nn.Module) -> Float32:
    """All parameters as one vector, float32 (P,), in canonical order."""
    parts = [value.detach().cpu().to(torch.float32).numpy().ravel() for value in module.parameters()]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


def unflatten(module: nn.Module, theta: Float32) -> None:
    """Put ``theta``, float32 (P,), into the module. Raises :class:`UpdateRejectedError` where P differs."""
    size = sum(value.numel() for value in module.parameters())
    if theta.shape != (size,):
        raise UpdateRejectedError(f"theta has shape {theta.shape}, this backbone has {size} parameters")
    start = 0
    with torch.no_grad():
        for value in module.parameters():
            part = theta[start : start + value.numel()].reshape(tuple(value.shape))
            value.copy_(torch.from_numpy(np.array(part, np.float32)))
            start += value.numel()


def read_state(path: Path) -> dict[str, object]:
    """A checkpoint's contents, tensors and plain containers only: no code in the file can run.

    Raises:
        WeightsError: the file is not such a checkpoint.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load fails with many types that share no base class
        raise WeightsError(f"{path} is not a checkpoint of tensors ({type(error).__name__})") from error
    if not isinstance(state, dict):
        raise WeightsError(f"{path} holds a {type(state).__name__}, expected a dictionary of tensors")
    return state


def read_arrays(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Float64]:
    """The tensors of those names in a checkpoint, at its top or under ``state_dict``, float64; others are ignored.

    Raises:
        WeightsError: it is no checkpoint, or a tensor is missing, of another shape or not finite.
    """
    state = read_state(path)
    inner = state.get("state_dict")
    tensors = inner if isinstance(inner, dict) else state
    found: dict[str, Float64] = {}
    for name, shape in shapes.items():
        value = tensors.get(name)
        if not isinstance(value, Tensor) or tuple(value.shape) != shape:
            got = tuple(value.shape) if isinstance(value, Tensor) else "nothing"
            raise WeightsError(f"{path}: tensor {name} has {got}, expected {shape}")
        found[name] = value.detach().double().numpy()
        if not np.isfinite(found[name]).all():
            raise WeightsError(f"{path}: tensor {name} holds values that are not finite")
    return found


def load_tensors(module: nn.Module, state: Mapping[str, object], path: Path) -> None:
    """Copy the tensors that ``module`` has from ``state``; others are ignored, none may be missing.

    Raises:
        WeightsError: a tensor is missing, has another shape, or is not finite.
    """
    chosen: dict[str, Tensor] = {}
    for name, value in module.state_dict().items():
        if name.endswith("num_batches_tracked"):  # BatchNorm's counter, which no inference reads
            chosen[name] = value
            continue
        found = state.get(name)
        if not isinstance(found, Tensor) or found.shape != value.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else "nothing"
            raise WeightsError(f"{path}: tensor {name} has {shape}, expected {tuple(value.shape)}")
        if found.is_floating_point() and not torch.isfinite(found).all():
            raise WeightsError(f"{path}: tensor {name} holds values that are not finite")
        chosen[name] = found
    module.load_state_dict(chosen)
