from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier

from einmal.security.certificates import subject_of, valid_until

END = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)


def certificate(name: x509.Name, end: datetime = END) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(name, name, key.public_key(), 2**100, end - timedelta(days=1), end)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def name_of(*attributes: tuple[ObjectIdentifier, str] | x509.NameAttribute[str]) -> str:
    made = [each if isinstance(each, x509.NameAttribute) else x509.NameAttribute(*each) for each in attributes]
    return subject_of(certificate(x509.Name(made)))


def test_a_name_is_written_as_java_writes_it_last_attribute_first() -> None:
    told = name_of(
        (NameOID.COUNTRY_NAME, "DE"),
        (NameOID.STATE_OR_PROVINCE_NAME, "Berlin"),
        (NameOID.LOCALITY_NAME, "Mitte"),
        (NameOID.ORGANIZATION_NAME, "Example, Inc."),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "Orders"),
        (NameOID.DOMAIN_COMPONENT, "example"),
        (NameOID.USER_ID, "u1"),
        (NameOID.COMMON_NAME, "alice"),
    )
    assert told == "CN=alice,UID=u1,DC=example,OU=Orders,O=Example\\, Inc.,L=Mitte,ST=Berlin,C=DE"


def test_a_type_that_rfc_2253_does_not_name_is_a_number_and_its_value_hexadecimal() -> None:
    assert name_of((NameOID.EMAIL_ADDRESS, "a@b"), (NameOID.COMMON_NAME, "x")) == (
        "CN=x,1.2.840.113549.1.9.1=#1603614062"
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ('a,b=c+d<e>f#g;h"i\\j', 'a\\,b\\=c\\+d\\<e\\>f\\#g\\;h\\"i\\\\j'),
        (" a b ", "\\ a b\\ "),
        ("Grüße", "Grüße"),
    ],
)
def test_special_characters_are_escaped(value: str, told: str) -> None:
    assert name_of((NameOID.COMMON_NAME, value)) == f"CN={told}"


def test_a_bmp_string_is_text() -> None:
    assert name_of(x509.NameAttribute(NameOID.COMMON_NAME, "é", _ASN1Type.BMPString)) == "CN=é"


def test_a_relative_name_may_have_several_attributes() -> None:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.USER_ID, "b")]
    name = x509.Name([x509.RelativeDistinguishedName(attributes)])
    assert subject_of(certificate(name)) in ("CN=a+UID=b", "UID=b+CN=a")


@pytest.mark.parametrize("end", [END, END.replace(year=2099)])
def test_the_end_of_validity_is_read_before_and_after_2050(end: datetime) -> None:
    assert valid_until(certificate(x509.Name([]), end)) == end


def test_broken_der_is_an_error_and_nothing_else() -> None:
    whole = certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]))
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="certificate"):
            subject_of(whole[:size])
