"""Claims about properties files and the references in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from einmal.security.errors import SecuritySettingError
from einmal.security.properties import parse_properties, resolved


def test_a_file_is_read_as_java_reads_it() -> None:
    text = (
        "# comment\n! comment\n\n  a = 1\nb:2\nc 3\nempty=\nlong=one,\\\n   two\n"
        "escaped\\=key=x\\ty\\u00e9\nlast=a=b:c \n"
        "path=C:\\\\dir\n"
    )
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "empty": "",
        "long": "one,two",
        "escaped=key": "x\tyé",
        "last": "a=b:c ",
        "path": "C:\\dir",
    }


def test_a_line_ends_where_java_ends_it_and_two_escapes_are_one_character() -> None:
    assert parse_properties("a=1\u2028\x0b2\x85\r\nb=x\ry=\\ud83d\\ude00\n") == {
        "a": "1\u2028\x0b2\x85",
        "b": "x",
        "y": "\U0001f600",
    }


def test_a_file_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    file = tmp_path / "secrets.properties"
    file.write_bytes("password=schlüssel\n".encode())
    script = "import sys; from einmal.security.properties import read_file as read; print(ascii(read(sys.argv[1])))"
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    answer = subprocess.run(
        [sys.executable, "-c", script, file], env=os.environ | ascii_only, capture_output=True, check=True
    )
    assert answer.stdout.decode().strip() == r"'password=schl\xfcssel\n'"


def read(path: str) -> str:
    if path != "/run/secrets":
        raise FileNotFoundError(2, "No such file or directory")
    return "password = s3cret\nother=1\n"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${env:USER}", "alice"),
        ("${file:/run/secrets:password}", "s3cret"),
        ("${file:/run/secrets:}", "password = s3cret\nother=1"),
        ('x username="${env:USER}" password="${file:/run/secrets:password}";', 'x username="alice" password="s3cret";'),
        ("${other:x} $ plain", "${other:x} $ plain"),
    ],
)
def test_references_are_replaced(value: str, expected: str) -> None:
    assert resolved("sasl.password", value, {"USER": "alice"}, read) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("${env:NOBODY}", "sasl.password: the environment has no NOBODY"),
        ("${file:/missing:key}", "/missing cannot be read: No such file"),
        ("${file:/run/secrets:absent}", "has no key 'absent'"),
    ],
)
def test_a_reference_to_nothing_is_an_error_that_names_the_setting(value: str, reason: str) -> None:
    with pytest.raises(SecuritySettingError, match=reason):
        resolved("sasl.password", value, {}, read)
