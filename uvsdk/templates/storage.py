"""Where enrolments are kept between calls.

:class:`MemoryStore` forgets everything when the process ends; the encrypted store on disk is the device runtime's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from uvsdk.arrays import Array, Bool
from uvsdk.errors import StoreError, UnknownUserError, UvsdkError
from uvsdk.privacy.identifiers import canonical_user_id
from uvsdk.scoring.conditions import Conditions
from uvsdk.system.forking import in_child
from uvsdk.templates.template import Template

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle


class Store(Protocol):
    """What :func:`uvsdk.enroll` writes to.

    Ids that differ in case or Unicode composition only are one person, as they are for a server
    (:func:`uvsdk.privacy.identifiers.canonical_user_id`); an id that is empty or not valid Unicode is a
    ``SettingsError``.

    Features are kept beside the template because a newer model re-embeds from them and local training learns from
    them; they are as personal as the samples and an implementation on disk must encrypt them.

    A store that several threads or processes write is a :class:`LockingStore` as well.
    """

    def save_enrolment(self, user_id: str, template: Template, features: Sequence[Array]) -> None:
        """Keep both in one step, replacing what was there; after a failure the previous enrolment is intact.

        Raises:
            StoreError: it cannot be written (locked, full).
        """
        ...

    def template(self, user_id: str) -> Template:
        """The template. Raises :class:`UnknownUserError` where nobody of that name is enrolled."""
        ...

    def features(self, user_id: str) -> tuple[Array, ...]:
        """One array per accepted sample, in order. Raises :class:`UnknownUserError`."""
        ...

    def delete(self, user_id: str) -> None:
        """Forget template and features. Raises :class:`UnknownUserError`."""
        ...

    def users(self) -> tuple[str, ...]:
        """Everyone enrolled, spelled as when they last were, sorted."""
        ...


@runtime_checkable
class LockingStore(Protocol):
    """A :class:`Store` whose other writers can be kept out for a moment: ``with store.lock(): ...``."""

    def lock(self) -> AbstractContextManager[object]:
        """Held while an enrolment is written and read back; the thread that holds it may take it again."""
        ...


@runtime_checkable
class ChecksModels(Protocol):
    """A store that remembers which models it works with, so that one exchanged on the disk is noticed."""

    def check_model(self, bundle: Bundle) -> bool:
        """Whether it works with ``bundle``; false before the first. Raises ``ExchangedBundleError``."""
        ...

    def accept_model(self, bundle: Bundle) -> None:
        """Work with ``bundle`` from now on."""
        ...


@runtime_checkable
class KnowsTraining(Protocol):
    """A store that remembers which samples took part in training, for what a model makes of those tells nothing of
    fresh ones."""

    def fresh_samples(self, user_id: str, features: Sequence[Array], model_version: str) -> Bool:
        """bool (n,): which of a user's ``features`` that model was made without."""
        ...


@runtime_checkable
class KeepsConditions(Protocol):
    """A store that keeps under which conditions each sample was taken, so that an evaluation counts it among its like.

    Elsewhere a template's averages stand for all of its samples.
    """

    def save_enrolment(
        self, user_id: str, template: Template, features: Sequence[Array], conditions: Sequence[Conditions] = ()
    ) -> None:
        """As :meth:`Store.save_enrolment`, in the same step; ``conditions`` of each sample, or none."""
        ...

    def conditions(self, user_id: str) -> tuple[Conditions, ...]:
        """Of each sample, in order; empty where none were kept. Raises :class:`UnknownUserError`."""
        ...


class MemoryStore:
    """A store for tests and first steps: unencrypted in this process, gone at its end. Safe to share by threads.

    A process that gets it by fork or pickle has a copy, which goes its own way.
    """

    __slots__ = ("__weakref__", "_enrolments", "_lock")

    def __init__(self) -> None:
        self._enrolments: dict[str, tuple[str, Template, tuple[Array, ...]]] = {}
        self._renew()
        in_child(self, MemoryStore._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[object, ...]:
        with self._lock:
            return _memory_store, (type(self), dict(self._enrolments))

    def lock(self) -> AbstractContextManager[object]:
        """Keeps other threads from writing: ``with store.lock(): ...``."""
        return self._lock

    def save_enrolment(self, user_id: str, template: Template, features: Sequence[Array]) -> None:
        """Keep both in one step, replacing what was there; arrays are copied."""
        copies = tuple(array.copy() for array in features)
        for array in copies:
            array.flags.writeable = False
        with self._lock:
            self._enrolments[canonical_user_id(user_id)] = (user_id, template, copies)

    def template(self, user_id: str) -> Template:
        """The template. Raises :class:`UnknownUserError`."""
        return self._enrolment(user_id)[1]

    def features(self, user_id: str) -> tuple[Array, ...]:
        """One read-only array per accepted sample, in order. Raises :class:`UnknownUserError`."""
        return self._enrolment(user_id)[2]

    def delete(self, user_id: str) -> None:
        """Forget template and features. Raises :class:`UnknownUserError`."""
        with self._lock:
            if self._enrolments.pop(canonical_user_id(user_id), None) is None:
                raise _unknown()

    def users(self) -> tuple[str, ...]:
        """Everyone enrolled, sorted."""
        with self._lock:
            return tuple(sorted(user_id for user_id, _, _ in self._enrolments.values()))

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._enrolments)} users)"

    def _enrolment(self, user_id: str) -> tuple[str, Template, tuple[Array, ...]]:
        name = canonical_user_id(user_id)
        with self._lock:
            if name not in self._enrolments:
                raise _unknown()
            return self._enrolments[name]


def _memory_store(
    kind: type[MemoryStore], enrolments: dict[str, tuple[str, Template, tuple[Array, ...]]]
) -> MemoryStore:
    store = kind()
    for user_id, template, features in enrolments.values():
        MemoryStore.save_enrolment(store, user_id, template, features)
    return store


def lock_of(store: Store) -> AbstractContextManager[object]:
    """``store.lock()`` where it has one."""
    return store.lock() if isinstance(store, LockingStore) else contextlib.nullcontext()


def save_and_read_back(
    store: Store,
    user_id: str,
    template: Template,
    features: Sequence[Array],
    conditions: Sequence[Conditions] = (),
) -> None:
    """Keep an enrolment and read it again, so that what is said to be stored can be verified with.

    Any store is held to this: where the enrolment does not come back as it was, the earlier one is put in its place
    (or, for somebody new, nothing is left).

    Raises:
        StoreError: it cannot be written; or it reads as something else, or not at all.
    """
    with lock_of(store):
        earlier = _enrolment(store, user_id)
        _save(store, user_id, template, features, conditions)
        cause: Exception | None = None
        try:
            if store.template(user_id) == template and same_arrays(store.features(user_id), features):
                return
        except Exception as error:  # noqa: BLE001 - a store that anybody wrote fails in any way
            cause = error
        state = _put_back(store, user_id, earlier)
    reason = "reads as something else" if cause is None else f"does not read back: {cause}"
    raise StoreError(f"what {type(store).__name__} wrote of the enrolment {reason}. {state}") from cause


def same_arrays(some: Sequence[Array], others: Sequence[Array]) -> bool:
    """Whether two rows of arrays hold the same numbers in the same types, whatever their byte order."""
    return len(some) == len(others) and all(
        one.dtype.newbyteorder("<") == other.dtype.newbyteorder("<")
        and one.shape == other.shape
        # Bytes, so that a NaN is equal to itself.
        and one.astype(one.dtype.newbyteorder("<")).tobytes() == other.astype(other.dtype.newbyteorder("<")).tobytes()
        for one, other in zip(some, others, strict=True)
    )


def conditions_in(store: Store, user_id: str) -> tuple[Conditions, ...]:
    """Of each sample of the enrolment; empty where the store keeps none. Raises :class:`UnknownUserError`."""
    return store.conditions(user_id) if isinstance(store, KeepsConditions) else ()


_Kept: TypeAlias = tuple[Template, tuple[Array, ...], tuple[Conditions, ...]]


def _save(
    store: Store, user_id: str, template: Template, features: Sequence[Array], conditions: Sequence[Conditions]
) -> None:
    if isinstance(store, KeepsConditions):
        store.save_enrolment(user_id, template, features, conditions)
    else:
        store.save_enrolment(user_id, template, features)


def _enrolment(store: Store, user_id: str) -> _Kept | None:
    """What is to be put back; features that are damaged already are not, and the template alone verifies."""
    try:
        template = store.template(user_id)
    except UnknownUserError:
        return None
    try:
        return template, tuple(store.features(user_id)), conditions_in(store, user_id)
    except UvsdkError:
        return template, (), ()


def _put_back(store: Store, user_id: str, earlier: _Kept | None) -> str:
    """Undo the writing; what is there now, in words."""
    try:
        if earlier is None:
            with contextlib.suppress(UnknownUserError):
                store.delete(user_id)
            return "Nothing is stored of this person; use another store"
        _save(store, user_id, *earlier)
        if store.template(user_id) == earlier[0]:
            return "The earlier enrolment is in place again; use another store"
    except Exception:  # noqa: BLE001 - the same store; the first failure is the one that is reported
        return "Putting the earlier state back failed as well: enrol again with another store"
    return "Nor could the earlier state be put back: enrol again with another store"


def _unknown() -> UnknownUserError:
    return UnknownUserError("nobody of that name is enrolled in this store; call enroll() first")
