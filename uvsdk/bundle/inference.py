"""From a sample to its embedding, by the one path that enrolment, verification, server and agent all take."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from uvsdk.arrays import Array, Float32
from uvsdk.scoring import Quality
from uvsdk.system.forking import in_child_of_this_module, steady

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle
    from uvsdk.modality import Capture, Captured, Sample

CACHED_BUNDLES: Final = 4
"""Bundles opened by path that stay open, least recently used first to go."""

_cache: OrderedDict[tuple[str, int, int], Bundle] = OrderedDict()
_cache_lock = threading.Lock()


def _renew() -> None:
    global _cache_lock
    _cache_lock = threading.Lock()


in_child_of_this_module(_renew)


@dataclass(frozen=True, slots=True)
class Embedded:
    """One sample's way through the model.

    Args:
        embedding: float32 (d,), unit norm.
        features: what the modality made of the sample; training and re-embedding start from it.
        quality: what was measured on the way.
        timings_s: seconds of ``decode``, ``detect``, ``features`` and ``model``, and of each ``check:NAME``.
        captured: the decoded sample, for presentation attack detectors; never stored.
    """

    embedding: Float32
    features: Array
    quality: Quality
    timings_s: dict[str, float]
    captured: Captured | None = None


def open_bundle(model: Bundle | str | os.PathLike[str]) -> Bundle:
    """The bundle itself, or the one at a path, opened once until the file's time or size changes.

    Raises:
        BundleError: cannot be read, or is no bundle.
    """
    # onnxruntime takes a good part of a second to import, so `import uvsdk` leaves it until a model is needed.
    with steady():
        from uvsdk.bundle import Bundle

    if isinstance(model, Bundle):
        return model
    if not isinstance(model, str | os.PathLike):
        raise TypeError(f"a model is a Bundle or the path of one, got {type(model).__name__}")
    path = Path(model)
    try:
        state = path.stat()
    except OSError:
        return Bundle.open(path)  # which says what is wrong with the path
    key = (str(path.resolve()), state.st_mtime_ns, state.st_size)
    with _cache_lock:
        if key not in _cache:
            bundle = Bundle.open(path)
            _cache[key] = bundle
            while len(_cache) > CACHED_BUNDLES:
                _cache.popitem(last=False)
        _cache.move_to_end(key)
        return _cache[key]


def embed(sample: Sample, bundle: Bundle, *, capture: Capture | None = None) -> Embedded:
    """Decode, measure, detect, extract and embed one sample.

    Args:
        sample: in any form the modality reads.
        bundle: the model.
        capture: how the sample is taken; ``None`` for the defaults.

    Raises:
        SampleError: it cannot be used; the subclass and the message say why.
        BundleError: the bundle does not fit its own modality.
    """
    with steady():
        from uvsdk import modality
        from uvsdk.bundle.bundle import direction
        from uvsdk.modality.contract import OpenedGraph

    reader = modality.get(bundle.manifest.modality)
    asked = capture or modality.Capture()
    prepared = reader.prepare(sample, bundle, capture=asked)
    start = time.perf_counter()
    rows, spans = bundle.embed_with_spans(reader.views(prepared.features, bundle.manifest.preprocessing))
    embedding = direction(rows)
    timings_s = {**prepared.timings_s, "model": time.perf_counter() - start}
    quality = prepared.quality if prepared.review is None else prepared.review(rows, spans)
    for name in sorted(reader.checks.keys() & bundle.graphs.keys()):
        start = time.perf_counter()
        quality = reader.checks[name](prepared.captured, OpenedGraph(bundle, name), quality, asked.quality)
        timings_s[f"check:{name}"] = time.perf_counter() - start
    return Embedded(embedding, prepared.features, quality, timings_s, prepared.captured)
