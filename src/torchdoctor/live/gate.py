"""Who may see the page: requests to the right host, from the page itself, with the token or its cookie.

Another web page in the same browser can send requests to any address. But its name for this machine is not in the list
of hosts (DNS rebinding), its origin is another one, and it has neither token nor cookie.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from email.message import Message
from urllib.parse import urlsplit

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer."""


class Gate:
    """The token of one server, and the cookie that replaces it after the first visit.

    The port of a host is not compared, because it differs over ``ssh -L``.
    """

    def __init__(self, host: str, port: int) -> None:
        self.token = secrets.token_urlsafe(16)
        self._cookie = secrets.token_urlsafe(16)
        self._name = f"torchdoctor_{port}"  # cookies are shared by all ports of a host
        self._local = is_loopback(host)
        self._names = LOOPBACK if self._local else LOOPBACK | {host.lower(), socket.gethostname().lower()}

    @property
    def cookie(self) -> str:
        """The cookie for the browser to keep."""
        return f"{self._name}={self._cookie}; HttpOnly; SameSite=Strict; Path=/"

    def knows_host(self, headers: Message) -> bool:
        """Whether the request is meant for this server and, if it states an origin, comes from its page."""
        hosts = headers.get_all("Host") or []
        if len(hosts) != 1:
            return False
        name = _name_of(hosts[0])
        if name not in self._names and (self._local or not _is_address(name)):
            return False
        origins = headers.get_all("Origin") or []
        return all(origin.lower() == f"http://{hosts[0].lower()}" for origin in origins)

    def knows_token(self, token: str) -> bool:
        """Whether this is the token."""
        return secrets.compare_digest(token.encode(errors="replace"), self.token.encode())

    def knows_cookie(self, headers: Message) -> bool:
        """Whether the browser has shown the token before."""
        for header in headers.get_all("Cookie") or []:
            for part in header.split(";"):
                name, _, value = part.strip().partition("=")
                if name == self._name:
                    return secrets.compare_digest(value.encode(errors="replace"), self._cookie.encode())
        return False


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("::1")
    (True, True, False, True)
    """
    return host in LOOPBACK or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
