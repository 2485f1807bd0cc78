"""Claims about TLS errors: each has a reason and a next step, and only those that may pass are retried."""

from __future__ import annotations

import ssl

import pytest

from einmal.security.sasl.handshake import explained, names_of


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


def unverified(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, message)
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("error", "reason", "hint"),
    [
        (alert("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "requires a client certificate", "ssl.certificate.location"),
        (alert("TLSV1_ALERT_UNKNOWN_CA"), "does not trust", "ssl.truststore"),
        (alert("SSLV3_ALERT_BAD_CERTIFICATE"), "rejects the client certificate", "ssl.certificate.location"),
        (alert("SSLV3_ALERT_CERTIFICATE_EXPIRED"), "client certificate has expired", "renew"),
        (alert("SSLV3_ALERT_HANDSHAKE_FAILURE"), "ends the handshake", "ssl.certificate.location"),
        (alert("TLSV1_ALERT_PROTOCOL_VERSION"), "neither TLS 1.2 nor 1.3", "ssl.enabled.protocols"),
        (alert("WRONG_VERSION_NUMBER"), "the answer is not TLS", "security.protocol"),
        (alert("SOMETHING_NEW"), "something new", "log"),
        (unverified(10, "certificate has expired"), "broker's certificate has expired", "renew"),
        (unverified(9, "not yet valid"), "not valid yet", "clock"),
        (unverified(18, "self-signed certificate"), "self-signed certificate", "ssl.ca.location"),
        (unverified(20, "unable to get local issuer"), "not trusted", "ssl.ca.location"),
        (unverified(23, "certificate revoked"), "certificate revoked", "check"),
    ],
)
def test_a_lasting_failure_has_a_reason_and_a_hint(error: ssl.SSLError, reason: str, hint: str) -> None:
    found = explained(error)
    assert found is not None
    assert found.is_final
    assert reason in found.reason
    assert hint in found.hint


@pytest.mark.parametrize("code", [62, 64])
def test_a_certificate_of_another_host_is_known(code: int) -> None:
    found = explained(unverified(code, "Hostname mismatch"))
    assert found is not None
    assert found.is_wrong_host


@pytest.mark.parametrize("error", [ConnectionResetError(), ssl.SSLEOFError(8, "EOF"), ssl.SSLZeroReturnError(6, "x")])
def test_a_connection_that_ends_in_the_handshake_may_pass(error: OSError) -> None:
    found = explained(error)
    assert found is not None
    assert not found.is_final


def test_other_errors_are_not_of_tls() -> None:
    assert explained(OSError(113, "No route to host")) is None
    assert explained(TimeoutError()) is None
    assert explained(ConnectionRefusedError(111, "Connection refused")) is None


def test_the_names_of_a_certificate_are_hosts_and_addresses() -> None:
    names = (("DNS", "a.test"), ("IP Address", "10.0.0.1"), ("URI", "spiffe://x"))
    assert names_of({"subjectAltName": names}) == "a.test, 10.0.0.1"
    assert names_of({"subjectAltName": tuple(("DNS", f"h{each}") for each in range(12))}).endswith("h9, ...")
    assert names_of(None) == names_of({}) == ""
