"""Replicas under failovers: what is committed is never lost or changed, and in the end all logs are the same."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replication.cluster import Broker, Cluster

STEPS = 800


def churn(cluster: Cluster, *, unclean: bool) -> None:
    """One step of whatever may happen."""
    choice = cluster.random
    cluster.now += choice.randint(0, 5)
    if choice.random() < 0.45 and cluster.messages:
        pass_message(cluster)
    else:
        work(cluster, cluster.brokers[choice.choice(cluster.replicas)], unclean=unclean)


def pass_message(cluster: Cluster) -> None:
    """A message arrives, or is lost; it may come before older ones, and come again."""
    choice = cluster.random
    number = choice.randrange(min(len(cluster.messages), 8))
    message = cluster.messages[number] if choice.random() < 0.1 else cluster.messages.pop(number)
    if choice.random() < 0.9:
        cluster.deliver(message)


def work(cluster: Cluster, broker: Broker, *, unclean: bool) -> None:
    choice = cluster.random
    if not broker.is_up:
        if choice.random() < 0.05:
            cluster.start(broker, is_clean=True)
        return
    dice = choice.random()
    if dice < 0.3:
        cluster.learn(broker)
    elif dice < 0.55:
        cluster.ask(broker)
    elif dice < 0.75:
        cluster.produce(broker)
    elif dice < 0.85:
        cluster.propose(broker)
    elif dice < 0.91:
        cluster.flush(broker)
    elif dice < 0.95:
        cluster.fence(broker.broker_id)
    elif dice < 0.97:
        if broker.leader is not None:
            broker.log.delete_before(choice.randint(broker.log.start, broker.log.high_watermark))
    else:
        cluster.crash(broker, loses_unflushed=unclean)


def settle(cluster: Cluster) -> None:
    """The faults are over: everybody starts, and messages come at once and in order."""
    cluster.messages.clear()
    for broker in cluster.brokers.values():
        if not broker.is_up:
            cluster.start(broker, is_clean=True)
        cluster.fenced.pop(broker.broker_id, None)
    cluster.elect()
    for _ in range(300):
        cluster.now += 2
        for broker in cluster.brokers.values():
            cluster.learn(broker)
            cluster.flush(broker)
            cluster.ask(broker)
            cluster.propose(broker)
        waiting, cluster.messages = cluster.messages, []
        while waiting:
            for message in waiting:
                cluster.deliver(message)
            waiting, cluster.messages = cluster.messages, []


def check_equal(cluster: Cluster) -> None:
    assert cluster.image.isr == cluster.replicas or set(cluster.image.isr) == set(cluster.replicas)
    leader = cluster.brokers[cluster.image.leader]  # type: ignore[index]
    end = leader.log.log_end_offset
    assert leader.log.high_watermark == end == len(cluster.committed)
    for broker in cluster.brokers.values():
        log = broker.log
        assert (log.log_end_offset, log.high_watermark) == (end, end)
        assert log.entries == cluster.committed[log.start :]


def play(cluster: Cluster, *, unclean: bool = False) -> None:
    for broker in cluster.brokers.values():
        cluster.learn(broker)
    for _ in range(STEPS):
        churn(cluster, unclean=unclean)
    settle(cluster)
    check_equal(cluster)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([2, 3, 5]), st.sampled_from([1, 2]))
def test_nothing_committed_is_lost_or_changed_by_kills_and_a_bad_network(
    seed: int, brokers: int, min_insync_replicas: int
) -> None:
    play(Cluster(seed, brokers=brokers, min_insync_replicas=min_insync_replicas))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([3, 5]))
def test_power_cuts_take_nothing_that_was_flushed_everywhere(seed: int, brokers: int) -> None:
    play(Cluster(seed, brokers=brokers, min_insync_replicas=2, flush_each=True), unclean=True)


def test_the_model_reaches_what_it_is_about() -> None:
    clusters = [Cluster(seed) for seed in range(40)]
    for cluster in clusters:
        play(cluster)
    assert sum(cluster.truncations for cluster in clusters) > 10
    assert sum(len(cluster.leaders) for cluster in clusters) > 100
    assert sum(len(cluster.committed) for cluster in clusters) > 500
    assert sum(any(broker.log.start for broker in cluster.brokers.values()) for cluster in clusters) > 5
