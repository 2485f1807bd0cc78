"""The first users of a new cluster, as Kafka's ``kafka-storage format --add-scram`` writes them. Pure.

``SCRAM-SHA-512=[name=admin,password="..."]``, any number of them, separated by commas or line breaks. ``iterations`` is
optional, and so is ``salt`` (base64); ``saltedpassword`` (base64, with a salt) replaces the password. A value with a
comma, a bracket, a quote or a space is in double quotes, in which a backslash precedes a quote or a backslash.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from einmal.security.errors import SecuritySettingError
from einmal.security.sasl.scram import HASHES
from einmal.security.sasl.scram_server import SALT_LENGTH, ScramCredential, credential_of, credential_of_salted, salt_of
from einmal.security.secret import Secret

NAME: Final = "einmal.bootstrap.scram.credentials"
_VALUE: Final = r'"(?:[^"\\]|\\.)*"|[^\s",\[\]]+'
_ENTRY: Final = re.compile(rf"\s*([\w-]+)\s*=\s*\[((?:\s*\w+\s*=\s*(?:{_VALUE})\s*,?)*)\]\s*(?:,|\n|\Z)\s*")
_FIELD: Final = re.compile(rf"(\w+)\s*=\s*({_VALUE})")
_FIELDS: Final = ("name", "password", "iterations", "salt", "saltedpassword")
_ITERATIONS: Final = 16_384
_ITERATIONS_MIN: Final = 4_096


class FirstUser(NamedTuple):
    """``credential()`` derives it, from random bytes for the salt; it takes milliseconds."""

    mechanism: str
    name: str
    credential: Callable[[Callable[[int], bytes]], ScramCredential]


def first_users(text: Secret) -> tuple[FirstUser, ...]:
    """Raises SecuritySettingError, whose text never quotes a value."""
    users: dict[tuple[str, str], FirstUser] = {}
    for mechanism, fields in _entries(text.reveal()):
        user = _user(mechanism, fields)
        if (user.mechanism, user.name) in users:
            raise SecuritySettingError(f"{NAME}: {user.name} is there twice for {mechanism}", "remove one of them")
        users[user.mechanism, user.name] = user
    return tuple(users.values())


def _entries(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    position, number = 0, 0
    while position < len(text) and text[position:].strip():
        number += 1
        match = _ENTRY.match(text, position)
        if match is None or match[1] not in HASHES:
            raise SecuritySettingError(
                f"{NAME}: entry {number} is not MECHANISM=[name=...,password=...] with {' or '.join(HASHES)}",
                'write it as kafka-storage does: SCRAM-SHA-512=[name=admin,password="..."]',
            )
        fields = {name: _unquoted(value) for name, value in _FIELD.findall(match[2])}
        unknown = next((name for name in fields if name not in _FIELDS), None)
        if unknown is not None:
            raise SecuritySettingError(f"{NAME}: entry {number} has an unknown field", f"use {', '.join(_FIELDS)}")
        yield match[1], fields
        position = match.end()


def _user(mechanism: str, fields: dict[str, str]) -> FirstUser:
    name, password, salted = (fields.get(field, "") for field in ("name", "password", "saltedpassword"))
    if not name or bool(password) == bool(salted) or (salted and "salt" not in fields):
        raise SecuritySettingError(
            f"{NAME}: an entry needs a name, and a password or a saltedpassword with its salt", "complete it"
        )
    iterations = int(fields["iterations"]) if fields.get("iterations", "").isdigit() else 0
    if "iterations" not in fields:
        iterations = _ITERATIONS
    if not _ITERATIONS_MIN <= iterations <= _ITERATIONS:
        raise SecuritySettingError(
            f"{NAME}: iterations of {name} are not between {_ITERATIONS_MIN} and {_ITERATIONS}", "correct them"
        )
    salt = _decoded(name, fields["salt"]) if "salt" in fields else b""
    key = _decoded(name, salted) if salted else b""

    def credential(random_bytes: Callable[[int], bytes]) -> ScramCredential:
        if key:
            return credential_of_salted(mechanism, key, salt, iterations)
        return credential_of(mechanism, Secret(password), salt or salt_of(random_bytes(SALT_LENGTH)), iterations)

    return FirstUser(mechanism, name, credential)


def _decoded(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SecuritySettingError(f"{NAME}: salt or saltedpassword of {name} is not base64", "correct it") from None


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] == '"' else value
