"""A certificate authority for tests: servers with TLS on 127.0.0.1, and clients with a certificate (mTLS).

Needs the package cryptography.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509


class CertificateAuthority:
    """Issue certificates for 127.0.0.1 and localhost, signed by an authority that nothing trusts by default.

    gRPC reads its trusted authorities once in a process. Use one authority for all servers of a process.

    Args:
        folder: The folder to write the files to.

    Attributes:
        path: The authority's certificate, for clients that trust the servers.
    """

    def __init__(self, folder: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback authority")])
        self.path = folder / "authority.pem"
        self.path.write_bytes(self._sign(self._name, self._key.public_key(), is_authority=True))
        self._server_files = self.issue("server")

    def environment(self) -> dict[str, str]:
        """Return the variables by which gRPC, and Python's HTTP clients, trust the servers."""
        return {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.path), "REQUESTS_CA_BUNDLE": str(self.path)}

    def client_environment(self) -> dict[str, str]:
        """Return the variables by which Google's clients present a certificate of this authority (mTLS)."""
        certificate, key = self.issue("client")
        files = {"cert_path": str(certificate), "key_path": str(key)}
        configuration = self._folder / "certificate_config.json"
        configuration.write_text(json.dumps({"version": 1, "cert_configs": {"workload": files}}))
        return {"GOOGLE_API_USE_CLIENT_CERTIFICATE": "true", "GOOGLE_API_CERTIFICATE_CONFIG": str(configuration)}

    def server_context(self, *, require_client_certificate: bool = False) -> ssl.SSLContext:
        """Return the TLS settings of a server: HTTP/1.1 and HTTP/2 by ALPN.

        Args:
            require_client_certificate: Refuse clients without a certificate of this authority.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._server_files)
        context.set_alpn_protocols(["h2", "http/1.1"])
        if require_client_certificate:
            context.load_verify_locations(self.path)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def issue(self, name: str) -> tuple[Path, Path]:
        """Write a certificate for 127.0.0.1 and localhost and its key; return their paths.

        Args:
            name: The name of both files; another certificate of that name replaces them.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        certificate_path, key_path = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"loopback {name}")])
        certificate_path.write_bytes(self._sign(subject, key.public_key()))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate_path, key_path

    # Python 3.13 and later verify strictly by RFC 5280: identifiers of keys, and the use of the authority's key.
    def _sign(self, subject: object, public_key: object, *, is_authority: bool = False) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        signing_key = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        certificate = (
            x509.CertificateBuilder(self._name, subject, public_key, x509.random_serial_number())  # type: ignore[arg-type]
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        )
        if is_authority:
            certificate = certificate.add_extension(_may_sign_certificates(), critical=True)
            certificate = certificate.add_extension(signing_key, critical=False)
        else:
            issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signing_key)
            certificate = certificate.add_extension(issuer, critical=False)
        return certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _may_sign_certificates() -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
