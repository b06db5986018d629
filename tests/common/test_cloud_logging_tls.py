"""Cloud Logging as in production: TLS, tokens, quota project, universe domain and client certificates (mTLS)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials, Credentials, CredentialsWithQuotaProject
from ml_diagnostics_common.cloud_logging import LoggingTransport, TransportError, make_transport
from ml_diagnostics_common.credentials import CloudEnvironment
from ml_diagnostics_common.exceptions import CredentialsError
from ml_diagnostics_testing.certificates import CertificateAuthority
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Status

ENTRY = {
    "logName": "projects/test-project/logs/run",
    "resource": {"type": "global", "labels": {}},
    "insertId": "host-1-2-0.100000000001",
    "jsonPayload": {"job_name": "run"},
}

pytestmark = pytest.mark.parametrize("protocol", ["rest", "grpc"])


class Bearer(CredentialsWithQuotaProject):
    universe = "googleapis.com"

    @property
    def universe_domain(self) -> str:
        return self.universe

    def refresh(self, request: Any) -> None:
        self.token = "secret-token"

    def with_quota_project(self, quota_project_id: str) -> Bearer:
        self._quota_project_id = quota_project_id
        return self


@contextmanager
def transport_to(
    protocol: str, environ: Mapping[str, str], credentials: Credentials | None = None
) -> Iterator[LoggingTransport]:
    cloud = CloudEnvironment("test-project", credentials or AnonymousCredentials(), None, "test")
    transport = make_transport(cloud, {**environ, "ML_DIAGNOSTICS_LOGGING_TRANSPORT": protocol})
    yield transport
    transport.close()


def test_requests_have_a_token_and_name_the_quota_project(
    protocol: str, certificate_authority: CertificateAuthority
) -> None:
    credentials = Bearer().with_quota_project("paying-project")  # type: ignore[no-untyped-call]
    with (
        CloudLoggingServer(tls=certificate_authority) as server,
        transport_to(protocol, server.environment(), credentials) as transport,
    ):
        transport.write([ENTRY], timeout_seconds=10)
        [request] = server.requests
    assert request.method == ("gRPC" if protocol == "grpc" else "POST")
    assert request.headers["authorization"] == "Bearer secret-token"
    assert request.headers["x-goog-user-project"] == "paying-project"


def test_a_server_with_another_authority_gets_no_request(
    protocol: str, certificate_authority: CertificateAuthority, tmp_path: Path
) -> None:
    another = CertificateAuthority(tmp_path)
    with (
        CloudLoggingServer(tls=another) as server,
        transport_to(protocol, server.environment(), Bearer()) as transport,  # type: ignore[no-untyped-call]
    ):
        with pytest.raises(TransportError) as caught:
            transport.write([ENTRY], timeout_seconds=10)
        assert server.requests == []
    assert caught.value.code == "UNAVAILABLE"


@pytest.mark.parametrize("presents", [True, False])
def test_a_client_certificate_is_presented_if_one_is_configured(
    protocol: str, presents: bool, certificate_authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    if presents:
        for name, value in certificate_authority.client_environment().items():
            monkeypatch.setenv(name, value)
    with (
        CloudLoggingServer(tls=certificate_authority, require_client_certificate=True) as server,
        transport_to(protocol, server.environment()) as transport,
    ):
        if presents:
            transport.write([ENTRY], timeout_seconds=10)
            assert transport.list_page("", order_by="timestamp asc", page_size=10, timeout_seconds=10).entries
        else:
            with pytest.raises(TransportError) as caught:
                transport.write([ENTRY], timeout_seconds=10)
            assert (caught.value.code, server.requests) == ("UNAVAILABLE", [])


def test_a_client_certificate_that_cannot_be_read_is_an_error_at_once(
    protocol: str, certificate_authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"cert_configs": {"workload": {"cert_path": "/no", "key_path": "/no"}}}')
    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "true")
    monkeypatch.setenv("GOOGLE_API_CERTIFICATE_CONFIG", str(tmp_path / "config.json"))
    unusable = pytest.raises(CredentialsError, match=r"mTLS.*GOOGLE_API_USE_CLIENT_CERTIFICATE=false")
    with unusable, transport_to(protocol, {}):
        pass


def test_a_token_that_is_refused_fails_the_request_and_no_later_one(
    protocol: str, certificate_authority: CertificateAuthority
) -> None:
    with (
        CloudLoggingServer(tls=certificate_authority) as server,
        transport_to(protocol, server.environment(), Bearer()) as transport,  # type: ignore[no-untyped-call]
    ):
        server.faults.always(Status(401))
        with pytest.raises(TransportError) as caught:
            transport.write([ENTRY], timeout_seconds=10)
        server.faults.clear()
        transport.write([ENTRY], timeout_seconds=10)
    assert (caught.value.code, caught.value.access) == ("UNAUTHENTICATED", True)


@pytest.fixture
def connected_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The hosts that clients ask an HTTPS proxy to connect to; it connects to none."""
    hosts: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def refuse() -> None:
            while True:
                connection, _ = proxy.accept()
                with connection:
                    words = connection.recv(1 << 16).split()
                    if not words:
                        return
                    hosts.append(words[1].decode())
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        yield hosts
        socket.create_connection(proxy.getsockname()).close()
        thread.join()


@pytest.mark.parametrize(
    ("universe", "variable", "override", "expected"),
    [
        ("googleapis.com", "", "", "logging.googleapis.com:443"),
        ("example.goog", "", "", "logging.example.goog:443"),
        ("example.goog", "other.goog", "", "logging.other.goog:443"),
        ("example.goog", "", "https://logging-x.p.googleapis.com/", "logging-x.p.googleapis.com:443"),
    ],
)
def test_the_host_is_that_of_the_override_or_of_the_universe(
    protocol: str,
    universe: str,
    variable: str,
    override: str,
    expected: str,
    connected_hosts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    credentials = Bearer()  # type: ignore[no-untyped-call]
    credentials.universe = universe
    if variable:
        monkeypatch.setenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN", variable)
    environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": override}
    with transport_to(protocol, environ, credentials) as transport, pytest.raises(TransportError) as caught:
        transport.write([ENTRY], timeout_seconds=5)
    assert caught.value.is_temporary
    assert set(connected_hosts) == {expected}


def test_with_a_client_certificate_the_host_is_that_of_mtls(
    protocol: str,
    certificate_authority: CertificateAuthority,
    connected_hosts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in certificate_authority.client_environment().items():
        monkeypatch.setenv(name, value)
    with transport_to(protocol, {}) as transport, pytest.raises(TransportError):
        transport.write([ENTRY], timeout_seconds=5)
    assert set(connected_hosts) == {"logging.mtls.googleapis.com:443"}
