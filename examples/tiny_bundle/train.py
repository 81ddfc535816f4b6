"""Make ``uvsdk/data/digits.uvb``, the bundle that ships with the library.

The handwriting is scikit-learn's ``load_digits`` (1,797 images of 8 x 8, ten digits; UCI, CC BY 4.0). Its writers are
not named, so the ten digits stand in for ten people: the bundle shows how the library works, it recognises nobody.
One half of the images trains the encoder, centrally; the other half gives the impostor scores. Both halves have the
same ten digits, so the scores are those of known classes and flatter.

    python examples/tiny_bundle/train.py uvsdk/data/digits.uvb

The same seed gives the same bytes under the same torch on the same kind of processor.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy, normalize, one_hot

from uvsdk.arrays import Float32, Int64
from uvsdk.bundle import Bundle
from uvsdk.scoring import Calibration
from uvsdk.training import backbones
from uvsdk.training.backbones import Backbone
from uvsdk.training.export import export_bundle

CLASSES = 10
EPOCHS = 40
BATCH = 64
# Additive-margin softmax (Wang et al. 2018): s and m.
SCALE, MARGIN = 16.0, 0.3
ENROLMENT_SAMPLES = 3
TEMPLATES_PER_CLASS = 12
KEPT_SCORES = 20_000


def main() -> None:
    """Train, calibrate, save, and print how well it separates."""
    parser = argparse.ArgumentParser(description="Train the tiny bundle that ships with the library.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(arguments.seed)
    images, digits = load_digits(return_X_y=True)
    views = (images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    chosen = halves(digits, rng)
    backbone = train(views[chosen], digits[chosen], arguments.seed)
    bundle = export_bundle(backbone)
    genuine, impostor = trials(bundle, views[~chosen], digits[~chosen], rng)
    source = (
        f"{len(impostor):,} trials on the half of scikit-learn's digits that was not trained on: templates of "
        f"{ENROLMENT_SAMPLES} images against single images of the other nine digits; the ten digits stand in for people"
    )
    calibration = Calibration.from_scores(impostor, model_version=bundle.version, source=source, kept=KEPT_SCORES)
    bundle = bundle.with_calibration(calibration)
    bundle.save(arguments.output)
    threshold = calibration.threshold(0.01)
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1e3:.0f} kB, model version {bundle.version}")
    print(f"threshold {threshold.score:.4f} at FMR 1 %: FNMR {np.mean(genuine < threshold.score):.2%}")


def halves(digits: Int64, rng: np.random.Generator) -> np.ndarray:
    """A mask that holds half of the images of every digit."""
    chosen = np.zeros(len(digits), np.bool_)
    for digit in range(CLASSES):
        members = rng.permutation(np.flatnonzero(digits == digit))
        chosen[members[: len(members) // 2]] = True
    return chosen


def train(views: Float32, digits: Int64, seed: int) -> Backbone:
    """Train digits-cnn by additive-margin softmax over the ten digits."""
    backbone = backbones.get("digits-cnn").load(seed=seed)
    backbone.sources = ("trained from nothing on scikit-learn's digits (UCI, CC BY 4.0), Apache-2.0",)
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randn(CLASSES, backbone.dimension, generator=generator).requires_grad_()
    optimiser = torch.optim.Adam([*backbone.parameters(), classes], lr=2e-3)
    inputs, targets = torch.from_numpy(views), torch.from_numpy(digits)
    backbone.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs), generator=generator).split(BATCH):
            cosine = normalize(backbone(inputs[rows])) @ normalize(classes).T
            logits = SCALE * (cosine - MARGIN * one_hot(targets[rows], CLASSES))
            optimiser.zero_grad()
            cross_entropy(logits, targets[rows]).backward()
            optimiser.step()
    return backbone.eval()


def trials(bundle: Bundle, views: Float32, digits: Int64, rng: np.random.Generator) -> tuple[Float32, Float32]:
    """Cosines of templates against all images of their own digit but the enrolled ones, and of the other digits."""
    embeddings = bundle.embed(views)
    genuine: list[Float32] = []
    impostor: list[Float32] = []
    for digit in range(CLASSES):
        members = np.flatnonzero(digits == digit)
        for _ in range(TEMPLATES_PER_CLASS):
            enrolled = rng.choice(members, ENROLMENT_SAMPLES, replace=False)
            template = embeddings[enrolled].mean(axis=0)
            scores = embeddings @ (template / np.linalg.norm(template))
            genuine.append(scores[np.setdiff1d(members, enrolled)])
            impostor.append(scores[digits != digit])
    return np.concatenate(genuine), np.concatenate(impostor)


if __name__ == "__main__":
    main()
