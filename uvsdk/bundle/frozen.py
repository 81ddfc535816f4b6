"""What the frozen part of a model makes of a sample: computed once, and trained on in every round from then on.

Where only the head or the last block of a backbone is trained (``Manifest.train``), the layers before it are constants
of the graph, and so is what they make of a view. A new random crop in every step would be a new view each time;
instead the training views of a sample are drawn once: :data:`CROPS` crops, augmented where the configuration asks, by a
generator seeded with the digest of the sample and of the frozen part, so that they can be drawn again. Needs numpy and
onnxruntime, not torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from uvsdk import modality
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.bundle import in_batches
from uvsdk.errors import BundleError
from uvsdk.modality.contract import UNCHANGED, Augmentation
from uvsdk.system.execution import onnxruntime

CROPS = 8
"""Training views of a sample."""

OUTPUT = "frozen"
"""The name under which a bundle's embedding graph gives what its frozen part made of the views."""


@dataclass(frozen=True, slots=True)
class FrozenViews:
    """What the frozen part made of one sample.

    Args:
        inference: float32 (n, ...), of the views that inference takes, n >= 1.
        crops: float32 (K, ...), of the training views.

    Raises:
        BundleError: the two do not belong together.
    """

    inference: Float32
    crops: Float32

    def __post_init__(self) -> None:
        if not len(self.inference) or _channels(self.inference) != _channels(self.crops):
            raise BundleError(
                f"views of shape {self.inference.shape} and crops of shape {self.crops.shape} are not of one sample"
            )


def _channels(views: Float32) -> tuple[int, tuple[int, ...]]:
    """Axes and channels: of views over time the last axis is time, and inference's may be of any length."""
    return views.ndim, views.shape[1 : 2 if views.ndim == 3 else None]


class FrozenPart:
    """The frozen part of a bundle.

    Args:
        bundle: one of which only a part is trained; another theta changes nothing here.
        augmentation: of the crops, see :attr:`uvsdk.federation.messages.TrainingConfig.augmentation`.

    Raises:
        BundleError: all of the model is trained.
        SettingsError: the modality has no such settings.
    """

    def __init__(self, bundle: Bundle, *, augmentation: Augmentation = UNCHANGED) -> None:
        manifest = bundle.manifest
        if manifest.train == "all":
            raise BundleError(
                f"all of this {manifest.backbone} is trained, none of it frozen; export it with --train head or block"
            )
        self._bundle = bundle
        self._reader = modality.get(manifest.modality)
        self._options = onnxruntime.RunOptions()
        self._options.only_execute_path_to_fetches = True
        if augmentation:
            self._reader.augmenting(augmentation)
        self._augmentation = augmentation
        self.digest: str = digest(bundle, augmentation)

    def __call__(self, features: Array, *, crops: int = CROPS) -> FrozenViews:
        """What it makes of one sample; the same sample gives the same.

        Args:
            features: as the modality prepared them.
            crops: training views to draw; 0 where nothing is trained on the sample.

        Raises:
            BundleError: the features are of another model.
        """
        preprocessing = self._bundle.manifest.preprocessing
        views = np.asarray(self._reader.views(features, preprocessing), np.float32)
        seed = hashlib.sha256(f"{self.digest} {sample_digest(features)}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(seed[:16], "little"))
        drawn = [
            self._reader.training_view(features, preprocessing, rng, augmentation=self._augmentation)
            for _ in range(crops)
        ]
        # Apart, as a verification's views are: 8-bit layers round each call by the range of its own numbers.
        inference = self._run(views)
        return FrozenViews(inference, self._run(np.stack(drawn)) if drawn else inference[:0])

    def _run(self, views: Float32) -> Float32:
        session = self._bundle.session()
        try:
            parts = [session.run([OUTPUT], {"views": part}, self._options)[0] for part in in_batches(views)]
        except Exception as error:  # onnxruntime's errors share no base class
            raise BundleError(f"the graph does not take views {views.dtype} {views.shape}: {error}") from error
        return np.asarray(np.concatenate(parts), np.float32)


def digest(bundle: Bundle, augmentation: Augmentation = UNCHANGED) -> str:
    """What decides the outputs of a bundle's frozen part, hexadecimal SHA-256; the same whatever theta is."""
    manifest = bundle.manifest
    described = {"modality": manifest.modality, "preprocessing": dict(manifest.preprocessing)}
    found = hashlib.sha256(b"uvsdk frozen part 1\n")
    found.update(json.dumps(described, sort_keys=True, allow_nan=False).encode() + b"\n")
    found.update(hashlib.sha256(bundle.graphs["embedding"]).digest())
    if augmentation:
        found.update(json.dumps(dict(augmentation), sort_keys=True, allow_nan=False).encode() + b"\n")
    return found.hexdigest()


def sample_digest(features: Array) -> str:
    """Hexadecimal SHA-256 of a sample's features, dtype and shape included."""
    found = hashlib.sha256(f"{features.dtype.str} {features.shape}\n".encode())
    found.update(np.ascontiguousarray(features).data)
    return found.hexdigest()
