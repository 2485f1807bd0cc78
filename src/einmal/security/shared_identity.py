"""Mutual TLS within a group whose members share one key pair: who has the key belongs to it, nobody else does.

Each side verifies that the other one proves possession of the key (CertificateVerify of TLS 1.3, over fresh randoms of
both sides): the key itself does not travel, and a recorded connection cannot be replayed.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from einmal.security.secret import Secret
from einmal.security.tls import as_file


@dataclass(frozen=True, slots=True)
class SharedIdentity:
    """A self-signed certificate in PEM, and its private key in PEM. Pickles with the key, for Spark's executors."""

    certificate: str
    key: Secret

    def context(self, *, is_server: bool) -> ssl.SSLContext:
        """TLS 1.3 with exactly this certificate on both sides. Raises ssl.SSLError for unusable PEM."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # The certificate itself is trusted, and names no host: executors may know the driver by several.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate)
        with as_file(self.certificate) as chain, as_file(self.key.reveal()) as key:
            context.load_cert_chain(chain, key)
        if is_server:
            # A resumed session would skip the proof.
            context.num_tickets = 0
        return context
