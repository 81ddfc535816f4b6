"""Where enrolments are kept between calls.

:class:`MemoryStore` forgets everything when the process ends; the encrypted store on disk is the device runtime's.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from uvsdk.arrays import Array
from uvsdk.errors import UnknownUserError
from uvsdk.privacy.identifiers import canonical_user_id
from uvsdk.template import Template


class Store(Protocol):
    """What :func:`uvsdk.enroll` writes to.

    Ids that differ in case or Unicode composition only are one person, as they are for a server
    (:func:`uvsdk.privacy.identifiers.canonical_user_id`); an id that is empty or not valid Unicode is a
    ``SettingsError``.

    Features are kept beside the template because a newer model re-embeds from them and local training learns from
    them; they are as personal as the samples and an implementation on disk must encrypt them.
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


class MemoryStore:
    """A store for tests and first steps: unencrypted in this process, gone at its end. Safe to share by threads."""

    __slots__ = ("_enrolments", "_lock")

    def __init__(self) -> None:
        self._enrolments: dict[str, tuple[str, Template, tuple[Array, ...]]] = {}
        self._lock = threading.Lock()

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


def _unknown() -> UnknownUserError:
    return UnknownUserError("nobody of that name is enrolled in this store; call enroll() first")


__all__ = ["MemoryStore", "Store"]
