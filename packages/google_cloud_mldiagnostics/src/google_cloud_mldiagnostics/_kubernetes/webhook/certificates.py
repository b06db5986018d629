"""The certificate of the server, which is replaced while it serves.

A pair that does not match must not reach the context that serves: OpenSSL refuses it, and leaves the context without
any certificate, so that each new connection fails. So a pair is copied first, as cert-manager's files may change at any
moment; then a new context loads the copy; and only then the one that serves.
"""

from __future__ import annotations

import logging
import ssl
import tempfile
from pathlib import Path

from cryptography import x509

__all__ = ["ServingCertificate"]

_log = logging.getLogger("ml_diagnostics.kubernetes")


class ServingCertificate:
    """A certificate and its key in two files, and the TLS context that serves them.

    Attributes:
        context: The context; connections that are made after a reload get the new certificate.
        not_after_seconds: When the certificate expires, in seconds since 1970.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load both files.

        Args:
            certificate: The file of the certificate and its chain, in PEM.
            key: The file of the key, in PEM.

        Raises:
            OSError: A file cannot be read.
            ssl.SSLError: They are not a certificate and its key.
        """
        self._paths = certificate, key
        self.context = _new_context()
        self.not_after_seconds = 0.0
        self._pair = (b"", b"")
        self.reload()

    def reload(self) -> bool:
        """Load the files again if they have changed; return True if they have.

        Raises:
            OSError: A file cannot be read; the certificate of before goes on serving.
            ssl.SSLError: They are not a certificate and its key; the same.
        """
        certificate, key = self._paths
        pair = certificate.read_bytes(), key.read_bytes()
        if pair == self._pair:
            return False
        with tempfile.TemporaryDirectory() as folder:
            copies = Path(folder) / "tls.crt", Path(folder) / "tls.key"
            for path, data in zip(copies, pair, strict=True):
                path.touch(mode=0o600)
                path.write_bytes(data)
            _new_context().load_cert_chain(*copies)
            self.context.load_cert_chain(*copies)
        self._pair = pair
        self.not_after_seconds = x509.load_pem_x509_certificate(pair[0]).not_valid_after_utc.timestamp()
        return True


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
