"""Claims about the text with the first users of a cluster: Kafka's syntax, and no secret in an error."""

from __future__ import annotations

import base64
import hashlib

import pytest

from einmal.security.errors import SecuritySettingError
from einmal.security.sasl.scram_bootstrap import first_users
from einmal.security.sasl.scram_server import credential_of
from einmal.security.secret import Secret

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


def test_nothing_is_nobody() -> None:
    assert first_users(Secret("")) == first_users(Secret(" \n")) == ()


def test_users_are_read_as_kafka_storage_reads_them() -> None:
    text = r'SCRAM-SHA-256=[name=admin,password="a \"quoted\", pass\\word"],'
    text += "SCRAM-SHA-512=[name=bob,password=b,iterations=4096]"
    admin, bob = first_users(Secret(text))
    assert (admin.mechanism, admin.name, bob.mechanism, bob.name) == (SHA_256, "admin", SHA_512, "bob")
    made = admin.credential(bytes)
    assert made == credential_of(SHA_256, Secret(r'a "quoted", pass\word'), b"0" * 26, 16_384)
    assert bob.credential(bytes).iterations == 4_096


def test_entries_may_be_lines_of_a_file() -> None:
    lines = "SCRAM-SHA-256=[name=a,password=x]\nSCRAM-SHA-512=[name=a,password=x]\n"
    assert [user.mechanism for user in first_users(Secret(lines))] == [SHA_256, SHA_512]


def test_a_salted_password_takes_its_salt() -> None:
    salt, salted = b"some salt", hashlib.pbkdf2_hmac("sha256", b"x", b"some salt", 8_192)
    encoded = [base64.b64encode(each).decode() for each in (salt, salted)]
    text = f'SCRAM-SHA-256=[name=a,iterations=8192,salt="{encoded[0]}",saltedpassword="{encoded[1]}"]'
    assert first_users(Secret(text))[0].credential(bytes) == credential_of(SHA_256, Secret("x"), salt, 8_192)


@pytest.mark.parametrize(
    "text",
    [
        "hunter2",
        "MD5=[name=a,password=hunter2]",
        "SCRAM-SHA-256=[name=a,password=hunter2",
        "SCRAM-SHA-256=[password=hunter2]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[name=a,password=hunter2,colour=red]",
        "SCRAM-SHA-256=[name=a,password=hunter2,iterations=4095]",
        "SCRAM-SHA-256=[name=a,password=hunter2,iterations=16385]",
        "SCRAM-SHA-256=[name=a,password=hunter2,iterations=many]",
        "SCRAM-SHA-256=[name=a,saltedpassword=hunter2]",
        'SCRAM-SHA-256=[name=a,saltedpassword="AAAA",salt="hunter2=="]',
        "SCRAM-SHA-256=[name=a,password=hunter2],SCRAM-SHA-256=[name=a,password=hunter2]",
    ],
)
def test_every_other_text_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(SecuritySettingError) as caught:
        first_users(Secret(text))
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
