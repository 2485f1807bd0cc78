from dataclasses import replace
from typing import Any

import pytest

from einmal.metadata.configs import DELETE, SET, ConfigChange
from einmal.metadata.image import BROKER_RESOURCE, CLUSTER_DEFAULT
from einmal.metadata.partition_change import Outcome
from einmal.metadata.partitions import PREFERRED, UNCLEAN, ElectionResult, IsrRequest
from einmal.metadata.plan import LedAtRisk
from einmal.metadata.records import NO_LEADER, RECOVERED, RECOVERING, ConfigRecord, PartitionChangeRecord
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, TopicPartition
from tests.metadata.cluster import DEFAULTS, Cluster, ids

ONE, TWO, THREE = ids(1, 2, 3)
T0 = TopicPartition("t", 0)


def three(**configs: str) -> Cluster:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3), **configs)
    return cluster


def elect(
    cluster: Cluster, kind: int, partitions: list[TopicPartition] | None = None
) -> dict[TopicPartition, ErrorCode]:
    results = cluster.done(cluster.controller.elect_leaders(kind, partitions))
    assert not isinstance(results, ErrorCode)
    return {result.topic_partition: result.error for result in results}


# --- AlterPartition ----------------------------------------------------------------------------------------------


def test_a_leader_shrinks_and_expands_its_isr() -> None:
    cluster = three()
    result = cluster.ask_isr(1, 2)
    assert (result.error, result.partition) == (ErrorCode.none, cluster.partition())
    assert (cluster.partition().isr, cluster.partition().elr, cluster.partition().partition_epoch) == (ids(1, 2), (), 1)
    cluster.ask_isr(1)
    assert (cluster.partition().isr, cluster.partition().elr) == (ids(1), ids(2)), "below min.insync.replicas"
    cluster.ask_isr(1, 3)
    assert (cluster.partition().isr, cluster.partition().elr) == (ids(1, 3), ())
    assert cluster.partition().leader_epoch == 0, "the leader is the same"


def test_the_isr_that_holds_already_is_written_anew_under_a_new_epoch() -> None:
    cluster = three()
    result = cluster.ask_isr(1, 2, 3)
    assert result.partition is not None
    assert result.partition.partition_epoch == 1
    assert cluster.log[-1] == PartitionChangeRecord(0, cluster.image.topics["t"].topic_id, isr=ids(1, 2, 3))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"partition_id": 1}, ErrorCode.unknown_topic_or_partition),
        ({"partition_id": -1}, ErrorCode.unknown_topic_or_partition),
        ({"leader_epoch": 5}, ErrorCode.not_controller),
        ({"partition_epoch": 5}, ErrorCode.not_controller),
        ({"leader_epoch": 0}, ErrorCode.fenced_leader_epoch),
        ({"sender": 3}, ErrorCode.invalid_request),
        ({"partition_epoch": 0}, ErrorCode.invalid_update_version),
        ({"isr": ((TWO, -1), (BrokerId(4), -1))}, ErrorCode.invalid_request),
        ({"isr": ()}, ErrorCode.invalid_request),
        ({"isr": ((TWO, -1), (TWO, -1))}, ErrorCode.invalid_request),
        ({"leader_recovery_state": 7}, ErrorCode.invalid_request),
        ({"leader_recovery_state": RECOVERING, "isr": ((TWO, -1),)}, ErrorCode.invalid_request),
        ({"isr": ((TWO, -1), (ONE, -1))}, ErrorCode.ineligible_replica),
        ({"isr": ((TWO, -1), (THREE, 1))}, ErrorCode.ineligible_replica),
        ({"isr": ((TWO, -1), (THREE, -1))}, ErrorCode.none),
    ],
)
def test_each_thing_that_is_wrong_with_a_wanted_isr_has_its_error(fields: dict[str, Any], error: ErrorCode) -> None:
    cluster = Cluster(4)
    cluster.create("t", (1, 2, 3))
    cluster.lose(1)
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (TWO, 1)
    end, before = cluster.end, cluster.partition()
    given = dict(fields)
    sender = given.pop("sender", 2)
    request = replace(
        IsrRequest(partition_id=0, leader_epoch=LeaderEpoch(1), partition_epoch=1, isr=((TWO, -1),)), **given
    )
    topics = [(cluster.image.topics["t"].topic_id, [request])]
    results = cluster.done(cluster.controller.alter_partition(BrokerId(sender), cluster.epochs[sender], topics))
    assert not isinstance(results, ErrorCode)
    assert results[0][1][0].error is error
    assert (cluster.end == end and cluster.partition() == before) == (error is not ErrorCode.none)


def test_a_leader_that_resigns_is_succeeded_by_the_others_and_may_come_back() -> None:
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    before = cluster.partition()

    def alter(leader: int, leader_epoch: int, partition_epoch: int, *isr: int) -> ErrorCode:
        wanted = IsrRequest(
            partition_id=0,
            leader_epoch=LeaderEpoch(leader_epoch),
            partition_epoch=partition_epoch,
            isr=tuple((BrokerId(each), -1) for each in isr),
        )
        topics = [(cluster.image.topics["t"].topic_id, [wanted])]
        results = cluster.done(cluster.controller.alter_partition(BrokerId(leader), cluster.epochs[leader], topics))
        assert not isinstance(results, ErrorCode)
        return results[0][1][0].error

    assert alter(1, before.leader_epoch, before.partition_epoch, 2, 3) is ErrorCode.new_leader_elected
    after = cluster.partition()
    assert (after.leader, after.isr, after.leader_epoch) == (TWO, (TWO, THREE), before.leader_epoch + 1)
    assert alter(1, before.leader_epoch, before.partition_epoch, 3) is ErrorCode.fenced_leader_epoch
    assert alter(2, after.leader_epoch, after.partition_epoch, 2, 3, 1) is ErrorCode.none
    assert (cluster.partition().leader, set(cluster.partition().isr)) == (TWO, {ONE, TWO, THREE})


def test_a_replica_that_shuts_down_or_has_restarted_since_it_fetched_is_not_let_in() -> None:
    cluster = three()
    fetched_as = cluster.epochs[3]
    cluster.lose(3)
    cluster.join(3)
    assert cluster.ask_isr(1, 2, isr=((ONE, -1), (THREE, fetched_as))).error is ErrorCode.ineligible_replica
    cluster.create("u", (3,))
    cluster.beat(3, wants_shutdown=True)
    assert cluster.ask_isr(1, 2, 3).error is ErrorCode.ineligible_replica


def test_a_stale_epoch_and_an_unknown_topic_get_errors() -> None:
    cluster = three()
    topic_id = cluster.image.topics["t"].topic_id
    request = IsrRequest(partition_id=0, leader_epoch=LeaderEpoch(0), partition_epoch=0, isr=((ONE, -1),))
    stale = cluster.controller.alter_partition(ONE, cluster.epochs[1] + 1, [(topic_id, [request])])
    assert (stale.response, stale.records) == (ErrorCode.stale_broker_epoch, ())
    unknown = cluster.image.brokers[ONE].incarnation_id
    results = cluster.done(cluster.controller.alter_partition(ONE, cluster.epochs[1], [(unknown, [request])]))
    assert not isinstance(results, ErrorCode)
    assert results[0][1][0].error is ErrorCode.unknown_topic_id


def test_of_two_requests_under_one_epoch_the_second_is_refused() -> None:
    cluster = three()
    topic_id = cluster.image.topics["t"].topic_id
    request = IsrRequest(partition_id=0, leader_epoch=LeaderEpoch(0), partition_epoch=0, isr=((ONE, -1),))
    results = cluster.done(cluster.controller.alter_partition(ONE, cluster.epochs[1], [(topic_id, [request, request])]))
    assert not isinstance(results, ErrorCode)
    assert [result.error for result in results[0][1]] == [ErrorCode.none, ErrorCode.invalid_update_version]
    assert cluster.partition().partition_epoch == 1


# --- elections ---------------------------------------------------------------------------------------------------


def test_the_preferred_leader_leads_again_on_request() -> None:
    cluster = three()
    assert elect(cluster, PREFERRED, [T0]) == {T0: ErrorCode.election_not_needed}
    cluster.lose(1)
    assert elect(cluster, PREFERRED, [T0]) == {T0: ErrorCode.preferred_leader_not_available}
    cluster.join(1)
    assert elect(cluster, PREFERRED, [T0]) == {T0: ErrorCode.preferred_leader_not_available}, "it is not in sync"
    cluster.ask_isr(2, 3, 1)
    assert elect(cluster, PREFERRED) == {T0: ErrorCode.none}
    assert (cluster.partition().leader, cluster.partition().isr) == (ONE, ids(2, 3, 1))
    assert elect(cluster, PREFERRED) == {}, "without a list only what is needed is told"
    assert not cluster.is_at_risk()


def test_leads_go_back_by_themselves_from_time_to_time() -> None:
    cluster = three()
    cluster.lose(1)
    cluster.join(1)
    cluster.ask_isr(2, 3, 1)
    cluster.pass_time(2_000, alive=[1, 2, 3])
    assert cluster.partition().leader == TWO
    while cluster.now_ms < 300_000:
        cluster.pass_time(2_000, alive=[1, 2, 3])
    assert cluster.partition().leader == ONE


def test_leads_stay_where_they_are_if_so_set() -> None:
    cluster = Cluster(3, replace(DEFAULTS, preferred_leaders_every_ms=None))
    cluster.create("t", (1, 2, 3))
    cluster.lose(1)
    cluster.join(1)
    cluster.ask_isr(2, 3, 1)
    while cluster.now_ms < 700_000:
        cluster.pass_time(2_000, alive=[1, 2, 3])
    assert cluster.partition().leader == TWO


def test_an_unclean_election_needs_a_request_and_is_reported() -> None:
    cluster = three()
    assert elect(cluster, UNCLEAN, [T0]) == {T0: ErrorCode.election_not_needed}
    for number in (1, 2, 3):
        cluster.lose(number)
    assert elect(cluster, UNCLEAN, [T0]) == {T0: ErrorCode.eligible_leaders_not_available}
    cluster.join(1)
    assert cluster.partition().leader == NO_LEADER
    assert elect(cluster, UNCLEAN, [T0]) == {T0: ErrorCode.none}
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (ONE, ids(1), (), ())
    assert partition.leader_recovery_state == RECOVERING
    assert cluster.actions[-1] == LedAtRisk("t", 0, ONE, Outcome.UNCLEAN, has_others=True)
    cluster.ask_isr(1, leader_recovery_state=RECOVERING)
    assert cluster.partition().leader_recovery_state == RECOVERING
    cluster.ask_isr(1)
    assert cluster.partition().leader_recovery_state == RECOVERED


def test_an_unknown_election_type_and_an_unknown_partition_get_errors() -> None:
    cluster = three()
    assert cluster.controller.elect_leaders(2, None).response is ErrorCode.invalid_request
    missing = TopicPartition("t", 1)
    assert elect(cluster, PREFERRED, [missing]) == {missing: ErrorCode.unknown_topic_or_partition}
    assert isinstance(ElectionResult(T0).message, type(None))


def test_a_topic_with_unclean_elections_is_led_by_any_available_replica() -> None:
    cluster = three(unclean_leader_election_enable="true")
    for number in (1, 2, 3):
        cluster.lose(number)
    cluster.join(1)
    assert cluster.partition().leader == ONE
    assert cluster.is_at_risk()


def test_allowing_it_later_elects_at_once() -> None:
    cluster = three()
    for number in (1, 2, 3):
        cluster.lose(number)
    cluster.join(1)
    change = ConfigChange(name="unclean.leader.election.enable", operation=SET, value="true")
    assert cluster.controller.alter_topic_configs([("t", [change])], validate_only=True).records == ()
    cluster.done(cluster.controller.alter_topic_configs([("t", [change])]))
    assert cluster.partition().leader == ONE
    assert cluster.actions[-1] == LedAtRisk("t", 0, ONE, Outcome.UNCLEAN, has_others=True)


# --- min.insync.replicas -----------------------------------------------------------------------------------------


def test_replicas_that_lagged_under_a_lower_min_insync_replicas_are_not_eligible() -> None:
    cluster = three()
    cluster.ask_isr(1)
    cluster.create("u", (1, 2, 3))
    assert cluster.partition().elr == ids(2, 3)
    change = ConfigChange(name="min.insync.replicas", operation=SET, value="1")
    cluster.done(cluster.controller.alter_topic_configs([("t", [change])]))
    assert (cluster.partition().isr, cluster.partition().elr) == (ids(1), ())
    back = ConfigChange(name="min.insync.replicas", operation=DELETE, value=None)
    cluster.done(cluster.controller.alter_topic_configs([("t", [back])]))
    assert cluster.partition().elr == (), "whoever has lagged is not eligible for being asked again"
    cluster.done(cluster.controller.replace_topic_configs([("t", {"min.insync.replicas": "3"})]))
    cluster.lose(3)
    assert cluster.partition("u").elr == ()


def test_a_controller_with_another_minimum_in_its_file_records_it_for_all() -> None:
    cluster = three()
    cluster.ask_isr(1)
    assert cluster.image.cluster_setting("min.insync.replicas") == "2"
    cluster.controller.defaults = replace(DEFAULTS, min_insync_replicas=1)
    cluster.take_over()
    assert ConfigRecord(BROKER_RESOURCE, CLUSTER_DEFAULT, "min.insync.replicas", "1") in cluster.log
    assert (cluster.partition().isr, cluster.partition().elr) == (ids(1), ())


def test_there_cannot_be_more_in_sync_than_there_are_replicas() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1,))
    assert cluster.partition().elr == ()
    cluster.lose(1)
    cluster.join(1, clean=True)
    assert (cluster.partition().isr, cluster.partition().elr) == (ids(1), ())


def test_an_election_that_changes_nothing_records_nothing() -> None:
    cluster = three()
    cluster.lose(1)
    cluster.join(1)
    assert (cluster.partition().leader, cluster.partition().isr) == (TWO, ids(2, 3))
    end = cluster.end
    assert elect(cluster, PREFERRED, [T0]) == {T0: ErrorCode.preferred_leader_not_available}
    assert cluster.end == end
