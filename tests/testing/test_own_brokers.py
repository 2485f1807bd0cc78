"""Claims about the brokers of a test session: their start ends, whatever becomes of them."""

from __future__ import annotations

import signal

import pytest

from einmal.local.processes import BrokerFailed
from einmal.testing.own_brokers import OwnBrokers


@pytest.mark.system
def test_the_end_of_a_broker_ends_the_start_of_the_others_which_would_wait_for_it() -> None:
    brokers = OwnBrokers(3)
    for node_id in list(brokers.cluster.brokers)[1:]:
        brokers.cluster.brokers[node_id].kill()
    with pytest.raises(BrokerFailed, match="broker [0-9]+ has ended; the end of"):
        brokers.wait_until_ready()
    assert not any(broker.is_running for broker in brokers.cluster.brokers.values())


@pytest.mark.system
def test_a_start_that_makes_no_progress_has_a_limit() -> None:
    brokers = OwnBrokers(1)
    (broker,) = brokers.cluster.brokers.values()
    broker.signal(signal.SIGSTOP)
    with pytest.raises(BrokerFailed, match="do not serve within 0.5 s"):
        brokers.wait_until_ready(0.5)
    assert not broker.is_running
