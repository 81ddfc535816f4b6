"""Which arithmetic this processor and these libraries do: equal fingerprints, equal results to the last bit."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version

import numpy as np
import torch

from uvsdk.bundle import shipped
from uvsdk.training import backbones
from uvsdk.training.export import export_bundle


@cache
def fingerprint() -> str:
    """Versions, and a hash of a little of everything that recordings are made of, the bits of its results included.

    Products of matrices in numpy; a convolution and a recurrence in torch with their gradients; the shipped model and
    an integer graph in onnxruntime.
    """
    torch.set_num_threads(1)
    parts = [np.asarray(item).tobytes() for item in (*_numpy(), *_torch(), *_onnxruntime())]
    found = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]
    names = " ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "onnxruntime", "scikit-learn"))
    return f"{found} {names}"


def _numpy() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((70, 255)), rng.standard_normal((255, 33))
    return [
        left @ right,
        left.astype(np.float32) @ right.astype(np.float32),
        np.linalg.norm(left, axis=1),
        np.exp(left) + np.sin(left),
        np.fft.rfft(left, axis=1),
        np.linalg.svd(left)[1],
    ]


def _torch() -> list[np.ndarray]:
    draw = np.random.default_rng(1)
    found = []
    for name in ("digits-cnn", "ge2e"):
        backbone = backbones.get(name).random()
        views = draw.standard_normal((4, *backbone.view_shape)).astype(np.float32)
        loss = torch.nn.functional.normalize(backbone(torch.from_numpy(views)), dim=1).square().mul(0.5).exp().sum()
        loss.backward()
        found += [
            loss.detach().numpy(),
            *(item.grad.numpy() for item in backbone.parameters() if item.grad is not None),
        ]
    return found


def _onnxruntime() -> list[np.ndarray]:
    draw = np.random.default_rng(2)
    integers = export_bundle(backbones.get("ge2e").random())  # its recurrence is quantised
    return [
        bundle.embed(draw.standard_normal((3, *backbones.get(name).view_shape)).astype(np.float32))
        for name, bundle in (("digits-cnn", shipped()), ("ge2e", integers))
    ]
