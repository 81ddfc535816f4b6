"""What must be said before a dependency is imported, so that "offline" holds for it too.

From 1.29 on, official builds of onnxruntime report to their vendor: the import alone writes a device id and a database
of events into the home folder, and seconds later a thread resolves and calls the vendor's host. The environment
variable :data:`SWITCH` turns all of it off, but only before the import; afterwards no more than further events can be
stopped (onnxruntime, ``docs/Privacy.md``). Therefore ``import uvsdk`` sets it, for this process and those it starts.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from typing import Final

SWITCH: Final = "ORT_DISABLE_TELEMETRY"
"""Read by onnxruntime once, when it is imported. Older builds and those without telemetry ignore it."""

_OFF = frozenset({"1", "true", "yes", "on"})
_REPORTS_SINCE = (1, 29)


def silence() -> None:
    """Turn off what onnxruntime reports, whatever the environment says.

    Warns:
        RuntimeWarning: the application imported a reporting onnxruntime before uvsdk, without the switch.
    """
    said_before = os.environ.get(SWITCH, "").strip().lower() in _OFF
    os.environ[SWITCH] = "1"
    imported = sys.modules.get("onnxruntime")
    if imported is None or said_before or _version(getattr(imported, "__version__", "")) < _REPORTS_SINCE:
        return
    with contextlib.suppress(AttributeError):  # an import that failed half-way
        imported.disable_telemetry_events()
    warnings.warn(
        "onnxruntime was imported before uvsdk and reports to its vendor by default; further events are off now, but "
        "its device id is written and its start may be sent. Import uvsdk first, or set "
        f"{SWITCH}=1 before the program starts",
        RuntimeWarning,
        stacklevel=3,
    )


def _version(text: str) -> tuple[int, ...]:
    """``1.29.0rc1`` -> ``(1, 29, 0)``."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
