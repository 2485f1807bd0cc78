"""Claims about the client that writes dead letters beside other sinks."""

from __future__ import annotations

import itertools

import pytest

from einmal.options.values import OptionError
from einmal.spark.api.letter_part import _client


def source(user: str, bootstrap: str = "127.0.0.1:9092") -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": user,
        "kafka.sasl.password": f"of {user}",
        "subscribe": user,
    }


@pytest.mark.parametrize("users", [*itertools.permutations(("alice", "bob", "carol"))], ids="-".join)
def test_of_several_credentials_it_has_those_of_the_first_source(users: tuple[str, ...]) -> None:
    client = _client("letters", [source(user) for user in users])
    assert (client["sasl.username"], client["sasl.password"]) == (users[0], f"of {users[0]}")
    assert client["client.id"] == "letters"


def test_sources_in_several_clusters_have_none() -> None:
    with pytest.raises(OptionError, match="several clusters"):
        _client(None, [source("alice"), source("alice", "127.0.0.1:9093")])
