"""Principals as settings name them."""

from __future__ import annotations

import pytest

from einmal.security.errors import SecuritySettingError
from einmal.security.principal import Principal, parse_principal


def test_a_name_may_contain_colons() -> None:
    assert parse_principal("User:CN=a:b") == Principal("User", "CN=a:b")
    assert str(parse_principal("User:alice")) == "User:alice"


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:"])
def test_a_principal_without_type_or_name_is_refused(text: str) -> None:
    with pytest.raises(SecuritySettingError, match="principal"):
        parse_principal(text)


@pytest.mark.parametrize("text", ["user:alice", "USER:alice"])
def test_a_misspelt_type_is_refused_because_nobody_is_meant(text: str) -> None:
    """An ACL that denies something to user:alice would deny nothing."""
    with pytest.raises(SecuritySettingError, match="one spelling"):
        parse_principal(text)
    assert parse_principal("Group:ops").kind == "Group"
