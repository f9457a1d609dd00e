"""Certificates are loaded from files: the service's, its key, and the authorities of trusted clients (rule S2)."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from coordinator.secret_file import FileInvalid, readable, secret
from coordinator.settings import TlsSettings

_EXPIRED, _NOT_YET = 10, 9
#: Trusts a certificate itself, whatever authority has signed it (OpenSSL's X509_V_FLAG_PARTIAL_CHAIN).
_PARTIAL_CHAIN = 0x80000
#: Ciphers of TLS 1.2 with forward secrecy and authenticated encryption (AEAD), like all of TLS 1.3.
_CIPHERS = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL"


def load(settings: TlsSettings) -> ssl.SSLContext:
    """Load the TLS context of the server's side, for new connections.

    :raises FileInvalid: a file cannot be used, the certificate has expired, or other users may read the key.
    """
    if settings.certificate is None or settings.key is None:
        raise FileInvalid("amqps, wss and https need tls.certificate and tls.key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    readable("tls.certificate", settings.certificate)
    key = secret("tls.key", settings.key)
    if b"ENCRYPTED" in key:
        raise FileInvalid(f"tls.key: {settings.key}: it has a passphrase; expected a key without one")
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise FileInvalid(
                f"tls.key: {settings.key}: it is not the key of the certificate {settings.certificate}"
            ) from None
        raise FileInvalid(
            f"tls.certificate: {settings.certificate}, tls.key: {settings.key}: expected PEM, a certificate and its "
            "key of a kind that OpenSSL takes"
        ) from None
    _check_time(context, settings.certificate)
    if settings.client_ca is not None:
        readable("tls.client_ca", settings.client_ca)
        try:
            context.load_verify_locations(settings.client_ca)
        except ssl.SSLError:
            raise FileInvalid(
                f"tls.client_ca: {settings.client_ca}: expected certificates of authorities in PEM"
            ) from None
        context.verify_mode = ssl.CERT_OPTIONAL if settings.client_certificates == "asked" else ssl.CERT_REQUIRED
    return context


def _check_time(context: ssl.SSLContext, certificate: Path) -> None:
    """Check the certificate's times by a handshake with a client that trusts it."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.load_verify_locations(certificate)
    trusting.verify_flags |= _PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = trusting.wrap_bio(to_client, to_server)
    try:
        for _ in range(2):
            for side in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_EXPIRED, _NOT_YET):
            why = "it has expired" if error.verify_code == _EXPIRED else "it is not valid yet"
            raise FileInvalid(f"tls.certificate: {certificate}: {why}") from None
        raise FileInvalid(f"tls.certificate: {certificate}: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise FileInvalid(f"tls.certificate: {certificate}: no client could use it: {error.reason}") from None
