"""The way to a host, as the environment describes it: through which proxy, trusting which certificates.

httpx reads the same variables. But it raises errors of several libraries for values that other programs take
(``NO_PROXY=[::1],fd00::/8``) and for those that nobody can use (a ``SSL_CERT_FILE`` that is not there, a SOCKS proxy
without what SOCKS needs). Here the first work, and the second are a ``ConnectionError`` that names the variable.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx

from uvsdk.errors import SettingsError

_TLS = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


def client(
    url: str,
    *,
    timeout: httpx.Timeout | float,
    headers: Mapping[str, str] | None = None,
    follow_redirects: bool = False,
) -> httpx.Client:
    """An HTTP client for requests to the host of ``url``.

    Args:
        url: absolute, of scheme http or https.
        timeout: as httpx takes it.
        headers: sent with every request.
        follow_redirects: whether another host may be asked in its place.

    Raises:
        ConnectionError: the environment names a proxy or certificates that cannot be used.
    """
    proxy = proxy_of(url)
    # A context takes 20 ms, and a missing SSL_CERT_FILE is no matter where nothing is encrypted.
    behind_tls = (proxy or "").startswith("https:")
    encrypted = url.startswith("https:") or follow_redirects or behind_tls
    context = _trust() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if proxy is not None and (not urlsplit(proxy).hostname or urlsplit(proxy).port == 0):
            raise ValueError("no host, or no port")
        return httpx.Client(
            timeout=timeout,
            headers=headers,
            follow_redirects=follow_redirects,
            verify=context,
            trust_env=False,
            proxy=None if proxy is None else httpx.Proxy(proxy, ssl_context=context if behind_tls else None),
        )
    # Its address may hold a password, so neither it nor what a library says of it is told.
    except ImportError:
        raise ConnectionError(
            "the environment names a SOCKS proxy (ALL_PROXY, HTTPS_PROXY), which needs: pip install 'httpx[socks]'; or "
            "list the host in NO_PROXY"
        ) from None
    except (httpx.InvalidURL, ValueError):
        raise ConnectionError(
            "the environment names a proxy whose address cannot be used (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY); correct "
            "it, e.g. http://proxy.example:3128, or list the host in NO_PROXY"
        ) from None


def listener(host: str, port: int) -> socket.socket:
    """A socket bound to the address that ``host`` and ``port`` (0 for any) name; whoever serves listens on it.

    Raises:
        SettingsError: no such address here, in use, or not allowed.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        # The protocol is named because asyncio turns Nagle's algorithm off only then (5 ms an answer, not 48).
        bound = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(f"cannot listen on {host}:{port}: {reason}") from error
    return bound


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for ``url``; ``None`` for this machine and for hosts of ``NO_PROXY``.

    A host of ``NO_PROXY`` is a name (with all names below it), an address, in brackets or not, or a range of addresses;
    a port may follow.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host):
        return None
    named = urllib.request.getproxies()
    proxy = (named.get(parts.scheme) or named.get("all") or "").strip()
    if not proxy or _in_range(host, named.get("no", "")) or urllib.request.proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine, by its address or as ``localhost``.

    >>> is_loopback("127.0.0.53"), is_loopback("::1"), is_loopback("localhost.example")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _in_range(host: str, exempt: str) -> bool:
    """Whether an entry of ``NO_PROXY`` is the address ``host`` or a range that holds it, which urllib does not know."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in exempt.replace(",", " ").split():
        bare = entry[1:].partition("]")[0] if entry.startswith("[") else entry
        try:
            if address in ipaddress.ip_network(bare, strict=False):
                return True
        except ValueError:
            continue  # a name
    return False


def _trust() -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context()
    except (OSError, ValueError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise ConnectionError(
            f"the certificates that the environment names cannot be read ({', '.join(_TLS)}): {reason}; correct or "
            "unset them"
        ) from error
