"""Why a TLS handshake failed, from OpenSSL's error, and what to do. Pure."""

from __future__ import annotations

import ssl
from typing import Any, Final, NamedTuple


class HandshakeFailure(NamedTuple):
    """``is_final``: it fails in the same way every time. ``is_wrong_host``: only the certificate's names differ."""

    reason: str
    hint: str
    is_final: bool = True
    is_wrong_host: bool = False


_HOST_MISMATCH: Final = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_UNTRUSTED: Final = (2, 7, 18, 19, 20, 21)
"""No issuer, one of the same name with another key, self-signed, self-signed in the chain, no local issuer, no
signature that can be verified."""
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_SET_CLIENT_CERTIFICATE: Final = (
    "set ssl.certificate.location and ssl.key.location (Java: ssl.keystore.*) to a certificate of an authority that is "
    "in the broker's ssl.truststore"
)
_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": ("the broker requires a client certificate", _SET_CLIENT_CERTIFICATE),
    "UNKNOWN_CA": ("the broker does not trust the authority of the client certificate", _SET_CLIENT_CERTIFICATE),
    "BAD_CERTIFICATE": ("the broker rejects the client certificate, or requires one", _SET_CLIENT_CERTIFICATE),
    "CERTIFICATE_UNKNOWN": ("the broker rejects the client certificate", _SET_CLIENT_CERTIFICATE),
    "CERTIFICATE_EXPIRED": ("the client certificate has expired", "renew the certificate in ssl.certificate.location"),
    "CERTIFICATE_REVOKED": ("the client certificate is revoked", "renew the certificate in ssl.certificate.location"),
    "HANDSHAKE_FAILURE": (
        "the broker ends the handshake, perhaps for want of a client certificate",
        _SET_CLIENT_CERTIFICATE,
    ),
    "PROTOCOL_VERSION": ("the broker supports neither TLS 1.2 nor 1.3", "set ssl.enabled.protocols of the broker"),
}


def explained(error: BaseException) -> HandshakeFailure | None:
    """None: the connection failed for a reason other than TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification(error)
    if isinstance(error, ConnectionRefusedError):
        return None
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError):
        return HandshakeFailure(
            "the connection was closed during the TLS handshake",
            "a PLAINTEXT or SASL_PLAINTEXT listener may do so: check security.protocol and the port",
            is_final=False,
        )
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if any(mark in reason for mark in _NOT_TLS):
        return HandshakeFailure(
            "the answer is not TLS",
            "use the port of a listener with SSL or SASL_SSL, or set security.protocol to PLAINTEXT or SASL_PLAINTEXT",
        )
    for alert, (meaning, hint) in _ALERTS.items():
        if reason.endswith(alert):
            return HandshakeFailure(meaning, hint)
    return HandshakeFailure(reason.replace("_", " ").lower() or "unknown TLS error", "check the broker's log")


def refusal_of_client(error: ssl.SSLError) -> str:
    """Why a listener does not accept a client, or a client not this broker; and what to do."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the client's certificate cannot be verified ({error.verify_message}): ssl.truststore.* has the "
            "authorities whose clients are accepted"
        )
    for mark, (meaning, hint) in _REFUSALS.items():
        if mark in reason:
            return f"{meaning}: {hint}"
    if reason.startswith(("TLSV1_ALERT", "SSLV3_ALERT", "TLSV13_ALERT")) or "_ALERT_" in reason:
        alert = reason.partition("_ALERT_")[2].replace("_", " ").lower()
        return f"the client refuses this broker ({alert}): check its ssl.truststore or ssl.ca.location, and host names"
    return reason.replace("_", " ").lower() or str(error)


_REFUSALS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the client sends no certificate",
        "ssl.client.auth=required asks for one (the client's ssl.keystore.*)",
    ),
    "UNSUPPORTED_PROTOCOL": ("no version of TLS in common", "see ssl.enabled.protocols"),
    "VERSION_TOO_LOW": ("no version of TLS in common", "see ssl.enabled.protocols"),
    "NO_SHARED_CIPHER": ("no cipher suite in common", "see ssl.cipher.suites"),
    "NO_SUITABLE_SIGNATURE_ALGORITHM": ("no signature algorithm in common", "use an RSA or ECDSA certificate"),
}


def _verification(error: ssl.SSLCertVerificationError) -> HandshakeFailure:
    code = error.verify_code
    if code in _HOST_MISMATCH or "ostname mismatch" in str(error):
        return HandshakeFailure(
            "the certificate is another host's",
            "use one of the certificate's names in bootstrap.servers and in the brokers' advertised.listeners",
            is_wrong_host=True,
        )
    if code == _EXPIRED:
        return HandshakeFailure("the broker's certificate has expired", "renew it; check this machine's clock, too")
    if code == _NOT_YET_VALID:
        return HandshakeFailure("the broker's certificate is not valid yet", "check this machine's clock")
    if code in _UNTRUSTED:
        return HandshakeFailure(
            f"the authority of the broker's certificate is not trusted ({error.verify_message})",
            "set ssl.ca.location (Java: ssl.truststore.*) to the certificate of the authority that has signed it",
        )
    return HandshakeFailure(f"the broker's certificate cannot be verified: {error.verify_message}", "check it")


def names_of(certificate: dict[str, Any] | None) -> str:
    """The hosts in a certificate, as ``SSLObject.getpeercert()`` returns it; at most ten."""
    hosts = [value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    return ", ".join(hosts[:10]) + (", ..." if len(hosts) > 10 else "")
