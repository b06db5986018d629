"""The certificate of the server, which is replaced while it serves.

A pair that does not match must not reach the context that serves: OpenSSL refuses it, and leaves the context without
any certificate, so that each new connection fails. So a new context loads the pair first, and only then the one that
serves.
"""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

__all__ = ["Pair", "PairFiles", "ServingCertificate"]


class Pair(NamedTuple):
    """A certificate and its key, both in PEM.

    Attributes:
        certificate: The certificate, and the chain after it.
        key: The key.
    """

    certificate: bytes
    key: bytes


class PairFiles:
    """A pair in two files, which another program may replace at any moment, one after the other.

    Attributes:
        check_seconds: How often they are to be read.
    """

    check_seconds = 1.0

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read nothing yet."""
        self._paths = certificate, key

    async def pair(self) -> Pair:
        """Return what the files have now.

        Raises:
            OSError: One of them cannot be read.
        """
        certificate, key = self._paths
        return Pair(certificate.read_bytes(), key.read_bytes())


class ServingCertificate:
    """The TLS context of a server, and the pair that it serves.

    Attributes:
        context: The context; connections that are made after a replacement get the new certificate.
        not_after_seconds: When the certificate expires, in seconds since 1970.
    """

    def __init__(self, pair: Pair) -> None:
        """Serve a pair.

        Args:
            pair: The certificate and its key.

        Raises:
            ssl.SSLError: They are not a certificate and its key.
        """
        self.context = _new_context()
        self.not_after_seconds = 0.0
        self._pair = Pair(b"", b"")
        self.replace(pair)

    def replace(self, pair: Pair) -> bool:
        """Serve another pair; return False if it is the same one.

        Args:
            pair: The certificate and its key.

        Raises:
            OSError: There is no folder for temporary files.
            ssl.SSLError: They are not a certificate and its key; the pair of before goes on serving.
        """
        if pair == self._pair:
            return False
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL loads files only.
            files = Path(folder) / "tls.crt", Path(folder) / "tls.key"
            for path, data in zip(files, pair, strict=True):
                path.touch(mode=0o600)
                path.write_bytes(data)
            _new_context().load_cert_chain(*files)
            self.context.load_cert_chain(*files)
        self._pair = pair
        self.not_after_seconds = x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc.timestamp()
        return True


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
