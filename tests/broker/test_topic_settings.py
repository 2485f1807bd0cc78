"""What settings mean to a log, whatever Kafka allows."""

import pytest

from einmal.broker.config import BrokerConfig
from einmal.broker.replicas.topic_settings import INDEX_INTERVAL_BYTES_MAX, log_config


@pytest.mark.parametrize("settings", [{}, {"index.interval.bytes": str(2**31 - 1)}])
def test_a_lookup_never_walks_more_than_a_bounded_interval(settings: dict[str, str]) -> None:
    config = BrokerConfig(log_index_interval_bytes=2**31 - 1)
    assert log_config(config, settings).index_interval_bytes == INDEX_INTERVAL_BYTES_MAX
    assert log_config(config, {"index.interval.bytes": "100"}).index_interval_bytes == 100
