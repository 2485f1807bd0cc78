"""The bounds of Apache Kafka's settings that ours are compared with are those of the release that the tests run."""

from __future__ import annotations

import pytest

from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.kafka_bounds import FACTS, facts

pytestmark = pytest.mark.interop


def test_the_bounds_are_those_of_apache_kafka_itself() -> None:
    try:
        assert FACTS.read_text() == facts(), "run python -m tests.interop.kafka_bounds"
    except KafkaUnavailable as error:
        pytest.skip(str(error))
