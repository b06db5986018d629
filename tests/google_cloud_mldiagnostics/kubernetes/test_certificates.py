"""The certificate of the webhook is replaced while it serves; no connection fails, whatever is in the files."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from google_cloud_mldiagnostics._kubernetes.webhook.certificates import Pair, PairFiles, ServingCertificate
from ml_diagnostics_testing.certificates import CertificateAuthority


async def served_serial_number(port: int, authority: CertificateAuthority) -> int:
    context = ssl.create_default_context(cafile=str(authority.path))
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return x509.load_der_x509_certificate(certificate).serial_number


def serial_number(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def test_new_connections_get_the_new_certificate_and_none_fails_while_the_files_do_not_match(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.issue("webhook")
    pairs = [authority.issue(f"next-{number}") for number in range(8)]
    files = PairFiles(certificate, key)

    async def rotate() -> None:
        serving = ServingCertificate(await files.pair())
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=serving.context)
        port = server.sockets[0].getsockname()[1]
        async with server:
            for next_certificate, next_key in pairs:
                old = serial_number(certificate)
                certificate.write_bytes(next_certificate.read_bytes())
                with pytest.raises(ssl.SSLError):  # Its key is not there yet.
                    serving.replace(await files.pair())
                assert await served_serial_number(port, authority) == old
                key.write_bytes(next_key.read_bytes())
                assert serving.replace(await files.pair())
                assert not serving.replace(await files.pair())
                assert await served_serial_number(port, authority) == serial_number(next_certificate)

    asyncio.run(rotate())


@pytest.mark.parametrize("text", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_damaged_pair_is_refused_and_the_certificate_of_before_serves(tmp_path: Path, text: bytes) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate, key = authority.issue("webhook")
    intact = Pair(certificate.read_bytes(), key.read_bytes())
    serving = ServingCertificate(intact)
    expires = serving.not_after_seconds
    for damaged in (Pair(text, intact.key), Pair(intact.certificate, text)):
        with pytest.raises(ssl.SSLError):
            serving.replace(damaged)
    assert not serving.replace(intact)
    assert serving.not_after_seconds == expires

    async def serve() -> int:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=serving.context)
        async with server:
            return await served_serial_number(server.sockets[0].getsockname()[1], authority)

    assert asyncio.run(serve()) == serial_number(certificate)
