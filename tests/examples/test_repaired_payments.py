"""Claims about examples/repaired_payments, by its README's own commands."""

from __future__ import annotations

import json

import pytest
from examples.repaired_payments.generate import payments

from tests.examples.readme import ROOT, Reader
from tests.spark.topics import values

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "repaired_payments"


def test_each_payment_is_loaded_once_after_a_repair_whatever_is_killed(reader: Reader) -> None:
    reader.follow(EXAMPLE / "README.md", kill_in="pipeline.toml")
    loaded = sorted(
        (json.loads(each) for each in values(reader.bootstrap, "loaded-payments")), key=lambda each: each["id"]
    )
    assert loaded == list(payments(1))
    assert len(values(reader.bootstrap, "card-payments-dlq")) == 40
    picture = (reader.folder / "build/examples/repaired_payments.svg").read_text()
    assert picture == (EXAMPLE / "result.svg").read_text()
