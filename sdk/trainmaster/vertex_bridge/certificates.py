"""A self-made certificate for the bridge, for development and private networks."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA: Final = "ca.pem"
CERTIFICATE: Final = "server.pem"
KEY: Final = "server.key"
_VALID: Final = timedelta(days=365)
_RENEWED_BEFORE: Final = timedelta(days=30)
_SKEW: Final = timedelta(hours=1)  # of the clocks of clients


def default_names() -> list[str]:
    """Host names and addresses of this machine."""
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname()]))


def ensure(folder: Path, names: Sequence[str], now: datetime) -> bool:
    """Ensure that ``folder`` has a certificate for ``names`` valid for another month; returns whether it is new.

    A new certificate has a new authority, whose key is discarded: trusting the authority means trusting only this
    certificate, since no other can be issued. Raises ``OSError``.
    """
    if _is_good(folder, names, now):
        return False
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Trainmaster Vertex bridge, its own authority")])
    ca = _certificate(ca_name, ca_name, ca_key.public_key(), now).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    ca = ca.add_extension(_usage(signs_certificates=True), critical=True)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    server = (
        _certificate(subject, ca_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
    )
    for builder_key, builder in ((CA, ca), (CERTIFICATE, server)):
        identifier = x509.SubjectKeyIdentifier.from_public_key((ca_key if builder_key == CA else key).public_key())
        complete = builder.add_extension(identifier, critical=False).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        _write(
            folder / builder_key, complete.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), 0o644
        )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(folder / KEY, pem, 0o600)
    return True


def _is_good(folder: Path, names: Sequence[str], now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
        authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        certificate.verify_directly_issued_by(authority)
        key = serialization.load_pem_private_key((folder / KEY).read_bytes(), password=None)
        names_in_certificate = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return (
        key.public_key() == certificate.public_key()
        and set(names_in_certificate) == {_general(name) for name in names}
        and certificate.not_valid_after_utc - now > _RENEWED_BEFORE
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - _SKEW)
        .not_valid_after(now.astimezone(UTC) + _VALID)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write atomically, never with more permissions than ``mode``."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)
    part.replace(path)
