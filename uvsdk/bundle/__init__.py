"""A model as one file, and what runs it: everything an edge device needs, with numpy and onnxruntime alone.

Rooms: :mod:`~uvsdk.bundle.bundle` (the model) · :mod:`~uvsdk.bundle.manifest` (what it says of itself) ·
:mod:`~uvsdk.bundle.archive` and :mod:`~uvsdk.bundle.contents` (its members) · :mod:`~uvsdk.bundle.inference` (from a
sample to its embedding) · :mod:`~uvsdk.bundle.frozen` (the layers that training leaves alone) ·
:mod:`~uvsdk.bundle.cards` (calibration of pretrained weights).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uvsdk.bundle.bundle import Bundle, shipped

__all__ = ["Bundle", "shipped"]


def __getattr__(name: str) -> object:
    # onnxruntime comes with these, and `import uvsdk` is to do without it.
    if name in __all__:
        from uvsdk.bundle import bundle

        return getattr(bundle, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
