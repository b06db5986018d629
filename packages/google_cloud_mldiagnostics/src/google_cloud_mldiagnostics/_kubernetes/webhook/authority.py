"""An authority of our own and the certificate that it signs, and when both are renewed. No clock, no network.

A new authority signs nothing until the API server trusts it beside the old one, and the old one is trusted until every
replica serves a certificate of the new one. So each step of a renewal is a state of its own, which all replicas read.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from google_cloud_mldiagnostics._kubernetes.webhook.certificates import Pair

__all__ = ["SETTLE_SECONDS", "SignedState", "first_state", "renewed_state"]

_AUTHORITY_SECONDS: Final = 3 * 365 * 86400.0
_LEAF_SECONDS: Final = 90 * 86400.0
_BACKDATED_SECONDS: Final = 3600.0
"""Clocks of the nodes may differ."""
SETTLE_SECONDS: Final = 600.0
"""After each step of a change of the authority: twenty times as long as until each replica has read the last one."""


class SignedState(NamedTuple):
    """The authority, the certificate of the servers, and how far a change of the authority is.

    Attributes:
        authority: The authority that signed the certificate.
        leaf: The certificate and key of the servers.
        next_authority: The authority that is trusted already, and signs nothing yet; None unless it changes.
        old_certificate: The certificate of the authority before, which is still trusted; empty unless it changes.
    """

    authority: Pair
    leaf: Pair
    next_authority: Pair | None = None
    old_certificate: bytes = b""

    @property
    def bundle(self) -> bytes:
        """The certificates that clients trust."""
        following = self.next_authority.certificate if self.next_authority else b""
        return self.authority.certificate + following + self.old_certificate

    def data(self) -> dict[str, str | None]:
        """Return the `data` of the Secret; a key that is None is removed."""
        following = self.next_authority or Pair(b"", b"")
        values = {
            "ca.crt": self.authority.certificate,
            "ca.key": self.authority.key,
            "tls.crt": self.leaf.certificate,
            "tls.key": self.leaf.key,
            "next-ca.crt": following.certificate,
            "next-ca.key": following.key,
            "old-ca.crt": self.old_certificate,
        }
        return {key: base64.b64encode(value).decode() if value else None for key, value in values.items()}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> SignedState:
        """Return the state that the `data` of a Secret has.

        Args:
            data: The values, in base64.

        Raises:
            ValueError: A value is missing or damaged, or they do not belong together.
        """
        names = ("ca.crt", "ca.key", "tls.crt", "tls.key", "next-ca.crt", "next-ca.key", "old-ca.crt")
        try:
            certificate, key, leaf, leaf_key, following, following_key, old = (
                base64.b64decode(str(data.get(name, "")), validate=True) for name in names
            )
        except binascii.Error as error:
            raise ValueError(f"a value is not valid base64: {error}") from None
        following_pair = Pair(following, following_key) if following else None
        state = cls(Pair(certificate, key), Pair(leaf, leaf_key), following_pair, old)
        for pair in filter(None, (state.authority, state.leaf, state.next_authority)):
            _check_match(pair)
        if old:
            x509.load_pem_x509_certificate(old)
        try:
            _loaded(state.leaf).verify_directly_issued_by(_loaded(state.authority))
        except (InvalidSignature, TypeError) as error:
            raise ValueError("the authority has not signed the certificate") from error
        return state


def first_state(now: float, names: Sequence[str]) -> SignedState:
    """Return a new authority, and a certificate that it has signed.

    Args:
        now: Seconds since 1970.
        names: The names of the server.
    """
    authority = _new_authority(now)
    return SignedState(authority, _issue(authority, now, names))


def renewed_state(state: SignedState, now: float, names: Sequence[str], *, is_trusted: bool) -> SignedState:
    """Return the state after the step of renewal that is due; the same state if none is.

    Args:
        state: The state of all replicas.
        now: Seconds since 1970.
        names: The names of the server.
        is_trusted: True if the API server has the bundle of the state.
    """
    if now >= _loaded(state.authority).not_valid_after_utc.timestamp():
        return first_state(now, names)  # Nothing that it signed is trusted any more.
    if state.next_authority and is_trusted and now >= _created(state.next_authority) + SETTLE_SECONDS:
        leaf = _issue(state.next_authority, now, names)
        return SignedState(state.next_authority, leaf, old_certificate=state.authority.certificate)
    if state.old_certificate and now >= _created(state.leaf) + SETTLE_SECONDS:
        return state._replace(old_certificate=b"")
    if not state.next_authority and _is_due(state.authority, now):
        return state._replace(next_authority=_new_authority(now))
    if _is_due(state.leaf, now) or not set(names) <= set(_names(state.leaf)):
        return state._replace(leaf=_issue(state.authority, now, names))
    return state


def _is_due(pair: Pair, now: float) -> bool:
    """Return True after two thirds of the life of a certificate."""
    created = _created(pair)
    return now >= created + (_loaded(pair).not_valid_after_utc.timestamp() - created) * 2 / 3


def _created(pair: Pair) -> float:
    return _loaded(pair).not_valid_before_utc.timestamp() + _BACKDATED_SECONDS


def _names(pair: Pair) -> list[str]:
    names = _loaded(pair).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)


def _loaded(pair: Pair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def _key(pair: Pair) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pair.key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("expected the key of an elliptic curve")
    return key


def _check_match(pair: Pair) -> None:
    if _loaded(pair).public_key() != _key(pair).public_key():
        raise ValueError("a key does not belong to its certificate")


def _new_authority(now: float) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities of one name, both trusted, are told apart by the identifier of their keys.
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mldiagnostics injection webhook authority")])
    usage = x509.KeyUsage(
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
    certificate = (
        _builder(name, name, key, now, _AUTHORITY_SECONDS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _pair(certificate.sign(key, hashes.SHA256()), key)


def _issue(authority: Pair, now: float, names: Sequence[str]) -> Pair:
    signing, issuer = _key(authority), _loaded(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mldiagnostics injection webhook")])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    certificate = (
        _builder(issuer.subject, subject, key, now, _LEAF_SECONDS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
    )
    return _pair(certificate.sign(signing, hashes.SHA256()), key)


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: float, seconds: float
) -> x509.CertificateBuilder:
    start, end = (
        datetime.datetime.fromtimestamp(moment, datetime.timezone.utc)
        for moment in (now - _BACKDATED_SECONDS, now + seconds)
    )
    return x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), start, end)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)
