"""Claims about the files of TLS: what is wrong with one is an error that names its setting."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from einmal.security.errors import SecuritySettingError
from einmal.security.secret import Secret
from einmal.security.settings import Pem, TlsSettings
from einmal.security.tls import tls_context
from tests.security.certificates import Authority, Certificate

CANARY = "canary-3"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def certificate(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return authority.issue(tmp_path_factory.mktemp("c"), "client", password=CANARY)


def pem(setting: str, path: Path) -> Pem:
    return Pem(setting, str(path))


def client(certificate: Certificate, key: Path | None = None, password: str | None = CANARY) -> TlsSettings:
    return TlsSettings(
        certificate=pem("ssl.certificate.location", certificate.certificate),
        key=pem("ssl.key.location", key or certificate.key),
        key_password=None if password is None else Secret(password),
    )


def test_tls_1_2_is_the_oldest_and_names_are_checked() -> None:
    context = tls_context(TlsSettings())
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_files_and_settings_may_hold_certificates_and_keys(authority: Authority, certificate: Certificate) -> None:
    from_files = client(certificate)
    tls_context(from_files)
    tls_context(
        TlsSettings(
            authority=Pem("ssl.ca.pem", None, Secret(f"Alias name: ü\n{authority.pem}\n\n")),
            certificate=Pem("ssl.keystore.certificate.chain", None, Secret(certificate.certificate_pem)),
            key=Pem("ssl.keystore.key", None, Secret(certificate.key_pem)),
            key_password=Secret(CANARY),
        )
    )


def test_a_directory_of_authorities_is_accepted(tmp_path: Path) -> None:
    tls_context(TlsSettings(authority=pem("ssl.ca.location", tmp_path)))


def test_unusable_files_are_errors_that_name_their_setting(
    authority: Authority, certificate: Certificate, tmp_path: Path
) -> None:
    other = authority.issue(tmp_path, "other")
    missing, text = tmp_path / "missing.pem", tmp_path / "text.pem"
    text.write_text("hello")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    cases = [
        (TlsSettings(authority=pem("ssl.ca.location", missing)), f"ssl.ca.location={missing} cannot be read"),
        (TlsSettings(authority=pem("ssl.ca.location", text)), "no certificate in PEM"),
        (TlsSettings(authority=pem("ssl.ca.location", broken)), "no certificate in PEM"),
        (client(certificate, missing), f"ssl.key.location={missing} cannot be read"),
        (client(certificate, text), "no private key in PEM"),
        (client(certificate, password=None), "is encrypted"),
        (client(certificate, password="wrong"), "cannot be decrypted"),
        (client(certificate, other.key), "is not the key of the certificate"),
    ]
    for settings, told in cases:
        with pytest.raises(SecuritySettingError) as caught:
            tls_context(settings)
        assert told in caught.value.meaning
        assert caught.value.hint
        assert CANARY not in f"{caught.value!r} {caught.value.hint}"
