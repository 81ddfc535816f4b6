"""The registry: an algorithm is a folder here, and its folder, its name and its name on the wire are one word."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping

from uvsdk.errors import SettingsError, TrainingUnavailableError, UnknownNameError
from uvsdk.federation.strategy import AnyClientAlgorithm, AnyRequestAlgorithm, AnyServerAlgorithm, Disclosure
from uvsdk.records.codec import Scalar


def names() -> tuple[str, ...]:
    """Every algorithm's name, sorted.

    >>> "fedaws" in names()
    True
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg))


def server(name: str) -> AnyServerAlgorithm:
    """The server's side of ``name``. Raises :class:`UnknownNameError`."""
    algorithm: AnyServerAlgorithm = importlib.import_module(f"{_package(name)}.server").SERVER
    return algorithm


def client(name: str) -> AnyClientAlgorithm:
    """The device's side of ``name``. Raises :class:`UnknownNameError`, or :class:`TrainingUnavailableError`
    where torch is not installed.
    """
    package = _package(name)
    if importlib.util.find_spec("torch") is None:
        raise TrainingUnavailableError("training needs torch: pip install 'uvsdk[train]'")
    algorithm: AnyClientAlgorithm = importlib.import_module(f"{package}.client").CLIENT
    return algorithm


def request(name: str) -> AnyRequestAlgorithm | None:
    """What a device of ``name`` asks for before a round; ``None`` where it asks for nothing.

    Raises :class:`UnknownNameError`.
    """
    package = _package(name)
    if importlib.util.find_spec(f"{package}.request") is None:
        return None
    algorithm: AnyRequestAlgorithm = importlib.import_module(f"{package}.request").REQUEST
    return algorithm


def disclosure(name: str) -> Disclosure:
    """What ``name`` sends and receives, from its ``payload.py``."""
    found: Disclosure = importlib.import_module(f"{_package(name)}.payload").DISCLOSURE
    return found


def settings(name: str, values: Mapping[str, Scalar]) -> object:
    """``name``'s settings with ``values`` over the defaults. Raises :class:`UnknownNameError`, ``SettingsError``."""
    kind = server(name).settings
    try:
        return kind(**values)
    except TypeError as error:
        raise SettingsError(f"settings of {name}: {error}") from error


def _package(name: str) -> str:
    if name not in names():
        raise UnknownNameError(f"no algorithm {name!r}; there are {', '.join(names())}")
    return f"{__name__}.{name}"
