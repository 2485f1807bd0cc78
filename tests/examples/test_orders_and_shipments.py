"""Claims about examples/orders_and_shipments, by its README's own commands."""

from __future__ import annotations

from collections import Counter

import pytest
from examples.orders_and_shipments.check import answer_of, expected
from examples.orders_and_shipments.generate import Shop

from tests.examples.readme import ROOT, Reader, records_printed
from tests.spark.topics import values

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "orders_and_shipments"


def test_every_order_is_answered_once_by_a_pipeline_that_is_killed(reader: Reader) -> None:
    reader.follow(EXAMPLE / "README.md", kill_in="pipeline.toml")
    shipped = values(reader.bootstrap, "orders-shipped")
    overdue = values(reader.bootstrap, "orders-overdue")
    answers = expected(Shop(1))
    assert Counter(map(answer_of, shipped)) == Counter(each for each in answers if each[2] is not None)
    assert Counter(map(answer_of, overdue)) == Counter(each for each in answers if each[2] is None)
    assert len(shipped) + len(overdue) == records_printed(EXAMPLE / "README.md", "pipeline.toml")
    assert (reader.folder / "build/examples/orders.svg").read_text() == (EXAMPLE / "result.svg").read_text()
