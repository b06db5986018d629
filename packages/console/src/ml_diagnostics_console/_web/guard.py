"""Which requests are answered: a pure table over method and headers, checked before routing.

A page on loopback can be reached by any web page that the user opens: by requests to its port, and by a name that an
attacker's DNS server points to this machine. Browsers mark such requests; all others are from the user's own programs.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["SECURITY_HEADERS", "SPEEDSCOPE_POLICY", "Guard", "Token"]

Headers = Sequence[tuple[bytes, bytes]]

_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "frame-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


def _policy_text(**changed: str) -> str:
    changes = {name.replace("_", "-"): value for name, value in changed.items()}
    return "; ".join(f"{name} {value}" for name, value in {**_POLICY, **changes}.items())


SECURITY_HEADERS: Final = {
    "content-security-policy": _policy_text(),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every answer."""

SPEEDSCOPE_POLICY: Final = _policy_text(script_src="'self' 'wasm-unsafe-eval'", style_src="'self' 'unsafe-inline'")
"""The policy of speedscope's own page: it has `<style>` elements and WebAssembly. It tries `eval`, in vain."""

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)(?::([0-9]{1,5}))?")
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_METHODS: Final = ("GET", "HEAD")
_OWN_SITES: Final = ("none", "same-origin")
_TOKEN_BYTES: Final = 32
_PASTE: Final = "open the address from the terminal by pasting it into the address bar"


@dataclass(frozen=True, slots=True)
class Guard:
    """Reject requests that a foreign web page may have caused.

    The port of the `Host` header is not compared: through a forwarded port, as by `ssh -L`, the browser sends another
    one than this server has, and an attacker's page can choose only names.

    Attributes:
        names: Further host names that are ours, in lower case; IPv6 addresses in brackets. Loopback always is.
        allows_addresses: True if any IP address is ours, for a server on all interfaces; names can be pointed to this
            machine by anyone, addresses cannot.
    """

    names: frozenset[str] = field(default_factory=frozenset)
    allows_addresses: bool = False

    def refusal(self, method: str, headers: Headers) -> str:
        """Return why a request is refused, as a sentence; empty if it is answered.

        Args:
            method: The method of HTTP.
            headers: The headers, with names in lower case.
        """
        if method not in _METHODS:
            return (
                f"the method {_ascii(method)} is refused: nothing can be changed here, only GET and HEAD are answered"
            )
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return f"the Host header {_ascii(', '.join(hosts))} is not an address of this server; {_PASTE}"
        origins = _values(headers, b"origin")
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            return f"a request of another page, {_ascii(', '.join(origins))}, is refused"
        sites = _values(headers, b"sec-fetch-site")
        if any(site not in _OWN_SITES for site in sites):
            return f"a request of another page ({_ascii(', '.join(sites))}) is refused; {_PASTE}"
        return ""

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None or (found[2] and not 0 < int(found[2]) < 65536):
            return False
        name = found[1]
        return name in _LOOPBACK_NAMES or name in self.names or (self.allows_addresses and _is_address(name))


class Token:
    """The secret that a server beyond loopback asks for.

    It is printed once, in the fragment of the URL, which browsers do not send; the page sends it in the Authorization
    header, and receives a cookie that its scripts cannot read.

    Args:
        text: The token; empty for a new one of 32 random bytes.
        port: The port; cookies of one host are shared by all of its ports, so the name has it.
    """

    def __init__(self, text: str = "", port: int = 0) -> None:
        self.text = text or secrets.token_urlsafe(_TOKEN_BYTES)
        self._cookie = f"mldiagnostics_{port}"

    @property
    def cookie(self) -> str:
        """The value of a Set-Cookie header."""
        return f"{self._cookie}={self.text}; HttpOnly; SameSite=Strict; Path=/"

    def is_in_authorization(self, headers: Headers) -> bool:
        """Return True if the Authorization header has the token."""
        return self._matches([value.removeprefix("Bearer ") for value in _values(headers, b"authorization")])

    def is_in_cookie(self, headers: Headers) -> bool:
        """Return True if the cookie has the token."""
        # Not by http.cookies: it reads none at all after one that another server on this host wrote in its own way.
        pairs = (pair.partition("=") for value in _values(headers, b"cookie") for pair in value.split(";"))
        return self._matches([value.strip() for name, _, value in pairs if name.strip() == self._cookie])

    def _matches(self, candidates: Iterable[str]) -> bool:
        expected = self.text.encode()
        return any(hmac.compare_digest(expected, candidate.encode("utf-8", "replace")) for candidate in candidates)


def _values(headers: Headers, name: bytes) -> list[str]:
    """Return the values of a header; host names and such are compared in lower case, secrets are not."""
    values = [value.decode("latin-1").strip() for key, value in headers if key == name]
    return values if name in (b"authorization", b"cookie") else [value.lower() for value in values]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _ascii(text: str) -> str:
    """Return a bounded text for a message: plain ASCII, since it is foreign."""
    return ascii(text[:100])
