"""How the activations of CAM++ lie, by which its integer graph gives codes.

Measured once (tests/benchmarks/voice, ``measure_ranges.py``); they ship as ``data/campplus_ranges.npz``.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from uvsdk.arrays import Float32, Float64

MELS = 80
CHANNELS = 32
"""Of the front end, and what a layer of a block adds."""
BOTTLENECK = 128
BLOCKS = ((12, 1), (24, 2), (16, 2))
SEGMENT = 100
STATISTICS = 1024
STRIDES = (2, 1, 2, 1)
"""Of the front end's four residuals, over mels."""
# The part of the measured reach that gets codes: of the front end, whose rarest peaks are cut, of the bottlenecks, and
# of what every later layer hears, which other speech takes further than what was measured. Chosen by the cosine to
# float on letters and digits of speakers on whom nothing was measured (tests/benchmarks/voice, ``choose_reach.py``).
_FRONT, _NARROW, _ROWS = 0.85, 1.3, 2.0

State = Mapping[str, Float32]
"""The frozen layers' tensors by name, as a backbone of which the head is trained holds them."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """How far activations reach.

    Args:
        low: the lowest value of each channel by the name of its tensor, float64 (channels,).
        high: the highest.
        weights: :func:`digest` of the layers they belong to.
        source: on which recordings they were measured.
        mean: of each channel that enters a convolution, by the convolution's name, float64 (channels,); biases are not
            corrected where there is none.
        left: how far the graph's statistics lie above the float network's on average, float64 (1024,).
    """

    low: Mapping[str, Float64]
    high: Mapping[str, Float64]
    weights: str
    source: str
    mean: Mapping[str, Float64] = field(default_factory=dict)
    left: Float64 = field(default_factory=lambda: np.zeros(STATISTICS))


def measured() -> dict[str, int]:
    """The tensors whose reach has to be known, in order, and their channels.

    Each is the output of the layer of :class:`uvsdk.training.backbones.campplus.CamPlusPlus` that has its name.
    """
    found = {"views": 1, "front.first": CHANNELS}
    for place in range(len(STRIDES)):
        here = f"front.residuals.{place}"
        parts = ("first", "second", "shortcut") if STRIDES[place] > 1 else ("first", "second")
        found |= {f"{here}.{part}": CHANNELS for part in parts} | {here: CHANNELS}
    found |= {"front.last": CHANNELS, "tdnn": BOTTLENECK}
    channels = BOTTLENECK
    for stage, (layers, _) in enumerate(BLOCKS):
        for layer in range(layers):
            here = f"stages.{stage}.0.{layer}"
            found |= {f"{here}.bottleneck": BOTTLENECK, here: CHANNELS}
        channels = (channels + layers * CHANNELS) // 2
        if stage + 1 < len(BLOCKS):
            found[f"stages.{stage}"] = channels
    return found


def heard() -> dict[str, int]:
    """The convolutions whose inputs' means have to be known, in order, and the channels of those.

    Each is a layer of :class:`uvsdk.training.backbones.campplus.CamPlusPlus`. What enters the first, a recording's
    frames less their mean, has none.
    """
    found: dict[str, int] = {}
    for place, stride in enumerate(STRIDES):
        parts = ("first", "second", "shortcut") if stride > 1 else ("first", "second")
        found |= {f"front.residuals.{place}.{part}": CHANNELS for part in parts}
    found |= {"front.last": CHANNELS, "tdnn": CHANNELS * MELS // 8}
    channels = BOTTLENECK
    for stage, (layers, _) in enumerate(BLOCKS):
        for layer in range(layers):
            here = f"stages.{stage}.0.{layer}"
            found |= {f"{here}.bottleneck": channels + layer * CHANNELS, f"{here}.local": BOTTLENECK}
        channels += layers * CHANNELS
        found[f"stages.{stage}.1.linear"] = channels
        channels //= 2
    return found


def digest(state: State) -> str:
    """Hexadecimal SHA-256 of the frozen layers, in the order of their names."""
    found = hashlib.sha256(b"uvsdk campplus 1\n")
    for name in sorted(state):
        found.update(f"{name} {state[name].shape}\n".encode())
        found.update(np.ascontiguousarray(state[name], "<f4").data)
    return found.hexdigest()


def shipped_ranges() -> Ranges:
    """The ranges that come with the package."""
    path = importlib.resources.files("uvsdk") / "data" / "campplus_ranges.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        low, high, mean, left = (np.asarray(archive[name], np.float64) for name in ("low", "high", "mean", "left"))
        weights, source = str(archive["weights"]), str(archive["source"])
    return ranges_of(low, high, mean, left, weights=weights, source=source)


def ranges_of(
    low: Float64,
    high: Float64,
    mean: Float64 | None = None,
    left: Float64 | None = None,
    *,
    weights: str,
    source: str,
) -> Ranges:
    """The reach that gets codes, and means by their names, from what was measured.

    Args:
        low: float64 (channels of all :func:`measured` tensors,).
        high: the same.
        mean: float64 (channels of what enters all :func:`heard` convolutions,).
        left: float64 (1024,).
        weights: see :class:`Ranges`.
        source: the same.
    """
    sizes = measured()
    ends = np.cumsum(list(sizes.values()))[:-1]
    lows, highs = (dict(zip(sizes, np.split(reach, ends), strict=True)) for reach in (low, high))
    for name in sizes:
        if name == "views":
            continue
        if name.startswith("front") or name.endswith("bottleneck"):
            part = _FRONT if name.startswith("front") else _NARROW
            lows[name], highs[name] = part * lows[name], part * highs[name]
        else:
            spare = (_ROWS - 1) / 2 * (highs[name] - lows[name])
            lows[name], highs[name] = lows[name] - spare, highs[name] + spare
    means = (
        {} if mean is None else dict(zip(heard(), np.split(mean, np.cumsum(list(heard().values()))[:-1]), strict=True))
    )
    return Ranges(lows, highs, weights, source, means, np.zeros(STATISTICS) if left is None else left)
