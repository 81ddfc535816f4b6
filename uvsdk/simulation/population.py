"""Who takes part in a simulation and what each of them trains on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from uvsdk.arrays import Array, Int64, UInt8
from uvsdk.bundle import Bundle
from uvsdk.bundle import manifest as manifests
from uvsdk.bundle.frozen import FrozenPart, FrozenViews
from uvsdk.bundle.manifest import Manifest
from uvsdk.errors import EnrolmentError
from uvsdk.modality.contract import UNCHANGED, Augmentation
from uvsdk.training.loop import Forward, FrozenSamples, PreparedSamples, Samples, unit

Augment = Callable[[Tensor, np.random.Generator], Tensor]
"""(samples (B, ...), rng) -> training views (B, ...)."""

_EMBED_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Identity:
    """What a device says of itself when it joins, beside its mean embedding.

    Args:
        instances: uint8 (n, 32), keyed hashes of its canonical samples, sorted; (0, 32) where there are none.
        person: keyed hash that links the identities of one person; empty where there is no link.
        classes: names of the classes whose samples it holds, sorted; empty for the user alone.
    """

    instances: UInt8 = field(default_factory=lambda: np.empty((0, 32), np.uint8))
    person: str = ""
    classes: tuple[str, ...] = ()


class Population(Protocol):
    """The devices of a simulation. Their names play the part of hashed user ids."""

    @property
    def users(self) -> tuple[str, ...]:
        """Names of all devices, sorted."""
        ...

    def samples(self, user: str, /) -> Samples:
        """What that device trains on."""
        ...

    def identity(self, user: str, /) -> Identity:
        """What that device says of itself when it joins."""
        ...


@dataclass(frozen=True, slots=True)
class TensorSamples:
    """Samples that lie in one tensor: a training view is the sample itself, or ``augment`` of it."""

    features: Tensor
    classes: Int64 | None = None
    augment: Augment | None = None

    def __len__(self) -> int:
        return len(self.features)

    def views(self, batch: Sequence[int], rng: np.random.Generator, /) -> Tensor:
        """See :class:`uvsdk.training.loop.Samples`."""
        chosen = self.features.index_select(0, torch.tensor(batch))
        return chosen if self.augment is None else self.augment(chosen, rng)

    def embed(self, forward: Forward, indices: Sequence[int] | None, /) -> Tensor:
        """See :class:`uvsdk.training.loop.Samples`: a sample has one inference view, itself."""
        chosen = self.features if indices is None else self.features[torch.tensor(list(indices), dtype=torch.int64)]
        with torch.no_grad():
            return torch.cat([unit(forward(part)) for part in torch.split(chosen, _EMBED_BATCH)])


@dataclass(frozen=True, slots=True)
class Tensors:
    """Devices whose samples are tensors, as experiments on plain data sets have them.

    Args:
        features: device -> its samples, (n, ...), n >= 1; n may differ between devices.
        classes: device -> int64 (n,), the place of each sample's class among the device's own ``class_names``.
        class_names: device -> names of its classes, sorted.
        augment: makes training views of samples; none where absent.
        instances: device -> uint8 (n, 32), see :class:`Identity`.
        persons: device -> the hash that links the identities of one person.

    Raises:
        EnrolmentError: no device, a device without samples, or fields that do not belong together.
    """

    features: Mapping[str, Tensor]
    classes: Mapping[str, Int64] | None = None
    class_names: Mapping[str, tuple[str, ...]] | None = None
    augment: Augment | None = None
    instances: Mapping[str, UInt8] | None = None
    persons: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        _check_devices({user: len(rows) for user, rows in self.features.items()})
        known = set(self.features)
        for name in ("classes", "class_names", "instances", "persons"):
            strangers = set(getattr(self, name) or {}) - known
            if strangers:
                raise EnrolmentError(f"{name} names {len(strangers)} devices that have no features")
        for user, places in (self.classes or {}).items():
            if places.shape != (len(self.features[user]),):
                raise EnrolmentError(
                    f"device {user!r} has {len(self.features[user])} samples and classes of shape {places.shape}"
                )

    @property
    def users(self) -> tuple[str, ...]:
        """See :class:`Population`."""
        return tuple(sorted(self.features))

    def samples(self, user: str, /) -> TensorSamples:
        """See :class:`Population`."""
        return TensorSamples(self.features[user], (self.classes or {}).get(user), self.augment)

    def identity(self, user: str, /) -> Identity:
        """See :class:`Population`."""
        return Identity(
            (self.instances or {}).get(user, np.empty((0, 32), np.uint8)),
            (self.persons or {}).get(user, ""),
            (self.class_names or {}).get(user, ()),
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """Devices whose samples a modality has prepared: the very crops that a real device draws.

    Args:
        features: device -> its samples as :meth:`uvsdk.modality.Modality.prepare` gives them.
        manifest: names the modality and its preprocessing.
        identities: device -> what it says of itself when it joins; nothing where absent.
        augmentation: of training views; what the simulation's configuration says.

    Raises:
        EnrolmentError: no device, or a device without samples.
    """

    features: Mapping[str, Sequence[Array]]
    manifest: Manifest
    identities: Mapping[str, Identity] = field(default_factory=dict)
    augmentation: Augmentation = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_devices({user: len(rows) for user, rows in self.features.items()})

    @property
    def users(self) -> tuple[str, ...]:
        """See :class:`Population`."""
        return tuple(sorted(self.features))

    def samples(self, user: str, /) -> PreparedSamples:
        """See :class:`Population`."""
        return PreparedSamples(tuple(self.features[user]), self.manifest, augmentation=self.augmentation)

    def identity(self, user: str, /) -> Identity:
        """See :class:`Population`."""
        return self.identities.get(user, Identity())

    def __reduce__(self) -> tuple[object, ...]:
        """A manifest holds a read-only mapping, which no process can hand to another; its record can be."""
        parts = dict(self.features), manifests.encode(self.manifest), dict(self.identities), dict(self.augmentation)
        return _received, parts


@dataclass(frozen=True, slots=True)
class Frozen:
    """Devices of a model of which a part is trained, with what its frozen part made of their samples, kept in memory.

    The trunk of the simulation is then the trained part alone, e.g. ``backbone.rest``.

    Args:
        views: device -> the frozen part's outputs, one of each sample, crops included.
        identities: device -> what it says of itself when it joins; nothing where absent.
        augmentation: by which the crops were made.

    Raises:
        EnrolmentError: no device, or a device without samples.
    """

    views: Mapping[str, Sequence[FrozenViews]]
    identities: Mapping[str, Identity] = field(default_factory=dict)
    augmentation: Augmentation = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_devices({user: len(rows) for user, rows in self.views.items()})

    @classmethod
    def of(
        cls,
        features: Mapping[str, Sequence[Array]],
        bundle: Bundle,
        identities: Mapping[str, Identity] | None = None,
        *,
        augmentation: Augmentation = UNCHANGED,
    ) -> Self:
        """Devices whose samples a modality has prepared, each put through the frozen part of ``bundle`` once.

        The crops are those that a real device draws. Raises :class:`uvsdk.errors.BundleError` where nothing is frozen.
        """
        part = FrozenPart(bundle, augmentation=augmentation)
        views = {user: tuple(part(item) for item in rows) for user, rows in features.items()}
        return cls(views, identities or {}, augmentation)

    @property
    def users(self) -> tuple[str, ...]:
        """See :class:`Population`."""
        return tuple(sorted(self.views))

    def samples(self, user: str, /) -> FrozenSamples:
        """See :class:`Population`."""
        return FrozenSamples(self.views[user])

    def identity(self, user: str, /) -> Identity:
        """See :class:`Population`."""
        return self.identities.get(user, Identity())


def _received(
    features: Mapping[str, Sequence[Array]],
    record: Mapping[str, object],
    identities: Mapping[str, Identity],
    augmentation: Augmentation,
) -> Prepared:
    return Prepared(features, manifests.decode(record), identities, augmentation)


def _check_devices(counts: Mapping[str, int]) -> None:
    if not counts:
        raise EnrolmentError("a simulation needs at least one device, the population is empty")
    empty = sum(count == 0 for count in counts.values())
    if empty:
        raise EnrolmentError(f"{empty} of {len(counts)} devices have no sample; leave them out")
