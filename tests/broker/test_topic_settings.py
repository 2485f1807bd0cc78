"""What settings mean to a log, whatever Kafka allows."""

import pytest

from einmal.broker.config import BrokerConfig, ConfigError, broker_config
from einmal.broker.replicas.topic_settings import INDEX_INTERVAL_BYTES_MAX, log_config
from einmal.metadata.configs import CHANGED_FOR_ALL, SET, ConfigChange
from einmal.types import ErrorCode
from tests.metadata.cluster import Cluster
from tests.suite.cases import each_case

NUMBERS = [sign * (2**bits + more) for bits in (0, 10, 20, 31, 63) for more in (-2, -1, 0, 1) for sign in (1, -1)]
WORDS = ["", "true", "delete", "compact", "delete,compact", "delete,delete", "gzip", "CreateTime", "0.5", "1.5", "x"]


@each_case("name", CHANGED_FOR_ALL)
def test_a_value_that_brokers_refuse_in_their_files_is_refused_while_they_run(name: str) -> None:
    controller = Cluster(1).controller
    for value in (*map(str, NUMBERS), *WORDS):
        try:
            broker_config({name: value})
        except ConfigError:
            is_valid = False
        else:
            is_valid = True
        decision = controller.alter_cluster_configs([ConfigChange(name=name, operation=SET, value=value)])
        assert (decision.response.error is ErrorCode.none) == is_valid, value


@pytest.mark.parametrize("settings", [{}, {"index.interval.bytes": str(2**31 - 1)}])
def test_a_lookup_never_walks_more_than_a_bounded_interval(settings: dict[str, str]) -> None:
    config = BrokerConfig(log_index_interval_bytes=2**31 - 1)
    assert log_config(config, settings).index_interval_bytes == INDEX_INTERVAL_BYTES_MAX
    assert log_config(config, {"index.interval.bytes": "100"}).index_interval_bytes == 100
