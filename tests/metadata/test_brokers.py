from dataclasses import replace
from uuid import UUID

import pytest

from einmal.metadata.brokers import LOST_GRACE_MS, Heartbeat
from einmal.metadata.features import ELR_VERSION, METADATA_VERSION, SUPPORTED_FEATURES
from einmal.metadata.plan import BrokerFenced, BrokerUnfenced
from einmal.metadata.records import NO_LEADER, RegisterBrokerRecord, SupportedFeature
from einmal.types import BrokerId, ErrorCode
from tests.metadata.cluster import DEFAULTS, Cluster, ids

ONE, TWO = BrokerId(1), BrokerId(2)
TIMEOUT = DEFAULTS.session_timeout_ms


# --- registration ------------------------------------------------------------------------------------------------


def test_a_brokers_epoch_is_the_offset_of_its_registration() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    cluster.done(cluster.controller.broker_lost(ONE, cluster.epochs[1], cluster.now))
    record = cluster.log[cluster.register(1).broker_epoch]
    assert isinstance(record, RegisterBrokerRecord)
    assert record.broker_epoch == cluster.epochs[1] < cluster.end - 1, "what follows from it comes behind it"


def test_a_broker_is_fenced_until_it_has_seen_its_own_registration() -> None:
    cluster = Cluster()
    cluster.register(1)
    epoch = cluster.epochs[1]
    behind = cluster.beat(1, seen=epoch - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    waiting = cluster.beat(1, seen=epoch, wants_fence=True)
    assert (waiting.is_caught_up, waiting.is_fenced) == (True, True)
    ready = cluster.beat(1, seen=epoch)
    assert (ready.is_caught_up, ready.is_fenced, ready.should_shut_down) == (True, False, False)
    assert cluster.actions[-1] == BrokerUnfenced(ONE, epoch)


def test_the_same_process_that_registers_again_keeps_its_epoch_and_its_state() -> None:
    cluster = Cluster(1)
    incarnation = cluster.image.brokers[ONE].incarnation_id
    end = cluster.end
    again = cluster.register(1, incarnation_id=incarnation)
    assert (again.broker_epoch, cluster.end) == (cluster.image.brokers[ONE].broker_epoch, end)
    cluster.register(1, incarnation_id=incarnation, rack="new")
    assert (cluster.image.brokers[ONE].rack, cluster.image.brokers[ONE].is_fenced) == ("new", False)
    assert cluster.epochs[1] == again.broker_epoch


def test_a_second_process_under_the_same_id_is_refused_while_the_first_is_alive() -> None:
    cluster = Cluster(1)
    cluster.pass_time(TIMEOUT - 1)
    assert cluster.register(1).error is ErrorCode.duplicate_broker_registration
    cluster.pass_time(1)
    assert cluster.register(1).error is ErrorCode.none


def test_a_broker_whose_connection_is_gone_may_come_back_at_once() -> None:
    cluster = Cluster(1)
    cluster.done(cluster.controller.broker_lost(ONE, cluster.epochs[1], cluster.now))
    assert cluster.register(1).error is ErrorCode.none


def test_a_new_controller_has_no_heartbeats_yet() -> None:
    cluster = Cluster(1)
    cluster.take_over()
    assert cluster.register(1).error is ErrorCode.none


def test_a_broker_that_does_not_support_the_clusters_levels_is_refused() -> None:
    cluster = Cluster()
    assert cluster.register(1, features=()).error is ErrorCode.unsupported_version
    old = (*SUPPORTED_FEATURES[1:], SupportedFeature("metadata.version", 1, 20))
    refused = cluster.register(1, features=old)
    assert refused.error is ErrorCode.unsupported_version
    assert refused.message == "Broker 1 does not support level 27 of metadata.version, but 1 to 20."


def test_a_feature_that_a_broker_does_not_list_is_supported_at_level_zero_only() -> None:
    listed = tuple(feature for feature in SUPPORTED_FEATURES if feature.name != ELR_VERSION)
    refused = Cluster().register(1, features=listed)
    assert refused.error is ErrorCode.unsupported_version
    assert refused.message == f"Broker 1 does not support level 1 of {ELR_VERSION}, but 0 to 0."
    cluster = Cluster(defaults=replace(DEFAULTS, features={METADATA_VERSION: 27, ELR_VERSION: 0}))
    assert cluster.register(1, features=listed).error is ErrorCode.none


def test_a_restarted_brokers_partitions_are_led_by_others() -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    cluster.pass_time(TIMEOUT - 1, alive=[2, 3])
    cluster.done(cluster.controller.broker_lost(ONE, cluster.epochs[1], cluster.now))
    cluster.register(1)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.leader_epoch) == (TWO, ids(2, 3), 1)


def test_only_replica_clean_restart_leads_under_new_epochs_without_risk() -> None:
    cluster = Cluster(1, replace(DEFAULTS, min_insync_replicas=1))
    cluster.create("t", (1,))
    cluster.lose(1)
    assert (cluster.partition().leader, cluster.partition().elr) == (NO_LEADER, ids(1))
    cluster.join(1, clean=True)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr, partition.leader_epoch) == (ONE, ids(1), (), 2)
    assert not cluster.is_at_risk()


def test_the_only_replica_after_an_unclean_restart_leads_as_last_known_leader_and_that_is_reported() -> None:
    cluster = Cluster(1, replace(DEFAULTS, min_insync_replicas=1))
    cluster.create("t", (1,))
    cluster.lose(1)
    cluster.register(1)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (NO_LEADER, (), (), ids(1))
    cluster.beat(1)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.last_known_elr) == (ONE, ids(1), ())
    assert cluster.is_at_risk()


def test_a_wiped_folder_is_not_even_the_last_known_leader() -> None:
    cluster = Cluster()
    cluster.join(1, log_dirs=(UUID(int=1),))
    cluster.create("t", (1,))
    cluster.lose(1)
    cluster.join(1, log_dirs=(UUID(int=2),))
    assert (cluster.partition().leader, cluster.partition().last_known_elr) == (NO_LEADER, ())
    assert not cluster.is_at_risk()


def test_a_wiped_folder_is_forgotten_as_the_last_known_leader_also_later() -> None:
    cluster = Cluster()
    for log_dir in (1, 1, 2):
        if 1 in cluster.epochs:
            cluster.lose(1)
        cluster.register(1, log_dirs=(UUID(int=log_dir),))
        if not cluster.image.topics:
            cluster.beat(1)
            cluster.create("t", (1,))
    cluster.beat(1)
    assert cluster.partition().leader == NO_LEADER


def test_a_broker_that_is_unregistered_is_nowhere_in_sync() -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))

    def unregister(number: int) -> ErrorCode:
        return cluster.done(cluster.controller.unregister_broker(BrokerId(number))).error

    assert unregister(9) is ErrorCode.broker_id_not_registered
    assert unregister(1) is ErrorCode.invalid_request, "it is alive"
    cluster.lose(2)
    cluster.lose(1)
    assert cluster.partition().elr == ids(1)
    assert unregister(1) is ErrorCode.none
    partition = cluster.partition()
    assert (partition.isr, partition.elr, partition.replicas) == (ids(3), (), ids(1, 2, 3))
    assert ONE not in cluster.image.brokers


# --- heartbeats and fencing --------------------------------------------------------------------------------------


def test_a_heartbeat_of_another_epoch_gets_stale_broker_epoch() -> None:
    cluster = Cluster(1)
    beat = Heartbeat(broker_id=ONE, broker_epoch=cluster.epochs[1] - 1, metadata_offset=99)
    assert cluster.done(cluster.controller.heartbeat(beat, cluster.end, cluster.now)).error is (
        ErrorCode.stale_broker_epoch
    )
    unknown = replace(beat, broker_id=BrokerId(9))
    assert cluster.done(cluster.controller.heartbeat(unknown, cluster.end, cluster.now)).error is (
        ErrorCode.stale_broker_epoch
    )


def test_a_broker_without_heartbeats_is_fenced_after_the_session_timeout() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    assert cluster.controller.next_deadline() == TIMEOUT
    cluster.pass_time(TIMEOUT - 1, alive=[2])
    assert not cluster.image.brokers[ONE].is_fenced
    cluster.pass_time(1, alive=[2])
    assert cluster.image.brokers[ONE].is_fenced
    assert cluster.actions[-1] == BrokerFenced(ONE, cluster.epochs[1], "its session timed out")
    assert (cluster.partition().leader, cluster.partition().isr) == (TWO, ids(2))


def test_the_only_broker_is_not_fenced_by_the_controller_in_its_own_process() -> None:
    defaults = replace(DEFAULTS, own_broker=ONE)
    alone, together = Cluster(1, defaults), Cluster(2, defaults)
    alone.pass_time(TIMEOUT + 1, alive=[])
    together.pass_time(TIMEOUT + 1, alive=[2])
    assert not alone.image.brokers[ONE].is_fenced
    deadline = alone.controller.next_deadline()
    assert deadline is not None and deadline > alone.now_ms
    assert together.image.brokers[ONE].is_fenced


def test_brokers_that_are_lost_together_are_fenced_one_after_the_other() -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    cluster.pass_time(TIMEOUT)
    assert all(broker.is_fenced for broker in cluster.image.brokers.values())
    assert (cluster.partition().isr, cluster.partition().elr) == ((), ids(2, 3))


def test_a_lost_connection_fences_after_a_moment_unless_a_heartbeat_arrives() -> None:
    cluster = Cluster(2)
    for lost in (ONE, TWO):
        cluster.done(cluster.controller.broker_lost(lost, cluster.epochs[lost], cluster.now))
    assert cluster.controller.next_deadline() == LOST_GRACE_MS
    cluster.pass_time(LOST_GRACE_MS - 1, alive=[2])
    assert not cluster.image.brokers[ONE].is_fenced
    cluster.pass_time(1)
    assert (cluster.image.brokers[ONE].is_fenced, cluster.image.brokers[TWO].is_fenced) == (True, False)


def test_a_broker_that_is_gone_for_certain_is_fenced_without_a_wait() -> None:
    cluster = Cluster(2)
    cluster.done(cluster.controller.broker_lost(ONE, cluster.epochs[1], cluster.now, is_gone=True))
    cluster.pass_time(0)
    assert cluster.image.brokers[ONE].is_fenced


def test_the_lost_connection_of_an_earlier_process_means_nothing() -> None:
    cluster = Cluster(1)
    before = cluster.epochs[1]
    cluster.lose(1)
    cluster.join(1)
    cluster.done(cluster.controller.broker_lost(ONE, before, cluster.now))
    cluster.pass_time(LOST_GRACE_MS)
    assert not cluster.image.brokers[ONE].is_fenced


def test_a_new_controller_grants_every_broker_a_whole_session() -> None:
    cluster = Cluster(2)
    cluster.pass_time(TIMEOUT - 1)
    cluster.take_over()
    cluster.pass_time(TIMEOUT - 1, alive=[2])
    assert not cluster.image.brokers[ONE].is_fenced
    cluster.pass_time(1, alive=[2])
    assert cluster.image.brokers[ONE].is_fenced


def test_a_broker_may_ask_to_be_fenced() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    answer = cluster.beat(1, wants_fence=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, False)
    assert cluster.partition().leader == TWO
    assert not cluster.beat(1).is_fenced


def test_a_broker_with_a_broken_disk_leaves_it_to_others_until_it_starts_anew() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    assert cluster.beat(1, is_disk_broken=True).is_fenced
    assert (cluster.partition().leader, cluster.partition().isr) == (TWO, ids(2))
    assert cluster.beat(1, is_disk_broken=True).is_fenced
    assert cluster.beat(1, is_disk_broken=True, wants_shutdown=True).should_shut_down
    cluster.join(1)
    assert not cluster.image.brokers[ONE].is_fenced


def test_the_only_broker_resumes_with_what_its_disk_still_holds() -> None:
    cluster = Cluster(1)
    assert not cluster.beat(1, is_disk_broken=True).is_fenced


# --- controlled shutdown -----------------------------------------------------------------------------------------


def test_a_broker_may_shut_down_once_other_brokers_have_learned_of_its_former_leaderships() -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    seen = cluster.end - 1
    first = cluster.beat(1, wants_shutdown=True)
    assert (first.is_fenced, first.should_shut_down) == (False, False)
    assert (cluster.partition().leader, cluster.partition().isr) == (TWO, ids(2, 3))
    assert cluster.image.brokers[ONE].in_controlled_shutdown
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down, "nobody has seen it yet"
    cluster.beat(2)
    cluster.beat(3, seen=seen)
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down, "broker 3 has not"
    cluster.beat(3)
    last = cluster.beat(1, wants_shutdown=True)
    assert (last.is_fenced, last.should_shut_down) == (True, True)
    assert cluster.image.brokers[ONE].is_fenced


def test_a_broker_that_leads_nothing_goes_at_once() -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    answer = cluster.beat(3, wants_shutdown=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)
    assert cluster.partition().isr == ids(1, 2)


def test_a_fenced_broker_may_go_at_once() -> None:
    cluster = Cluster()
    cluster.register(1)
    assert cluster.beat(1, wants_shutdown=True).should_shut_down


def test_a_new_controller_completes_a_shutdown_only_once_all_brokers_are_up_to_date() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    cluster.beat(1, wants_shutdown=True)
    cluster.take_over()
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down
    cluster.beat(2)
    assert cluster.beat(1, wants_shutdown=True).should_shut_down


def test_the_only_broker_can_shut_down_and_comes_back_without_risk() -> None:
    cluster = Cluster(1, replace(DEFAULTS, min_insync_replicas=1))
    cluster.create("t", (1,))
    cluster.shut_down(1)
    cluster.join(1, clean=True)
    assert (cluster.partition().leader, cluster.is_at_risk()) == (ONE, False)


# --- eligible leader replicas ------------------------------------------------------------------------------------


def test_after_all_replicas_die_a_replica_known_to_be_complete_leads_first() -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    cluster.lose(1)
    assert (cluster.partition().isr, cluster.partition().elr) == (ids(2, 3), ())
    cluster.lose(2)
    assert (cluster.partition().isr, cluster.partition().elr) == (ids(3), ids(2))
    cluster.lose(3)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (NO_LEADER, (), ids(2, 3))
    cluster.join(1)
    assert cluster.partition().leader == NO_LEADER, "it lacks what the others have committed"
    cluster.join(2, clean=True)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (TWO, ids(2), ids(3))
    assert not cluster.is_at_risk()


def test_a_replica_that_has_crashed_is_not_eligible_any_more() -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    for number in (1, 2, 3):
        cluster.lose(number)
    cluster.join(2)
    assert (cluster.partition().leader, cluster.partition().elr) == (NO_LEADER, ids(3))
    cluster.join(3, clean=True)
    assert cluster.partition().leader == BrokerId(3)
    assert not cluster.is_at_risk()


def test_without_eligible_replicas_only_the_last_known_leader_leads() -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    for number in (1, 2, 3):
        cluster.lose(number)
    cluster.join(2)
    cluster.join(1)
    assert cluster.partition().leader == NO_LEADER
    cluster.join(3)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr) == (BrokerId(3), ids(3), ())
    assert cluster.is_at_risk()


@pytest.mark.parametrize("clean", [False, True])
def test_with_enough_in_sync_replicas_the_elr_is_empty(clean: bool) -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    cluster.lose(1)
    cluster.lose(2)
    cluster.join(1, clean=clean)
    assert cluster.partition().elr == ids(2)
    cluster.ask_isr(3, 1)
    assert (cluster.partition().isr, cluster.partition().elr) == (ids(3, 1), ())
