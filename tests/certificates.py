"""Certificates for servers on loopback, made anew for each test and signed by nobody but themselves."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def self_signed(file: Path, *hosts: str, ends_in_days: int = 1) -> Path:
    """Write a certificate for these hosts (`localhost` if none is named) with its key into `file`, and give it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lowtide test")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts or ("localhost",)])
    built = (
        x509.CertificateBuilder(
            name,
            name,
            key.public_key(),
            x509.random_serial_number(),
            now - 30 * day,
            now + ends_in_days * day,
        )
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
    return file


def context_of(certificate: Path, *protocols: str) -> ssl.SSLContext:
    """A server's side of TLS with this certificate, offering these protocols (ALPN; none named: it does not say)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context
