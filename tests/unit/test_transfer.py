"""Every error and every record comes out of a pickle and a copy as it went in, or says why it does not travel."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
import multiprocessing
import pickle
import types
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import uvsdk
import uvsdk_device
import uvsdk_server
from tests import documented_errors
from tests.extras import WITH_TORCH, lacking
from tests.raising import raise_it
from uvsdk import MemoryStore, enroll, errors, identify, verify
from uvsdk.bundle import Bundle, shipped
from uvsdk.bundle.inference import embed
from uvsdk.bundle.manifest import Manifest, Parameter
from uvsdk.errors import NotTransferableError
from uvsdk.identify import SearchThreshold
from uvsdk.presentation.challenge import Challenges
from uvsdk.scoring import Threshold
from uvsdk.scoring.cohort import Normalisation
from uvsdk.templates.gallery import Gallery
from uvsdk.templates.template import Template
from uvsdk_device import Federation, Runtime

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {protocol}": lambda item, protocol=protocol: pickle.loads(pickle.dumps(item, protocol))
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
}


def modules() -> Iterator[types.ModuleType]:
    for package in (uvsdk, uvsdk_server, uvsdk_device):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            apart = name.startswith(WITH_TORCH) or name.endswith((".client", ".__main__"))
            if not apart and ".migrations" not in name and not lacking(path):
                yield importlib.import_module(name)


def classes() -> list[type]:
    """Every class that the packages define, once, those of one module's own use left out."""
    found = {
        kind
        for module in modules()
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__ == module.__name__ and not name.startswith("_")
    }
    return sorted(found, key=lambda kind: (kind.__module__, kind.__qualname__))


ERRORS = [kind for kind in classes() if issubclass(kind, BaseException)]
RECORDS = [kind for kind in classes() if dataclasses.is_dataclass(kind)]


def an_error(kind: type[BaseException]) -> BaseException:
    """One of that class with a value of its own in every argument, and a note."""
    values: dict[str, object] = {"measured": {"speech_s": 0.5}, "headers": {"Retry-After": "3"}, "status": 422}
    parameters = list(inspect.signature(kind).parameters.values()) if "__init__" in vars(kind) else []
    named = {item.name: values.get(item.name, 7.5 if item.annotation == "float" else item.name) for item in parameters}
    error = kind(**named) if named else kind("what happened")
    error.add_note("and where")
    return error


def state(error: BaseException) -> tuple[object, ...]:
    return type(error), str(error), error.args, error.__dict__


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_it_was(kind: type[BaseException], way: str) -> None:
    error = an_error(kind)
    again = COPIES[way](error)
    assert again is not error
    assert state(again) == state(error)


def test_an_applications_own_subclass_does_too() -> None:
    again = pickle.loads(pickle.dumps(Own("busy", 3, reason="full")))
    assert state(again) == state(Own("busy", 3, reason="full"))


class Own(errors.TooManyAttemptsError):
    def __init__(self, message: str, minutes: int, *, reason: str) -> None:
        super().__init__(f"{message}: {reason}", 60.0 * minutes)
        self.reason = reason


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_every_error_comes_out_of_a_pool() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for kind in ERRORS:
            with pytest.raises(kind) as caught:
                pool.map_async(raise_it, [an_error(kind)]).get(timeout=60)
            assert state(caught.value)[:3] == state(an_error(kind))[:3]


def test_no_error_breaks_a_process_pool() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        for kind in ERRORS:
            with pytest.raises(kind) as caught:
                executor.submit(raise_it, an_error(kind)).result(timeout=120)
            assert state(caught.value)[:3] == state(an_error(kind))[:3]
        assert executor.submit(len, "alive").result(timeout=120) == 5


def pages(person: int) -> list[np.ndarray]:
    rng = np.random.default_rng(person)
    sign = rng.uniform(4, 16, (6, 6))
    return [np.pad(sign + rng.uniform(0, 0.5, (6, 6)), 1) for _ in range(4)]


def decide(pair: tuple[np.ndarray, Template]) -> uvsdk.Decision:
    return verify(pair[0], pair[1], model=shipped())


@functools.cache
def made() -> dict[type, object]:
    """One of each record that checks or freezes what it is given, and what an application gets of the usual calls."""
    bundle, store = shipped(), MemoryStore()
    first = enroll("ada", pages(1), model=bundle, store=store)
    gallery = Gallery({"ada": first.template})
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((6, 4))
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert bundle.calibration is not None
    objects: list[object] = [
        first,
        first.template,
        Template(first.template.embedding, "m", "voice", 2, Threshold(0.5, 0.01, 300), {"speech_s": 2.5}),
        first.completeness,
        first.samples[0],
        verify(pages(1)[3], first.template, model=bundle),
        bundle.calibration,
        bundle.manifest,
        Manifest("voice", "b", 2, {"mels": 40}, (Parameter("w", (2, 3)),), ("us",)),
        Normalisation(rows, 3),
        embed(pages(1)[0], bundle),
        identify(pages(1)[0], gallery, model=bundle, threshold=SearchThreshold(0.9, 0.01, 1, 0)),
    ]
    return {type(item): item for item in objects}


def same(one: object, other: object) -> bool:
    """Equal, arrays by their numbers, and as read-only as before."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        fields = [field for field in dataclasses.fields(one) if field.compare]
        return type(one) is type(other) and all(
            same(getattr(one, field.name, None), getattr(other, field.name, None)) for field in fields
        )
    if isinstance(one, dict | types.MappingProxyType):
        assert isinstance(other, type(one))
        return set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        assert isinstance(other, type(one))
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or repr(one) == repr(other) or not _compares(one))


def _compares(item: object) -> bool:
    return type(item).__eq__ is not object.__eq__


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_record_comes_back_as_it_was(kind: type) -> None:
    record = made().get(kind)
    if record is None:
        record = filled(kind)
    for name, again in COPIES.items():
        if refuses(kind):
            with pytest.raises(NotTransferableError, match=kind.__name__):
                again(record)
        else:
            assert same(again(record), record), name


def refuses(kind: type) -> bool:
    return kind.__reduce_ex__ is not object.__reduce_ex__


def filled(kind: type) -> Any:
    """A record with something in every field, unchecked: what matters here is that what lies in it travels."""
    assert kind.__reduce__ is object.__reduce__, f"make a {kind.__name__} in made()"
    record = object.__new__(kind)
    try:
        hints = typing.get_type_hints(kind)
    except NameError:  # of torch
        hints = {}
    for field in dataclasses.fields(kind):
        value: object = _something(hints.get(field.name))
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        object.__setattr__(record, field.name, value)
    return record


def _something(hint: Any) -> object:
    plain: dict[Any, object] = {str: "word", int: 3, float: 0.5, bool: True, bytes: b"\x01", type(None): None}
    if hint in plain:
        return plain[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _something(next(item for item in arguments if item is not type(None)))
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple:
        return tuple(_something(item) for item in arguments if item is not ...)
    if (origin is not None and "NDArray" in str(hint)) or origin is np.ndarray:
        return np.arange(3, dtype=np.float32)
    if isinstance(origin, type) and issubclass(origin, dict):
        return {}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and not refuses(hint):
        return made()[hint] if hint in made() else filled(hint) if hint.__reduce__ is object.__reduce__ else None
    return None


def test_what_is_read_only_stays_so() -> None:
    template = made()[Template]
    assert isinstance(template, Template)
    for again in (copied(template) for copied in COPIES.values()):
        assert again == template
        assert hash(again) == hash(template)
        with pytest.raises(ValueError, match="read-only"):
            again.embedding[0] = 0.0
        with pytest.raises(TypeError):
            again.conditions["speech_s"] = 1.0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_templates_and_decisions_cross_a_pool() -> None:
    store = MemoryStore()
    template = enroll("ada", pages(1), model=shipped(), store=store).template
    with multiprocessing.get_context("fork").Pool(1) as pool:
        own, other = pool.map(decide, [(pages(1)[3], template), (255.0 - pages(2)[0], template)])
    assert own.accepted
    assert own.score == pytest.approx(decide((pages(1)[3], template)).score, abs=1e-6)
    assert other.score < own.score


def test_bundles_galleries_and_plain_stores_are_copied_whole() -> None:
    bundle, store = shipped(), MemoryStore()
    template = enroll("Ada", pages(1), model=bundle, store=store).template
    gallery = Gallery.from_store(store)
    for copied in COPIES.values():
        other = copied(bundle)
        assert isinstance(other, Bundle)
        assert (other.version, other.digest) == (bundle.version, bundle.digest)
        assert verify(pages(1)[3], template, model=other).accepted
        people = copied(gallery)
        assert people.users() == ("Ada",)
        assert people.search(template.embedding).candidates == gallery.search(template.embedding).candidates
        people.remove("ada")
        kept = copied(store)
        assert kept.template("ada") == template
        kept.delete("ada")
    assert gallery.users() == store.users() == ("Ada",)


def test_what_holds_a_key_or_is_open_says_where_to_make_it(tmp_path: Path) -> None:
    store = documented_errors.store(tmp_path)
    stays: list[object] = [
        store,
        store.lock(),
        Runtime(store, shipped()),
        Federation("https://h", pepper=bytes(16)),
        Challenges(),
    ]
    for item in stays:
        for copied in COPIES.values():
            with pytest.raises(NotTransferableError, match=f"a {type(item).__name__} is neither pickled nor copied: "):
                copied(item)
