"""Claims about examples/lookup, by its README's own commands."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.readme import ROOT, Reader
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.topics import values

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "lookup"
CARTS = {f"cart-{number}" for number in range(1, 61)}


@pytest.fixture
def two_phase_broker(tmp_path: Path) -> Iterator[EinmalBroker]:
    broker = EinmalBroker(tmp_path / "broker", {"transaction.two.phase.commit.enable": "true"})
    broker.start()
    yield broker
    broker.stop()


def test_each_sink_has_the_answers_of_one_attempt(two_phase_broker: EinmalBroker, tmp_path: Path) -> None:
    reader = Reader(tmp_path, two_phase_broker.bootstrap)
    reader.follow(EXAMPLE / "README.md")

    def in_database(way: str) -> list[str]:
        with sqlite3.connect(tmp_path / f"build/examples/priced-{way}.db") as database:
            return [row for (row,) in database.execute("SELECT cart_and_price FROM priced")]

    at = {price: sorted(f"{cart} {price}" for cart in CARTS) for price in (31, 33)}
    topics = {
        way: sorted(values(reader.bootstrap, f"priced-{way}")) for way in ("topic", "apart", "prepared", "decided")
    }
    assert topics == {"topic": at[33], "apart": at[31], "prepared": at[33], "decided": at[31]}
    databases = {way: sorted(in_database(way)) for way in ("apart", "prepared", "decided")}
    assert databases == {"apart": at[33], "prepared": at[33], "decided": at[31]}
    assert (tmp_path / "build/examples/lookup.svg").read_text() == (EXAMPLE / "result.svg").read_text()
