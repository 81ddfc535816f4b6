"""By which names this server is called: what a device's signatures may be for.

A device signs the name by which it calls the server. A stranger whom a device takes for the server, and who passes its
requests on, is called by another name, so what it passes on is refused.
"""

from __future__ import annotations

import re
from typing import Final

from uvsdk.errors import SettingsError
from uvsdk.system.network import is_loopback

LIMIT: Final = 16
"""Names of one server: a signature is tried with each of them."""

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9._-]*[a-z0-9])?)(:[0-9]{1,5})?")


class Authorities:
    """The names of one server.

    Args:
        names: ``host`` or ``host:port`` as devices call it; a proxy may then make of the Host header what it likes.
            Empty for a server that is called directly: it then goes by its own address and by this machine's.
        host: the address that it listens on.
    """

    def __init__(self, names: tuple[str, ...], host: str) -> None:
        self._names = names
        self._host = host.lower()

    def possible(self, host_header: str) -> tuple[str, ...]:
        """What a device that sent ``host_header``, or whose proxy did, may have called this server; empty for nothing.

        >>> Authorities((), "127.0.0.1").possible("localhost:8080")
        ('localhost:8080',)
        >>> Authorities((), "127.0.0.1").possible("clinic.example")
        ()
        >>> Authorities(("clinic.example",), "127.0.0.1").possible("127.0.0.1:8080")
        ('clinic.example',)
        """
        if self._names:
            return self._names
        called = host_header.strip().lower()
        if not _AUTHORITY.fullmatch(called):
            return ()
        host = host_of(called)
        return (called,) if is_loopback(host) or host == self._host else ()


def normalise(name: str) -> str:
    """A name as it is compared: lower case. Raises :class:`SettingsError`."""
    lower = name.strip().lower()
    if not _AUTHORITY.fullmatch(lower):
        raise SettingsError(f"{name!r} is no name of a server; give host or host:port, without https:// and without /")
    return lower


def host_of(authority: str) -> str:
    """The host of ``host:port``.

    >>> host_of("[::1]:8080"), host_of("clinic.example")
    ('::1', 'clinic.example')
    """
    if authority.startswith("["):
        return authority[1 : authority.index("]")]
    return authority.partition(":")[0]
