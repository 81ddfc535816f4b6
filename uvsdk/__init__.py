"""Verify people by voice, face or handwriting with a model that learns from all while recordings stay where they are.

Enrol with a few samples, verify with one; both run on the device, with numpy and onnxruntime, and need no server:

>>> import numpy as np
>>> import uvsdk
>>> from uvsdk.bundle import shipped
>>> y, x = np.mgrid[-1:1:32j, -1:1:32j]
>>> def ring(pen):  # a handwritten O on white paper, by a pen of that width
...     return np.where(abs(np.hypot(x, y) - 0.7) < pen, 0, 255).astype(np.uint8)
>>> bar = np.where((abs(x) < 0.2) & (abs(y) < 0.8), 0, 255).astype(np.uint8)

>>> store = uvsdk.MemoryStore()
>>> enrollment = uvsdk.enroll("ana", [ring(0.15), ring(0.20), ring(0.25)], model=shipped(), store=store)
>>> uvsdk.verify(ring(0.18), enrollment.template, model=shipped()).accepted
True
>>> uvsdk.verify(bar, store.template("ana"), model=shipped()).accepted
False

Everything this library raises on purpose is a :class:`UvsdkError`; the tree is drawn in :mod:`uvsdk.errors`. A sample
that cannot be used is an error, a person who does not match is a :class:`Decision`.

A server knows people by hashed ids only; :func:`hash_user_id` makes the one that a request to it names:

>>> uvsdk.hash_user_id("ana", deployment="clinic", pepper=bytes(range(16)))[:12]
'98de2b67f669'

Bundles are in :mod:`uvsdk.bundle`, calibration in :mod:`uvsdk.scoring`, sealing in :mod:`uvsdk.privacy`, the
algorithms in :mod:`uvsdk.federation`. Training needs the ``train`` extra; nothing imported here needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvsdk.system import offline

# The one thing that happens at import: what an application imports after this must find it said.
offline.silence()

from uvsdk.enroll import Enrollment, enroll
from uvsdk.errors import UvsdkError
from uvsdk.identify import Identification, identify
from uvsdk.privacy.identifiers import hash_user_id
from uvsdk.scoring import Decision, Quality, Threshold, fuse
from uvsdk.templates.gallery import Gallery
from uvsdk.templates.storage import MemoryStore
from uvsdk.templates.template import Template
from uvsdk.verify import verify

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle
    from uvsdk.modality import Capture, Sample
    from uvsdk.stream import VoiceStream

    __version__: str

__all__ = [
    "Bundle",
    "Capture",
    "Decision",
    "Enrollment",
    "Gallery",
    "Identification",
    "MemoryStore",
    "Quality",
    "Sample",
    "Template",
    "Threshold",
    "UvsdkError",
    "VoiceStream",
    "enroll",
    "fuse",
    "hash_user_id",
    "identify",
    "verify",
]


def __getattr__(name: str) -> object:
    # These take longer to import than all the rest together; they come when first needed.
    if name == "Bundle":
        from uvsdk.bundle import Bundle

        return Bundle
    if name in ("Capture", "Sample"):
        from uvsdk import modality

        return modality.Capture if name == "Capture" else modality.Sample
    if name == "VoiceStream":
        from uvsdk.stream import VoiceStream

        return VoiceStream
    if name == "__version__":
        from importlib.metadata import version

        return version("uvsdk")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
