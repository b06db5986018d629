"""Webhooks that do not work, each as seen in a cluster; pods must start all the same."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from google_cloud_mldiagnostics._kubernetes.webhook.authority import first_state
from ml_diagnostics_testing.certificates import CertificateAuthority

from ...kube_api import KubeApi
from ...waiting import bound_port
from .clusters import Webhook, register

__all__ = ["DEAD", "dead_webhook"]


@contextlib.contextmanager
def dead_webhook(
    name: str, server: KubeApi, namespace: str, folder: Path, *, timeout_seconds: int = 2
) -> Iterator[int]:
    """Have the API server ask a webhook of `DEAD` for the pods of a namespace, and yield its port.

    Args:
        name: The kind of failure.
        server: The API server.
        namespace: The namespace.
        folder: A folder for certificates and logs.
        timeout_seconds: The timeout of the webhook's entries.
    """
    with DEAD[name](server, folder) as (port, bundle):
        configuration = register(server, namespace, port, bundle, timeout_seconds=timeout_seconds)
        try:
            yield port
        finally:
            server.call(
                "DELETE", f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{configuration}"
            )


_Dead = contextlib.AbstractContextManager[tuple[int, bytes]]


@contextlib.contextmanager
def _refused(_: KubeApi, folder: Path) -> Iterator[tuple[int, bytes]]:
    with bound_port() as port:
        yield port, CertificateAuthority(folder).path.read_bytes()


@contextlib.contextmanager
def _silent(_: KubeApi, folder: Path) -> Iterator[tuple[int, bytes]]:
    with bound_port(listening=True) as port:
        yield port, CertificateAuthority(folder).path.read_bytes()


@contextlib.contextmanager
def _syn_dropped(_: KubeApi, folder: Path) -> Iterator[tuple[int, bytes]]:
    """Fill the backlog of a port, so that the kernel drops each further packet that opens a connection."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _number in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        yield listening.getsockname()[1], CertificateAuthority(folder).path.read_bytes()


@contextlib.contextmanager
def _wrong_authority(server: KubeApi, folder: Path) -> Iterator[tuple[int, bytes]]:
    with Webhook(server, folder) as webhook:
        yield webhook.port, first_state(time.time(), ["localhost"]).bundle


@contextlib.contextmanager
def _expired(server: KubeApi, folder: Path) -> Iterator[tuple[int, bytes]]:
    state = first_state(time.time() - 100 * 86400, ["localhost"])
    webhook = Webhook(server, folder, is_valid=False)
    webhook.certificate.write_bytes(state.leaf.certificate)
    webhook.key.write_bytes(state.leaf.key)
    with webhook:
        assert not webhook.is_ready()
        yield webhook.port, state.bundle


def _signalled(stop: signal.Signals) -> Callable[[KubeApi, Path], _Dead]:
    @contextlib.contextmanager
    def use(server: KubeApi, folder: Path) -> Iterator[tuple[int, bytes]]:
        with Webhook(server, folder) as webhook:
            assert webhook.process is not None
            webhook.process.send_signal(stop)
            yield webhook.port, webhook.authority.path.read_bytes()

    return use


DEAD: dict[str, Callable[[KubeApi, Path], _Dead]] = {
    "refused": _refused,
    "silent": _silent,
    "SYN dropped": _syn_dropped,
    "wrong CA": _wrong_authority,
    "expired": _expired,
    "SIGSTOP": _signalled(signal.SIGSTOP),
    "SIGKILL": _signalled(signal.SIGKILL),
}
"""Functions that start each, and yield its port and what the API server trusts; by what is wrong."""
