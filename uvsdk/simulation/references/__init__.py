"""What federated methods are compared with: everything pooled, nothing shared."""

from __future__ import annotations

import pkgutil


def names() -> tuple[str, ...]:
    """Every reference's name, sorted: a module of this package each.

    >>> "central_softmax" in names()
    True
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
