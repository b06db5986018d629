"""Connections over HTTP: TLS, its authorities, and proxies."""

from __future__ import annotations

import datetime
import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.auth.credentials import AnonymousCredentials
from ml_diagnostics_common.authorized_requests import Answer, open_session
from ml_diagnostics_common.failures import RemoteError
from ml_diagnostics_common.worker import MOST_THREADS, results_in_parallel


class _Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append((self.client_address[1], self.path, self.headers.get("Proxy-Authorization")))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None: ...


class _Proxy(_Api):
    def do_CONNECT(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Proxy-Authorization")))  # type: ignore[attr-defined]
        host, port = self.path.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as upstream:
            self.send_response(200)
            self.end_headers()
            thread = threading.Thread(target=_pump, args=(upstream, self.connection), daemon=True)
            thread.start()
            _pump(self.connection, upstream)
            thread.join()
        self.close_connection = True


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@contextmanager
def serving(handler: type[_Api], certificate: Path | None = None) -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.asked = []
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and a certificate for localhost that it has signed itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file = tmp_path / "localhost.pem"
    file.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()) + signed.public_bytes(pem))
    return file


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextmanager
def opened(ca_certs: Path | None = None) -> Iterator[Callable[[str], Answer]]:
    """Yield a function that makes a request."""
    session = open_session(AnonymousCredentials(), "a test", ca_certs=None if ca_certs is None else str(ca_certs))
    try:
        yield lambda url: session.send("GET", url, headers={}, timeout_seconds=10)
    finally:
        session.close()


def test_requests_over_tls_share_a_connection(certificate: Path) -> None:
    with serving(_Api, certificate) as server, opened(certificate) as get:
        for _ in range(3):
            assert get(f"https://localhost:{server.server_port}/a?b=c") == (200, b"{}")
    assert {path for _, path, _ in server.asked} == {"/a?b=c"}
    assert len({port for port, _, _ in server.asked}) == 1


def test_a_certificate_that_no_authority_has_signed_is_refused(certificate: Path) -> None:
    refused = pytest.raises(RemoteError, match="CERTIFICATE_VERIFY_FAILED")
    with serving(_Api, certificate) as server, opened() as get, refused:
        get(f"https://localhost:{server.server_port}/")
    assert server.asked == []


def test_the_authorities_of_other_clients_are_trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with serving(_Api, certificate) as server, opened() as get:
        assert get(f"https://localhost:{server.server_port}/").body == b"{}"


def test_a_proxy_passes_tls_on(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(_Api, certificate) as server, serving(_Proxy) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@127.0.0.1:{proxy.server_port}")
        with opened(certificate) as get:
            for _ in range(2):
                assert get(f"https://localhost:{server.server_port}/a").body == b"{}"
    assert proxy.asked == [(f"localhost:{server.server_port}", "Basic bWU6cEBzcw==")]
    assert [(path, login) for _, path, login in server.asked] == [("/a", None)] * 2


def test_a_proxy_is_given_whole_urls_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(_Proxy) as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{proxy.server_port}")
        with opened() as get:
            assert get("http://compute.test/a?b=c").body == b"{}"
    assert [asked[1:] for asked in proxy.asked] == [("http://compute.test/a?b=c", "Basic bWU6cGFzcw==")]


def test_hosts_without_a_proxy_are_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(_Api) as server, opened() as get:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert get(f"http://127.0.0.1:{server.server_port}/").body == b"{}"


def test_a_proxy_that_is_not_supported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:1")
    with opened() as get, pytest.raises(RemoteError, match=r"(?i)socks"):
        get("https://compute.test/")


def test_requests_in_parallel_keep_their_connections(caplog: pytest.LogCaptureFixture) -> None:
    all_here = threading.Barrier(MOST_THREADS, timeout=60)

    class _AtOnce(_Api):
        def do_GET(self) -> None:
            all_here.wait()
            super().do_GET()

    with serving(_AtOnce) as server:
        session = open_session(AnonymousCredentials(), "a test")
        url = f"http://127.0.0.1:{server.server_address[1]}/"

        def ask(number: int) -> Answer:
            return session.send("GET", f"{url}{number}", headers={}, timeout_seconds=60)

        for _ in range(2):
            results_in_parallel(ask, range(MOST_THREADS))
        session.close()
    ports = {port for port, *_ in server.asked}
    assert (len(server.asked), len(ports)) == (2 * MOST_THREADS, MOST_THREADS)
    assert "Connection pool is full" not in caplog.text
