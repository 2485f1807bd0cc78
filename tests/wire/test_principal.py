"""DefaultPrincipalData of an Envelope."""

from __future__ import annotations

import pytest

from einmal.security.principal import ANONYMOUS, Principal
from einmal.wire.errors import WireError
from einmal.wire.principal import decode_principal, encode_principal


@pytest.mark.parametrize("principal", [ANONYMOUS, Principal("User", "CN=ähm,O=x"), Principal("Other", "x" * 300)])
def test_a_principal_travels_unchanged(principal: Principal) -> None:
    assert decode_principal(encode_principal(principal)) == principal


def test_the_bytes_are_kafkas() -> None:
    assert encode_principal(Principal("User", "bob")) == b"\x00\x00\x05User\x04bob\x00\x00"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x00\x01\x05User\x04bob\x00\x00",
        b"\x00\x00\x05Use",
        b"\x00\x00\x00\x04bob\x00\x00",
        b"\x00\x00\x05User\x01\x00\x00",
        b"\x00\x00\x05Us\xffr\x04bob\x00\x00",
        b"\x00\x00\x05User\x81\x80\x02" + b"x" * 0x8000 + b"\x00\x00",
    ],
)
def test_anything_else_is_malformed(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_principal(data)
