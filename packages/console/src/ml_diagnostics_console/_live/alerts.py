"""Alerts of a watched job: each verdict once, to a webhook, or as an entry of the journal.

The command may run where internal services answer without a login. So an address that is not public is refused unless
it is allowed, the address that was checked is the one that is connected to, and redirects are not followed.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import SplitResult, urlsplit

from ml_diagnostics_common.command.errors import CommandError, UsageError
from ml_diagnostics_common.redaction import redact_text
from ml_diagnostics_common.worker import NoAnswerError, call

from ml_diagnostics_console._forms import monitored_event
from ml_diagnostics_console.doctor import Report
from ml_diagnostics_console.verdict import Verdict

if TYPE_CHECKING:
    from urllib3.connectionpool import HTTPConnectionPool

__all__ = ["LOG_ID", "Alert", "AlertError", "alerts_of"]

LOG_ID: Final = "ml_diagnostics_doctor"
"""The log of verdicts in the journal."""
_SECONDS: Final = 10.0
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_WEBHOOK: Final = "webhook="
_ENTRY, _EVENT = "entry", "event"


class AlertError(CommandError):
    """An alert could not be delivered; it is tried again with the next read of the job."""


class Alert(Protocol):
    """A receiver of verdicts."""

    def send(self, report: Report, verdict: Verdict) -> None:
        """Report a verdict.

        Raises:
            AlertError: It could not be delivered.
        """
        ...


def alerts_of(targets: Sequence[str], *, allows_private: bool) -> list[Alert]:
    """Return the receivers that the options name.

    Args:
        targets: `webhook=URL`, `entry` or `event`.
        allows_private: True if a webhook may have an address that is not public.

    Raises:
        UsageError: One of them is not valid.
    """
    return [_alert_of(target, allows_private=allows_private) for target in targets]


def _alert_of(target: str, *, allows_private: bool) -> Alert:
    if target in (_ENTRY, _EVENT):
        return EntryAlert(is_event=target == _EVENT)
    if target.startswith(_WEBHOOK):
        return WebhookAlert(target.removeprefix(_WEBHOOK), allows_private=allows_private)
    raise UsageError(f"--alert is {target!r}; give webhook=URL, entry or event")


class WebhookAlert:
    """Sends a verdict as JSON by POST.

    Args:
        url: An address with https or http.
        allows_private: True if the address may be private or local.

    Raises:
        UsageError: It is not an address.
    """

    def __init__(self, url: str, *, allows_private: bool) -> None:
        self._url = urlsplit(url)
        self._allows_private = allows_private
        try:
            is_valid = self._url.scheme in ("http", "https") and bool(self._url.hostname) and self._url.port != 0
        except ValueError:
            is_valid = False
        if self._url.username is not None:
            raise UsageError("--alert webhook=... has a user in its address: give it without one")
        if not is_valid:
            raise UsageError(f"--alert webhook={redact_text(url)!r} is not an address such as https://host/path")

    def send(self, report: Report, verdict: Verdict) -> None:
        """See `Alert`."""
        from urllib3.exceptions import HTTPError

        payload = {"run": report.facts.name, "job": report.facts.display_name, "verdict": verdict.to_json()}
        host = self._url.hostname or ""
        try:
            status = call(lambda: self._post(payload), _SECONDS, "ml-diagnostics-alert")
        except NoAnswerError:
            raise AlertError(f"the webhook of {host} does not answer in {_SECONDS:.0f} s") from None
        except (HTTPError, OSError) as error:
            raise AlertError(f"the webhook of {host} does not answer: {error}") from None
        if not 200 <= status < 300:
            raise AlertError(f"the webhook of {host} answered with status {status}")

    def _post(self, payload: Mapping[str, Any]) -> int:
        """Send a payload, and return the status."""
        from urllib3 import Timeout

        host = self._url.hostname or ""
        with _pool(self._url, self._address()) as pool:
            response = pool.request(
                "POST",
                self._url._replace(scheme="", netloc="", fragment="").geturl() or "/",
                body=json.dumps(payload).encode(),
                headers={"Content-Type": "application/json", "Host": _netloc(self._url, host)},
                redirect=False,
                retries=False,
                timeout=Timeout(total=_SECONDS),
                preload_content=False,
            )
            response.close()
            return response.status

    def _address(self) -> str:
        """Return the address to connect to.

        Raises:
            AlertError: The name has no address, or one that is not allowed.
        """
        host = self._url.hostname or ""
        try:
            found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError) as error:
            raise AlertError(f"the webhook's host {host} has no address: {error}") from None
        if not self._allows_private:
            for address in sorted(found):
                if not _is_public(address):
                    raise AlertError(
                        f"the webhook's host {host} has the address {address}, which is not public; to use it, add "
                        "--allow-private-address"
                    )
        return min(found, key=lambda address: (":" in address, address))


def _is_public(address: str) -> bool:
    """Return True if an address is one of the internet, also behind the translations of IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return inner.is_global and not inner.is_multicast
        return found.is_global and not found.is_multicast and not found.is_site_local
    return found.is_global and not found.is_multicast


def _pool(url: SplitResult, address: str) -> HTTPConnectionPool:
    """Return connections to an address that was checked; the certificate is that of the name."""
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool

    if url.scheme == "http":
        return HTTPConnectionPool(address, url.port or 80, maxsize=1)
    name = url.hostname or ""
    return HTTPSConnectionPool(address, url.port or 443, maxsize=1, server_hostname=name, assert_hostname=name)


def _netloc(url: SplitResult, host: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if url.port is None else f"{shown}:{url.port}"


class EntryAlert:
    """Writes a verdict to the journal, in the log `ml_diagnostics_doctor`.

    Args:
        is_event: True for the form of Google's monitored events.
    """

    def __init__(self, *, is_event: bool) -> None:
        self._is_event = is_event

    def send(self, report: Report, verdict: Verdict) -> None:
        """See `Alert`."""
        from ml_diagnostics_common.environment import diagnostics_directory, identity
        from ml_diagnostics_common.journal import Journal

        payload: dict[str, Any] = monitored_event(report, verdict) if self._is_event else verdict.to_json()
        labels = {**identity().labels(), "job": report.facts.display_name, "run": report.facts.name}
        try:
            journal = Journal(LOG_ID, root=diagnostics_directory(), labels=labels)
            journal.append(payload, severity="WARNING")
            journal.close(_SECONDS)
        except OSError as error:
            raise AlertError(f"the verdict cannot be written to the journal: {error.strerror or error}") from None
