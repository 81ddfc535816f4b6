"""The address of a coordination server: checked when it is given, so that nothing fails by it later."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from uvsdk.errors import SettingsError
from uvsdk.system.network import is_loopback

_EXPECTED = "a server's address is https://host[:port][/prefix]"
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*\.?")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is.

    A prefix is where a proxy has put the server (``https://host/uv``). What is signed is the path below it, which is
    the path that the server serves, whether the proxy strips the prefix or the server does (its setting ``base_path``).

    Args:
        origin: ``scheme://host[:port]``, lower case, ASCII.
        prefix: empty, or a path without a slash at its end.
        loopback: whether it is this machine.
    """

    origin: str
    prefix: str
    loopback: bool

    @property
    def url(self) -> str:
        """Origin and prefix."""
        return self.origin + self.prefix

    @classmethod
    def parse(cls, text: str, *, allow_plain_http: bool = False) -> Address:
        """Read an address.

        Args:
            text: ``https://host[:port][/prefix]``; plain ``http`` only to this machine.
            allow_plain_http: to any host.

        Raises:
            SettingsError: anything else; the message never repeats a password.

        >>> Address.parse("HTTPS://Clinic.Example/uv/").url
        'https://clinic.example/uv'
        """
        if not isinstance(text, str) or not text.isprintable() or any(letter.isspace() for letter in text):
            raise SettingsError(f"{_EXPECTED}; it holds no space, line break or other unprintable character")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise SettingsError(f"{_EXPECTED}; the host or the port of this one cannot be read") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or "?" in text or "#" in text:
            raise SettingsError(f"{_EXPECTED}; give one without query or fragment")
        if "@" in parts.netloc:
            raise SettingsError("a server's address holds no user name or password; use an enrolment token")
        if port == 0:
            raise SettingsError(f"{_EXPECTED}; nothing listens on port 0")
        host, prefix = _host(parts.hostname, bracketed="[" in parts.netloc), parts.path.rstrip("/")
        if not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/")):
            raise SettingsError(f"{_EXPECTED}; a prefix is made of letters, digits, '.', '_', '~' and '-'")
        loopback = is_loopback(host)
        if parts.scheme == "http" and not loopback and not allow_plain_http:
            raise SettingsError(
                f"plain http to {host} would show who talks to whom; use https, or allow it by name "
                "(allow_plain_http, --allow-plain-http) where the network encrypts"
            )
        shown = f"[{host}]" if ":" in host else host
        return cls(f"{parts.scheme}://{shown}" + ("" if port is None else f":{port}"), prefix, loopback)


def _host(text: str, *, bracketed: bool) -> str:
    """A name in ASCII (IDNA) or an address, as it goes over the wire."""
    try:
        if bracketed:
            return str(ipaddress.IPv6Address(text.replace("%", "zone")))  # an interface is of one machine only
        host = httpx.URL(f"https://{text}/").raw_host.decode("ascii").lower()
    except (httpx.InvalidURL, ValueError) as error:
        raise SettingsError(f"{_EXPECTED}; the host of this one is neither a name nor an address") from error
    if not _NAME.fullmatch(host):
        raise SettingsError(f"{_EXPECTED}; the host of this one is neither a name nor an address")
    return host
