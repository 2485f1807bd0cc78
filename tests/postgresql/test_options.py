"""How a server is reached, as options have it."""

from __future__ import annotations

import pytest

from einmal.options.values import OptionError, Options
from einmal.postgresql.options import connecting

URL = "postgresql://loader@db.example.com:5432/shop"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("jdbc:postgresql://db/shop", 'leave "jdbc:" away'),
        ("host=db password=hunter2", "contains a password"),
        ("postgresql://db/shop?passwrod=hunter2", "not a connection string"),
    ],
)
def test_a_url_that_cannot_be_is_refused_without_repeating_a_password(url: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        connecting(Options({"url": url}))
    assert "hunter2" not in str(caught.value)


def test_options_override_what_the_url_has_and_no_text_has_the_password() -> None:
    made = connecting(Options({"url": URL, "user": "writer", "password": "hunter2", "sslmode": "require"}))
    assert (str(made), made.conninfo["user"]) == ("shop on db.example.com:5432", "writer")
    assert (made.conninfo["password"], made.conninfo["sslmode"]) == ("hunter2", "require")
    assert "hunter2" not in f"{made} {made!r}"
