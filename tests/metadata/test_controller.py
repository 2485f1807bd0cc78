from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT
from einmal.metadata.plan import CallOnBrokers
from einmal.metadata.records import ConfigRecord, FeatureLevelRecord
from einmal.metadata.topics import NewTopic
from einmal.types import BrokerId, ErrorCode
from tests.metadata.cluster import Cluster, ids


def test_a_new_cluster_begins_with_its_levels_and_the_setting_that_all_must_share() -> None:
    cluster = Cluster()
    assert cluster.log == [
        FeatureLevelRecord("metadata.version", 27),
        FeatureLevelRecord("eligible.leader.replicas.version", 1),
        FeatureLevelRecord("transaction.version", 2),
        ConfigRecord(BROKER_RESOURCE, CLUSTER_DEFAULT, "min.insync.replicas", "2"),
    ]
    cluster.take_over()
    assert cluster.end == 4, "later controllers have nothing to add"


def test_a_new_controller_calls_on_the_brokers_that_should_be_there() -> None:
    cluster = Cluster(3)
    cluster.lose(2)
    cluster.take_over()
    assert cluster.actions[-1] == CallOnBrokers(((BrokerId(1), cluster.epochs[1]), (BrokerId(3), cluster.epochs[3])))


def test_blocks_of_producer_ids_never_overlap_and_go_to_registered_processes_only() -> None:
    cluster = Cluster(2)

    def allocate(number: int, epoch: int) -> range | ErrorCode:
        return cluster.done(cluster.controller.allocate_producer_ids(BrokerId(number), epoch))

    first = allocate(1, cluster.epochs[1])
    cluster.take_over()
    second = allocate(2, cluster.epochs[2])
    assert isinstance(first, range) and isinstance(second, range)
    assert first.stop == second.start
    stale = cluster.epochs[1]
    cluster.lose(1)
    cluster.join(1)
    assert allocate(1, stale) is ErrorCode.stale_broker_epoch
    assert allocate(9, stale) is ErrorCode.stale_broker_epoch


def test_what_is_decided_changes_nothing_before_it_is_replayed() -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    before = cluster.image.copy()
    topic = NewTopic(name="u", topic_id=cluster.image.topics["t"].topic_id)
    cluster.controller.create_topics([topic])
    cluster.controller.allocate_producer_ids(BrokerId(1), cluster.epochs[1])
    cluster.controller.unregister_broker(BrokerId(1))
    cluster.controller.elect_leaders(0, None)
    assert cluster.image == before
    assert cluster.partition().isr == ids(1, 2, 3)
