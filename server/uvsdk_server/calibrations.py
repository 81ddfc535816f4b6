"""Bundles and calibrations as the server keeps them: sealed, so that whoever can write the folder or the database and
does not have the key can exchange none of them.
"""

from __future__ import annotations

from typing import Final

from uvsdk import modality
from uvsdk.bundle import Bundle
from uvsdk.scoring import Calibration
from uvsdk.scoring.record import calibration_bytes, read_calibration
from uvsdk_server.keys import AtRest

BASE: Final = "model/base"
CALIBRATION: Final = "model/calibration/"


def seal_base(bundle: Bundle, at_rest: AtRest) -> bytes:
    """Graphs, preprocessing and detector: all of a model but its parameters and its calibration."""
    return at_rest.seal(bundle.with_calibration(None).to_bytes(), BASE)


def open_base(data: bytes, at_rest: AtRest) -> Bundle:
    """The inverse of :func:`seal_base`. Raises :class:`StoreError` where it was sealed by nobody here."""
    return Bundle.from_bytes(at_rest.open(data, BASE))


def seal_calibration(calibration: Calibration, at_rest: AtRest) -> bytes:
    """A calibration, bound to its model version."""
    return at_rest.seal(calibration_bytes(calibration), f"{CALIBRATION}{calibration.model_version}")


def open_calibration(data: bytes, at_rest: AtRest, bundle: Bundle, *, source: str) -> Calibration:
    """The inverse of :func:`seal_calibration`, for ``bundle``. Raises :class:`StoreError`, :class:`BundleError`."""
    kept = at_rest.open(data, f"{CALIBRATION}{bundle.version}")
    conditions = modality.get(bundle.manifest.modality).conditions
    return read_calibration(kept, model_version=bundle.version, source=source, conditions=conditions)
