"""Keys and certificates for a deployment on one machine, good for a day."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["make_certificates", "make_key"]


def make_key(path: Path) -> Path:
    """Write an elliptic-curve key pair, ``path`` and ``path.pub``, unless it is there already."""
    if not path.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        path.with_suffix(".pub").write_bytes(public + b"\n")
        path.touch(mode=0o600)
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return path


def make_certificates(folder: Path) -> None:
    """Write ``ca.pem`` and, signed by it for this machine, ``server.pem`` and ``server.key``."""
    ca_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "turnout loopback CA")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    issuer = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(issuer, critical=False)
        .add_extension(_usage(is_ca=True), critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    server = (
        _builder(name, ca_name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(here), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False
        )
        .add_extension(_usage(is_ca=False), critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    (folder / "ca.pem").write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(Encoding.PEM))
    secret = folder / "server.key"
    secret.touch(mode=0o600)
    secret.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )
