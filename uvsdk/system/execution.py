"""onnxruntime, which executes a bundle's graphs; imported here and nowhere else (:mod:`uvsdk.system.offline` says why).

>>> from uvsdk.system.execution import onnxruntime
>>> onnxruntime.SessionOptions().log_severity_level
-1
"""

from __future__ import annotations

from uvsdk.system import offline

offline.silence()

import onnxruntime  # noqa: E402 - the line above must have run

__all__ = ["onnxruntime"]
