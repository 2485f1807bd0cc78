"""A mirror that is to end when everything is copied, where something fails: never a silent success."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from zlib import crc32

import pytest

from einmal.client import Admin, Consumer, NewTopic, Producer
from einmal.client.aio.consuming import offsets
from einmal.client.aio.consuming.fetching import fetch
from einmal.client.errors import KafkaError, NoBrokerReachable, NotAuthorized, error_for
from einmal.client.records import OffsetAndMetadata
from einmal.commit_protocol import effects as protocol
from einmal.mirror_protocol import effects
from einmal.mirror_protocol.effects import MirrorEffect, MirrorEvent
from einmal.mirror_protocol.flow import Flow, MirrorNotice, NoticeKind
from einmal.mirror_protocol.replication_policy import NameFilter
from einmal.mirroring import faults, run, target
from einmal.mirroring.failover import fail_over, fail_over_without_source, unready, unready_without_source
from einmal.mirroring.groups import committed_offsets
from einmal.mirroring.run import MirrorIncomplete, MirrorProcess, MirrorStopped
from einmal.mirroring.source import SourceReader
from einmal.mirroring.status import FailoverState, MirrorStatus, status_of
from einmal.mirroring.target import TargetWriter
from einmal.pauses import DoublingPauses
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.kafka.commit_point import KafkaCommitPoint
from einmal.types import ErrorCode, TopicPartition
from tests.interop.cluster import einmal_cluster
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.cases import each_case

pytestmark = pytest.mark.system


class Clusters(NamedTuple):
    source: str
    target: str


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    brokers = [EinmalBroker(tmp_path_factory.mktemp(name)) for name in ("A", "B")]
    for broker in brokers:
        broker.start()
    yield Clusters(brokers[0].bootstrap, brokers[1].bootstrap)
    for broker in brokers:
        broker.stop()


class FailingMirror(MirrorProcess):
    """Its first ``times`` effects of this kind fail."""

    kind: type = type(None)
    times = 0

    def perform(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        if self.times and isinstance(effect, self.kind):
            self.times -= 1
            if isinstance(effect, effects.CopyRecords | protocol.WriteCommitRecord):
                return protocol.Failed("the target is away")
            return effects.EffectFailed("a cluster is away")
        return super().perform(effect, target)


def flow_of(*topics: str) -> Flow:
    # Each test has a flow of its own: another commit record.
    alias = f"A{crc32(' '.join(topics).encode())}"
    return Flow(source=alias, target="B", topics=NameFilter(topics))


def mirror(
    clusters: Clusters, flow: Flow, notices: list[MirrorNotice] | None = None, source: Mapping[str, str] | None = None
) -> FailingMirror:
    """``source``: more settings of its client."""
    return FailingMirror(
        flow,
        {"bootstrap.servers": clusters.source, **(source or {})},
        {"bootstrap.servers": clusters.target},
        notify=([] if notices is None else notices).append,
        ends_when_idle=True,
    )


def run_to_the_end(process: MirrorProcess) -> None:
    try:
        process.run()
    finally:
        process.close()


def create(servers: str, *names: str, **configs: str) -> None:
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topics(
            [NewTopic(name, configs={key.replace("_", "."): value for key, value in configs.items()}) for name in names]
        )


def write(servers: str, topic: str, *values: str) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush()


def commit(servers: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    with Consumer({"bootstrap.servers": servers, "group.id": group}) as consumer:
        consumer.assign(list(offsets))
        consumer.commit({place: OffsetAndMetadata(offset) for place, offset in offsets.items()})


def values(servers: str, topic: str) -> list[bytes | None]:
    place = TopicPartition(topic, 0)
    found: list[bytes | None] = []
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets(place)[place]
        while consumer.position(place) < end:
            found += [record.value for record in consumer.poll(100)]
    return found


def refuse_records(patch: pytest.MonkeyPatch, topic: str, refuse: Callable[[TopicPartition], NoReturn]) -> None:
    """Let the target refuse what is written to the topic."""
    append = KafkaCommitPoint.append

    def append_others(self: KafkaCommitPoint, identity: Any, batches: Any) -> Any:
        taken = list(batches)
        for place, _ in taken:
            if place.topic == topic:
                refuse(place)
        return append(self, identity, taken)

    patch.setattr(KafkaCommitPoint, "append", append_others)


def status(clusters: Clusters, flow: Flow) -> MirrorStatus:
    reader = SourceReader({"bootstrap.servers": clusters.source})
    writer = TargetWriter({"bootstrap.servers": clusters.target}, flow.name, flow.transactional_id)
    try:
        return status_of(flow, reader, writer)
    finally:
        writer.close()
        reader.close()


def fail_over_now(clusters: Clusters, flow: Flow, *groups: str) -> list[str]:
    """What is not ready."""
    found = fail_over(
        flow,
        {"bootstrap.servers": clusters.source},
        {"bootstrap.servers": clusters.target},
        groups,
        notify=lambda notice: None,
        committed=lambda record: None,
    )
    return unready(found, groups)


@each_case(
    "kind, times",
    [
        (effects.ListTopics, 3),
        (effects.TakeEnds, 3),
        (effects.ReadTransactions, 3),
        (effects.ScanHeaders, 3),
        (effects.ReadMaps, 3),
        (effects.ReadTargetGroups, 5),
        (effects.CopyRecords, 1),
        (effects.CopyRecords, 5),
        (protocol.WriteCommitRecord, 4),
    ],
)
@pytest.mark.slow
@pytest.mark.time_limit(120)
def test_a_mirror_that_ends_well_has_copied_everything_whatever_has_failed(
    clusters: Clusters, kind: type, times: int
) -> None:
    topic = f"whole-{kind.__name__}-{times}"
    create(clusters.source, topic)
    # What is outside of transactions need not wait for what is known of them.
    writer = {"bootstrap.servers": clusters.source, "transactional.id": topic}
    with Producer(writer) as producer, producer.transaction():
        producer.send(topic, "v")
    commit(clusters.source, f"group-{topic}", {TopicPartition(topic, 0): 1})
    flow = flow_of(topic)
    process = mirror(clusters, flow)
    process.kind, process.times = kind, times
    run_to_the_end(process)
    assert process.times == 0
    assert values(clusters.target, flow.remote_topic(topic)) == [b"v"]
    assert fail_over_now(clusters, flow) == []


@pytest.mark.representatives(1)
@pytest.mark.parametrize("verb", ["commit_offsets", "read_groups"])
def test_a_group_that_the_target_refuses_is_named_and_everything_else_is_copied(
    clusters: Clusters, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, good, bad = f"grouped-{verb}", f"good-{verb}", f"bad-{verb}"
    create(clusters.source, topic)
    write(clusters.source, topic, "v", "w")
    for group in (good, bad):
        commit(clusters.source, group, {TopicPartition(topic, 0): 1})
    denied = NotAuthorized(ErrorCode.group_authorization_failed, f"group {bad!r}")
    commit_offsets = KafkaCommitPoint.commit_offsets

    def refuse_to_commit(self: KafkaCommitPoint, identity: Any, group: str, offsets: Any) -> None:
        if group == bad:
            raise SinkFailed(str(denied)) from denied
        commit_offsets(self, identity, group, offsets)

    def refuse_to_show(client: Any, groups: Any) -> Any:
        if bad in groups:
            raise denied
        return committed_offsets(client, groups)

    with monkeypatch.context() as patch:
        if verb == "commit_offsets":
            patch.setattr(KafkaCommitPoint, verb, refuse_to_commit)
        else:
            patch.setattr(target, "committed_offsets", refuse_to_show)
        notices: list[MirrorNotice] = []
        flow = flow_of(topic)
        for _ in range(2):
            # The second run has passed its commit.
            with pytest.raises(MirrorIncomplete, match=f"group '{bad}': GROUP_AUTHORIZATION_FAILED"):
                run_to_the_end(mirror(clusters, flow, notices))
        (behind,) = [each for each in status(clusters, flow).groups if each.state is FailoverState.BEHIND]
        assert behind.group == bad
        assert "GROUP_AUTHORIZATION_FAILED" in behind.reason
        assert any(
            f"group '{bad}' in {topic}-0 is behind: GROUP_AUTHORIZATION_FAILED" in each
            for each in fail_over_now(clusters, flow, bad)
        )
    assert [each.subject for each in notices if each.kind is NoticeKind.REFUSED] == [bad]
    assert values(clusters.target, flow.remote_topic(topic)) == [b"v", b"w"]
    assert fail_over_now(clusters, flow, good) == []
    # It needs no other commit.
    run_to_the_end(mirror(clusters, flow))
    (ready,) = [each for each in status(clusters, flow).groups if each.group == bad]
    assert (ready.state, ready.source_offset, ready.reason) == (FailoverState.READY, 1, "")
    assert fail_over_now(clusters, flow, bad) == []


def test_a_topic_that_the_target_refuses_is_left_out_named_and_copied_when_the_cause_is_gone(
    clusters: Clusters,
) -> None:
    flow = flow_of("refused", "beside")
    copy, group = flow.remote_topic("refused"), "of-refused"
    create(clusters.source, "refused", "beside")
    # A compacted topic takes no record without a key.
    create(clusters.target, copy, cleanup_policy="compact")
    write(clusters.source, "refused", "no key", "no key either")
    write(clusters.source, "beside", "v")
    commit(clusters.source, group, {TopicPartition("refused", 0): 1, TopicPartition("beside", 0): 1})
    notices: list[MirrorNotice] = []
    with pytest.raises(MirrorIncomplete, match="topic 'refused': .*INVALID_RECORD"):
        run_to_the_end(mirror(clusters, flow, notices))
    assert [each.subject for each in notices if each.kind is NoticeKind.ASIDE] == ["refused"]
    assert values(clusters.target, flow.remote_topic("beside")) == [b"v"]
    (left_out,) = status(clusters, flow).left_out
    assert left_out.topic == "refused"
    assert "INVALID_RECORD" in left_out.reason
    assert f"group '{group}' in refused-0 is behind" in fail_over_now(clusters, flow, group)
    assert any("refused" in each for each in fail_over_now(clusters, flow))
    with Admin({"bootstrap.servers": clusters.target}) as admin:
        admin.alter_configs(copy, {"cleanup.policy": "delete"})
    run_to_the_end(mirror(clusters, flow))
    assert values(clusters.target, copy) == [b"no key", b"no key either"]
    assert status(clusters, flow).left_out == []
    # Its offset was committed while the topic was left out.
    assert fail_over_now(clusters, flow, group) == fail_over_now(clusters, flow) == []


@pytest.mark.parametrize("name", ("x" * 240, "y" * 249))
def test_a_topic_whose_copy_has_too_long_a_name_keeps_no_other_from_being_copied(clusters: Clusters, name: str) -> None:
    flow = flow_of(name[0] + "+", f"beside-{name[0]}")
    create(clusters.source, name, f"beside-{name[0]}")
    write(clusters.source, f"beside-{name[0]}", "v")
    with pytest.raises(MirrorIncomplete, match=name):
        run_to_the_end(mirror(clusters, flow))
    assert values(clusters.target, flow.remote_topic(f"beside-{name[0]}")) == [b"v"]
    assert [each.topic for each in status(clusters, flow).left_out] == [name]


def test_records_beyond_the_defaults_of_the_targets_brokers_are_copied(clusters: Clusters) -> None:
    flow = flow_of("limits")
    create(clusters.source, "limits", max_message_bytes="3000000", message_timestamp_after_max_ms=str(2**63 - 1))
    create(clusters.target, flow.remote_topic("limits"))
    with Producer({"bootstrap.servers": clusters.source, "max.request.size": 4_000_000}) as producer:
        producer.send("limits", b"v" * 2_000_000, timestamp=2**42)
        producer.flush()
    run_to_the_end(mirror(clusters, flow))
    assert [len(value or b"") for value in values(clusters.target, flow.remote_topic("limits"))] == [2_000_000]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("is_transactional", (False, True))
def test_committed_records_behind_an_open_transaction_are_no_success(
    clusters: Clusters, is_transactional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "STALLED_S", 1.0)
    topic = f"held-{is_transactional}"
    flow = flow_of(topic)
    create(clusters.source, topic)
    settings = {"bootstrap.servers": clusters.source}
    with Producer({**settings, "transactional.id": f"open-{topic}"}) as opened:
        opened.init_transactions()
        opened.begin_transaction()
        opened.send(topic, "open").result()
        if is_transactional:
            with Producer({**settings, "transactional.id": f"done-{topic}"}) as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send(topic, "v")
                producer.commit_transaction()
        else:
            write(clusters.source, topic, "v")
        with pytest.raises(MirrorIncomplete, match=f"{topic}-0"):
            run_to_the_end(mirror(clusters, flow))
        assert any(f"{topic}-0" in each for each in fail_over_now(clusters, flow))
        opened.abort_transaction()
    run_to_the_end(mirror(clusters, flow))
    assert values(clusters.target, flow.remote_topic(topic)) == [b"v"]
    # The marker of the aborted transaction is no record that could be lost.
    assert fail_over_now(clusters, flow) == []


def test_a_transaction_that_takes_longer_than_it_may_is_made_smaller(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(clusters.source, "slow")
    expected = [f"{index}" * 1_000 for index in range(9)]
    for value in expected:
        write(clusters.source, "slow", value)
    append, late = KafkaCommitPoint.append, "the batch took 901 s, its transaction may 900 s"
    timed_out: list[int] = []

    def append_slowly(self: KafkaCommitPoint, identity: Any, batches: Any) -> Any:
        taken = list(batches)
        if (size := sum(len(batch) for _, batch in taken)) > 5_000:
            timed_out.append(size)
            raise SinkFailed(str(error_for(ErrorCode.invalid_producer_epoch, "Produce")))
        return append(self, identity, taken)

    monkeypatch.setattr(KafkaCommitPoint, "append", append_slowly)
    monkeypatch.setattr(KafkaCommitPoint, "overdue", lambda self: late)
    notices: list[MirrorNotice] = []
    flow = replace(flow_of("slow"), offsets_max=16)
    run_to_the_end(mirror(clusters, flow, notices))
    assert len(timed_out) == 1
    assert [notice.text for notice in notices if notice.kind is NoticeKind.STUCK] == [
        f"{flow.name}: {late}: it has up to 4 offsets of each partition from now on; trying again"
    ]
    assert values(clusters.target, flow.remote_topic("slow")) == [value.encode() for value in expected]


def test_a_group_is_ready_only_where_it_would_resume_as_at_the_source(clusters: Clusters) -> None:
    flow, place = flow_of("resumed"), TopicPartition("resumed", 0)
    create(clusters.source, "resumed")
    write(clusters.source, "resumed", "a", "b")
    commit(clusters.source, "at the end", {place: 2})
    run_to_the_end(mirror(clusters, flow))
    write(clusters.source, "resumed", "c", "d")
    run_to_the_end(mirror(clusters, flow))
    # Its offset at the target is that of the marker before c.
    assert fail_over_now(clusters, flow, "at the end") == []
    write(clusters.source, "resumed", "e", "f")
    commit(clusters.source, "at the end", {place: 6})
    run_to_the_end(mirror(clusters, flow))
    write(clusters.source, "resumed", "g", "h")
    commit(clusters.source, "at the end", {place: 8})
    # The end of the copy is not where the group stands.
    (group,) = status(clusters, flow).groups
    assert group.state is FailoverState.BEHIND


def test_the_lag_counts_added_partitions_and_no_topic_that_was_created_again(clusters: Clusters) -> None:
    flow = flow_of("grown")
    create(clusters.source, "grown")
    write(clusters.source, "grown", "a", "b")
    run_to_the_end(mirror(clusters, flow))
    with Admin({"bootstrap.servers": clusters.source}) as admin:
        admin.create_partitions({"grown": 2})
        with Producer({"bootstrap.servers": clusters.source}) as producer:
            producer.send("grown", "c", partition=1)
            producer.flush()
        assert [each.lag for each in status(clusters, flow).partitions] == [0, 1]
        admin.delete_topics(["grown"])
        create(clusters.source, "grown")
    created_again = status(clusters, flow)
    assert [each.lag for each in created_again.partitions] == [None]
    assert [each.topic for each in created_again.left_out] == ["grown"]


def test_a_flow_without_a_topic_is_no_success(clusters: Clusters) -> None:
    flow = flow_of("no-such-topic")
    with pytest.raises(MirrorIncomplete, match="no topic"):
        run_to_the_end(mirror(clusters, flow))
    assert fail_over_now(clusters, flow)
    with pytest.raises(MirrorStopped, match="group 'no-such-group' has no offset in the flow's topics\nhint: .*none"):
        fail_over_now(clusters, flow, "no-such-group")
    lost = fail_over_without_source(flow, {"bootstrap.servers": clusters.target}, ["no-such-group"])
    assert unready_without_source(lost) == ["nothing was copied"]


def test_a_flow_that_never_ran_has_a_status_and_fails_over(clusters: Clusters, tmp_path: Path) -> None:
    """Its target does not even have the topic of commit records."""
    flow, place, broker = flow_of("at-once"), TopicPartition("at-once", 0), EinmalBroker(tmp_path)
    create(clusters.source, "at-once")
    write(clusters.source, "at-once", "a")
    commit(clusters.source, "one-shot", {place: 1})
    broker.start()
    try:
        fresh = Clusters(clusters.source, broker.bootstrap)
        assert status(fresh, flow).batch_id is None
        lost = fail_over_without_source(flow, {"bootstrap.servers": fresh.target}, ["one-shot"])
        assert unready_without_source(lost) == ["nothing was copied"]
        assert fail_over_now(fresh, flow, "one-shot") == []
    finally:
        broker.stop()


def test_an_unknown_group_is_refused_before_the_mirror_is_fenced(clusters: Clusters) -> None:
    flow, place = flow_of("misspelt"), TopicPartition("misspelt", 0)
    create(clusters.source, "misspelt")
    write(clusters.source, "misspelt", "a")
    commit(clusters.source, "billing", {place: 1})
    run_to_the_end(mirror(clusters, flow))
    write(clusters.source, "misspelt", "b")
    with pytest.raises(MirrorStopped, match="group 'biling' has no offset in the flow's topics\nhint: .*: billing; "):
        fail_over_now(clusters, flow, "biling", "billing")
    assert [each.lag for each in status(clusters, flow).partitions] == [1]
    with pytest.raises(MirrorStopped, match="group 'biling' has no translated offset\nhint: .*: billing; "):
        fail_over_without_source(flow, {"bootstrap.servers": clusters.target}, ["biling"])
    assert fail_over_now(clusters, flow, "billing") == []


def test_a_source_that_is_not_there_is_an_error_at_the_start(clusters: Clusters) -> None:
    away = Clusters("127.0.0.1:1", clusters.target)
    with pytest.raises(NoBrokerReachable):
        run_to_the_end(mirror(away, flow_of("away")))


@pytest.mark.representatives(1)
@pytest.mark.slow
@pytest.mark.time_limit(180)
@pytest.mark.parametrize("is_at_target", (False, True))
def test_partitions_whose_leader_answers_with_an_error_hold_back_no_other_topic(
    clusters: Clusters, is_at_target: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "LASTS_S", 1.0)
    names = [f"{name}-{is_at_target}" for name in ("broken", "broken-too", "sound")]
    *broken, sound = names
    flow = flow_of(*names)
    create(clusters.source, *names)
    for name in names:
        write(clusters.source, name, "v")
    failing = {flow.remote_topic(name) if is_at_target else name for name in broken}
    offsets_request = offsets.offsets_request

    def broken_request(*args: Any) -> offsets.OffsetsRequest:
        request = offsets_request(*args)
        return request._replace(results=lambda response: map(refused, request.results(response)))

    def refused(answer: tuple[TopicPartition, Any]) -> tuple[TopicPartition, Any]:
        place, result = answer
        if place.topic in failing:
            result = result._replace(error_code=ErrorCode.kafka_storage_error)
        return place, result

    with monkeypatch.context() as patch:
        patch.setattr(offsets, "offsets_request", broken_request)
        notices: list[MirrorNotice] = []
        with pytest.raises(MirrorIncomplete, match=f"topic '{broken[0]}': .*KAFKA_STORAGE_ERROR"):
            run_to_the_end(mirror(clusters, flow, notices))
        left_out = [each.subject for each in notices if each.kind is NoticeKind.ASIDE]
        assert sorted(left_out) == broken
        reasons = {each.topic: each.reason for each in status(clusters, flow).left_out}
        assert sorted(reasons) == broken
        assert all("KAFKA_STORAGE_ERROR" in reason for reason in reasons.values())
        assert all(any(each in text for text in fail_over_now(clusters, flow)) for each in broken)
    assert values(clusters.target, flow.remote_topic(sound)) == [b"v"]
    run_to_the_end(mirror(clusters, flow))
    assert [values(clusters.target, flow.remote_topic(each)) for each in names] == [[b"v"]] * 3
    assert fail_over_now(clusters, flow) == []


@pytest.mark.representatives(1)
@pytest.mark.parametrize("is_at_target", (False, True))
def test_a_partition_that_cannot_be_read_or_written_now_holds_back_no_other_topic(
    clusters: Clusters, is_at_target: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "LASTS_S", 0.5)
    broken, sound = f"unserved-{is_at_target}", f"served-{is_at_target}"
    flow = flow_of(broken, sound)
    create(clusters.source, broken, sound)
    for name in (broken, sound):
        write(clusters.source, name, "v")

    async def fetch_in_vain(cluster: Any, node_id: int, partitions: Any, limits: Any, **more: Any) -> Any:
        answer = await fetch(cluster, node_id, partitions, limits, **more)
        return [
            (place, result._replace(error_code=ErrorCode.kafka_storage_error, records=b""))
            if place.topic == broken
            else (place, result)
            for place, result in answer
        ]

    def refuse(place: TopicPartition) -> NoReturn:
        raise SinkFailed(str(error_for(ErrorCode.kafka_storage_error, f"Produce to {place}")))

    with monkeypatch.context() as patch:
        if is_at_target:
            refuse_records(patch, flow.remote_topic(broken), refuse)
        else:
            patch.setattr("einmal.client.aio.raw.fetch", fetch_in_vain)
        process = mirror(clusters, flow, source={"default.api.timeout.ms": "1000"})
        with pytest.raises(MirrorIncomplete, match=f"topic '{broken}': .*KAFKA_STORAGE_ERROR"):
            run_to_the_end(process)
        assert [each.topic for each in status(clusters, flow).left_out] == [broken]
    run_to_the_end(mirror(clusters, flow))
    assert [values(clusters.target, flow.remote_topic(each)) for each in (broken, sound)] == [[b"v"]] * 2
    assert fail_over_now(clusters, flow) == []


@pytest.mark.representatives(1)
@pytest.mark.parametrize("is_topic", (False, True))
def test_what_stays_refused_never_stops_the_mirror_of_a_quiet_source(
    clusters: Clusters, is_topic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_GROUPS_AGAIN_S", 0.05)
    monkeypatch.setattr(faults, "_PAUSES_S", DoublingPauses(0.05, 0.05))
    refused, other = f"stays-{is_topic}", f"beside-{is_topic}"
    flow, group = flow_of(refused, other), f"of-{refused}"
    create(clusters.source, refused, other)
    write(clusters.source, refused, "v")
    write(clusters.source, other, "v")
    commit(clusters.source, group, {TopicPartition(other, 0): 1})
    attempts = 0
    process = FailingMirror(
        flow,
        {"bootstrap.servers": clusters.source},
        {"bootstrap.servers": clusters.target},
        notify=lambda notice: None,
    )

    def refuse(error: KafkaError) -> NoReturn:
        nonlocal attempts
        attempts += 1
        if attempts == 10:
            process.stop.set()
        raise SinkFailed(str(error)) from error

    def commit_in_vain(self: KafkaCommitPoint, *arguments: Any) -> None:
        refuse(NotAuthorized(ErrorCode.group_authorization_failed, f"group {group!r}"))

    def refuse_record(place: TopicPartition) -> NoReturn:
        refuse(error_for(ErrorCode.message_too_large, f"Produce to {place}"))

    if is_topic:
        refuse_records(monkeypatch, flow.remote_topic(refused), refuse_record)
    else:
        monkeypatch.setattr(KafkaCommitPoint, "commit_offsets", commit_in_vain)
    run_to_the_end(process)
    assert attempts == 10
    assert values(clusters.target, flow.remote_topic(other)) == [b"v"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.time_limit(180)
def test_a_partition_without_a_leader_holds_back_no_other_topic(
    tmp_path: Path, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "LASTS_S", 1.0)
    source = einmal_cluster(tmp_path, 3)
    source.start()
    try:
        node = 3
        source.create_topic("beside", 1, replicas=3)
        names = iter(f"alone-{index}" for index in range(20))
        for alone in names:
            source.create_topic(alone, 1, replicas=1)
            if source.partition(alone, 0).replica_nodes == [node]:
                break
        flow, ours = flow_of(alone, "beside"), Clusters(source.bootstrap, clusters.target)
        write(source.bootstrap, alone, "v")
        write(source.bootstrap, "beside", "v")
        source.kill(node)
        with pytest.raises(MirrorIncomplete, match=f"{alone}-0 has no leader"):
            run_to_the_end(mirror(ours, flow))
        assert values(clusters.target, flow.remote_topic("beside")) == [b"v"]
        assert [each.topic for each in status(ours, flow).left_out] == [alone]
        assert any(alone in each for each in fail_over_now(ours, flow))
        source.start_node(node)
        run_to_the_end(mirror(ours, flow))
        assert values(clusters.target, flow.remote_topic(alone)) == [b"v"]
        assert fail_over_now(ours, flow) == []
    finally:
        source.stop()


@pytest.mark.slow
@pytest.mark.time_limit(180)
def test_a_coordinator_that_is_away_holds_back_transactions_alone(
    tmp_path: Path, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "STALLED_S", 5.0)
    source = einmal_cluster(tmp_path, 3, {"transaction.state.log.replication.factor": "1"})
    source.start()
    try:
        for name in ("plain", "paid"):
            source.create_topic(name, 1, replicas=3)
        flow, ours = flow_of("plain", "paid"), Clusters(source.bootstrap, clusters.target)
        write(source.bootstrap, "plain", "v")
        payer = {"bootstrap.servers": source.bootstrap, "transactional.id": "payer"}
        with Producer(payer) as producer, producer.transaction():
            producer.send("paid", "w")
        source.kill(3)
        with pytest.raises(MirrorIncomplete, match="nothing of paid-0 .*LEADER_NOT_AVAILABLE.*__transaction_state"):
            run_to_the_end(mirror(ours, flow))
        assert values(clusters.target, flow.remote_topic("plain")) == [b"v"]
        assert values(clusters.target, flow.remote_topic("paid")) == []
        source.start_node(3)
        run_to_the_end(mirror(ours, flow))
        assert values(clusters.target, flow.remote_topic("paid")) == [b"w"]
    finally:
        source.stop()
