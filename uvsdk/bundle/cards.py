"""Calibration cards: what was measured of pretrained weights on public data, so that a fresh export decides at once.

A card holds score distributions and the numbers of a likelihood ratio; no recording, photo or embedding of anybody. It
is found by what decides an embedding: modality, backbone, preprocessing and the weights with their checksums. Voices
were measured on read English (LibriSpeech), faces on press photos (LFW): other people, languages, microphones and
cameras score differently, so ``uvsdk calibrate`` on people of one's own should replace the card before anything depends
on its false match rates. ``examples/reproduce/calibration/make_card.py`` makes cards.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from dataclasses import replace
from typing import Final

from uvsdk import modality
from uvsdk.bundle import Bundle
from uvsdk.bundle.manifest import Manifest, encode
from uvsdk.errors import BundleError
from uvsdk.scoring import Calibration
from uvsdk.scoring.ranked import keep
from uvsdk.scoring.record import from_bytes, to_bytes

KEPT: Final = 5_000
"""Impostor values that a card keeps of each scale, the highest all of them, each with its count."""

_FOLDER = "cards"
_PREFIX = "card:"


def key(manifest: Manifest) -> str:
    """Names the card of all bundles that embed alike: 32 hexadecimal digits.

    Which parameters are trainable is left out: before any training it does not decide what the weights compute.
    """
    identity = {name: value for name, value in encode(manifest).items() if name not in ("parameters", "train")}
    return hashlib.sha256(json.dumps(identity, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]


def find(bundle: Bundle) -> Calibration | None:
    """The card of the bundle's weights, as its calibration; ``None`` where there is no card.

    Raises:
        BundleError: the card in the package is damaged.
    """
    name = key(bundle.manifest)
    path = importlib.resources.files("uvsdk") / "data" / _FOLDER / f"{name}.bin"
    if not path.is_file():
        return None
    calibration = from_bytes(path.read_bytes(), modality.get(bundle.manifest.modality).conditions)
    if calibration.model_version != _PREFIX + name or calibration.cohort is not None:
        raise BundleError(f"the calibration card {name} is not the one of that name; install uvsdk again")
    return replace(calibration, model_version=bundle.version)


def with_card(bundle: Bundle) -> Bundle:
    """The bundle with its card; the bundle itself where it is calibrated already or no card fits."""
    card = None if bundle.calibration is not None else find(bundle)
    return bundle if card is None else bundle.with_calibration(card)


def make(calibration: Calibration, manifest: Manifest) -> tuple[str, bytes]:
    """File name and bytes of the card that ``calibration`` gives; its cohort is left out and its scores are thinned.

    Raises:
        ValueError: AS-norm, which needs the cohort; or no likelihood ratio.
    """
    if calibration.ratio is None or calibration.ratio.top:
        raise ValueError("a card has a likelihood ratio that needs no cohort")
    ratios = keep(calibration.ratio.impostor, KEPT, above=calibration.ratio.above)
    scores = keep(calibration.impostor, KEPT, above=calibration.above)
    name = key(manifest)
    card = replace(
        calibration,
        impostor=scores.values,
        above=scores.above,
        model_version=_PREFIX + name,
        ratio=replace(calibration.ratio, impostor=ratios.values, above=ratios.above),
        cohort=None,
    )
    return f"{name}.bin", to_bytes(card)
