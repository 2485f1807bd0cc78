"""Claims about the output of ``einmal explain``: every hop, with the reason, and never more than is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from einmal.options.guarantees import NONE, UNKNOWN
from einmal.options.sink import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.sinks.kinds import new_sink, sink_class
from einmal.spark.declare.guarantees import (
    Hop,
    PipelineFacts,
    PlanFacts,
    SinkFacts,
    SourceFacts,
    explain,
    overall,
)
from einmal.spark.declare.inspection import ClusterFacts, TopicFacts
from einmal.types import ErrorCode

SAFE = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false", "cleanup.policy": "delete"}


def topic(name: str, **fields: Any) -> TopicFacts:
    facts: dict[str, Any] = {"name": name, "partitions": 2, "replicas": 3, "settings": SAFE}
    return TopicFacts(**(facts | fields))


def cluster(*topics: TopicFacts, **fields: Any) -> ClusterFacts:
    known: dict[str, Any] = {"servers": "h:1", "brokers": 3, "transaction_version": 2, "verifies": True}
    return ClusterFacts(**(known | {"topics": {each.name: each for each in topics}} | fields))


SOURCE = SourceFacts(name="orders", format="einmal", isolation="read_committed", cluster=cluster(topic("orders")))
FACTS = PipelineFacts(
    guarantee=EXACTLY_ONCE,
    name="paid",
    sources=(SOURCE,),
    topics=("out",),
    plan=PlanFacts(),
    cluster=cluster(topic("out"), topic("__einmal_commits")),
)


def hop(facts: PipelineFacts, kind: str) -> Hop:
    return next(each for each in explain(facts) if each.kind == kind)


def said(found: Hop, verdict: HopVerdict) -> str:
    return "\n".join(reason.text for reason in found.reasons if reason.verdict is verdict)


def test_a_safe_pipeline_is_exactly_once_on_every_hop_and_only_its_readers_have_a_condition() -> None:
    hops = explain(FACTS)
    assert [each.kind for each in hops] == ["source", "transformation", "sink", "positions", "readers"]
    assert {each.guarantee for each in hops} == {overall(hops)} == {EXACTLY_ONCE}
    assert [each.kind for each in hops if said(each, HopVerdict.IF)] == ["readers"]
    assert not any(said(each, HopVerdict.UNKNOWN) or said(each, HopVerdict.NOT) for each in hops)


def test_a_source_that_passes_over_what_is_lost_is_at_most_once_in_every_format_with_that_option() -> None:
    for source, lost in ((SOURCE, "records"), (SourceFacts(name="table", format="delta"), "versions")):
        assert hop(replace(FACTS, sources=(source,)), "source").guarantee == EXACTLY_ONCE
        found = hop(replace(FACTS, sources=(replace(source, fails_on_data_loss=False),)), "source")
        assert found.guarantee == AT_MOST_ONCE
        assert f"failOnDataLoss=false: {lost} that were deleted" in said(found, HopVerdict.NOT)
    files = SourceFacts(name="files", format="parquet", fails_on_data_loss=False)
    assert hop(replace(FACTS, sources=(files,)), "source").guarantee == EXACTLY_ONCE


ROWS = SinkFacts("sqlite", "rows", (Reason(HopVerdict.IF, "the disk is the driver's"),))


def test_a_database_has_a_sink_positions_and_readers_of_its_own() -> None:
    hops = explain(replace(FACTS, topics=(), sinks=(ROWS,), cluster=None))
    assert [each.kind for each in hops] == ["source", "transformation", "sink", "positions", "readers"]
    assert {each.guarantee for each in hops} == {EXACTLY_ONCE}
    assert "the disk is the driver's" in said(hops[2], HopVerdict.IF)


def test_what_becomes_of_a_rejected_row_is_part_of_the_promise() -> None:
    def promise(sink: SinkFacts) -> str:
        return said(hop(replace(FACTS, topics=(), sinks=(sink,)), "sink"), HopVerdict.HOLDS)

    assert "rejects stops the pipeline" in promise(ROWS)
    assert "is a dead letter in bad, once" in promise(replace(ROWS, letters="bad"))


def test_two_sinks_are_two_commit_points_unless_they_are_committed_together() -> None:
    apart = replace(FACTS, sinks=(ROWS,))
    assert "one after the other" in said(hop(apart, "commit points"), HopVerdict.IF)
    together = hop(replace(apart, together=True), "commit points")
    assert "KIP-939" in said(together, HopVerdict.HOLDS)
    assert not said(together, HopVerdict.IF)


def test_a_sink_that_does_not_hold_its_promise_is_at_least_once() -> None:
    weak = replace(ROWS, promises=(Reason(HopVerdict.NOT, "a file that is written again"),))
    assert overall(explain(replace(FACTS, sinks=(weak,)))) == AT_LEAST_ONCE


def test_each_of_several_sinks_has_its_record_under_a_name_of_its_own() -> None:
    others = (replace(ROWS, record="p/a"), replace(ROWS, record="p/b"))
    text = str(explain(replace(FACTS, topics=(), sinks=others, cluster=None)))
    assert "under 'p/a'" in text and "under 'p/b'" in text


@pytest.mark.parametrize("kind", ["postgres", "sqlite", "duckdb", "delta", "iceberg", "parquet"])
def test_a_pipeline_into_each_type_of_database_is_exactly_once(kind: str) -> None:
    options = {
        "url": "postgresql://h/d", "path": "/d", "catalog": "c", "catalog.uri": "sqlite:////c",
        "table": "words" if kind in ("sqlite", "duckdb") else "a.b",
    }  # fmt: skip
    own = {name: value for name, value in options.items() if name in sink_class(kind).OPTIONS}
    facts = SinkFacts(kind, "rows", new_sink(kind, own).promises())
    assert overall(explain(replace(FACTS, topics=(), sinks=(facts,), cluster=None))) == EXACTLY_ONCE


def test_a_source_that_reads_aborted_records_is_no_better_than_at_least_once() -> None:
    facts = replace(FACTS, sources=(replace(SOURCE, format="kafka", isolation="read_uncommitted"),))
    assert hop(facts, "source").guarantee == AT_LEAST_ONCE
    assert "aborted" in said(hop(facts, "source"), HopVerdict.NOT)
    assert overall(explain(facts)) == AT_LEAST_ONCE


def test_a_source_that_passes_over_deleted_records_may_lose_them() -> None:
    facts = replace(FACTS, sources=(replace(SOURCE, fails_on_data_loss=False),))
    assert hop(facts, "source").guarantee == AT_MOST_ONCE


@pytest.mark.parametrize(
    ("guarantee", "source"),
    [
        (AT_LEAST_ONCE, replace(SOURCE, fails_on_data_loss=False)),
        (AT_LEAST_ONCE, SourceFacts(name="s", format="socket")),
        (AT_MOST_ONCE, replace(SOURCE, isolation="read_uncommitted")),
        (EXACTLY_ONCE, replace(SOURCE, isolation="read_uncommitted", fails_on_data_loss=False)),
    ],
)
def test_where_records_may_be_lost_and_repeated_nothing_is_guaranteed(guarantee: str, source: SourceFacts) -> None:
    assert overall(explain(replace(FACTS, guarantee=guarantee, sources=(source,)))) == NONE


@pytest.mark.parametrize(
    ("settings", "expires"),
    [
        ({"retention.ms": "604800000"}, True),
        ({"retention.ms": "604800000", "cleanup.policy": "compact,delete"}, True),
        ({"retention.ms": "-1"}, False),
        ({"retention.ms": "604800000", "cleanup.policy": "compact"}, False),
        ({"retention.ms": "604800000", "message.timestamp.type": "LogAppendTime"}, False),
        ({}, False),
    ],
)
def test_a_topic_that_deletes_the_dead_letters_of_old_records_is_a_condition(
    settings: dict[str, str], expires: bool
) -> None:
    bad = topic("bad", settings=settings)
    decoded = replace(SOURCE, decoded="json", letters="bad", letter_facts=bad)
    rows = replace(ROWS, letters="bad", letter_facts=bad)
    for facts, kind in (
        (replace(FACTS, sources=(decoded,)), "source"),
        (replace(FACTS, topics=(), sinks=(rows,)), "sink"),
    ):
        assert ("bad has retention.ms=604800000" in said(hop(facts, kind), HopVerdict.IF)) == expires


@pytest.mark.parametrize(
    ("guarantee", "word"),
    [(EXACTLY_ONCE, ", once"), (AT_LEAST_ONCE, ", at least once"), (AT_MOST_ONCE, ", at most once")],
)
def test_a_dead_letter_is_written_as_often_as_the_rows_beside_it(guarantee: str, word: str) -> None:
    facts = replace(FACTS, guarantee=guarantee, sources=(replace(SOURCE, decoded="json", letters="bad"),))
    assert said(hop(facts, "source"), HopVerdict.HOLDS).endswith(f"is a dead letter in bad{word}")


@pytest.mark.parametrize(
    ("kind", "guarantee", "verdict"),
    [
        ("socket", AT_MOST_ONCE, HopVerdict.NOT),
        ("csv", EXACTLY_ONCE, HopVerdict.IF),
        ("somebody's", UNKNOWN, HopVerdict.UNKNOWN),
    ],
)
def test_other_sources_are_as_good_as_their_replay(kind: str, guarantee: str, verdict: HopVerdict) -> None:
    found = hop(replace(FACTS, sources=(SourceFacts(name="s", format=kind),)), "source")
    assert (found.guarantee, found.reasons[0].verdict) == (guarantee, verdict)


@pytest.mark.parametrize(
    ("changed", "condition"),
    [
        (topic("orders", replicas=1), "one replica"),
        (topic("orders", settings=SAFE | {"min.insync.replicas": "1"}), "min.insync.replicas=1"),
        (topic("orders", settings=SAFE | {"unclean.leader.election.enable": "true"}), "unclean"),
        (topic("orders", settings=SAFE | {"cleanup.policy": "compact,delete"}), "is compacted"),
    ],
)
def test_what_may_lose_acknowledged_records_is_a_condition(changed: TopicFacts, condition: str) -> None:
    facts = replace(FACTS, sources=(replace(SOURCE, cluster=cluster(changed)),))
    assert condition in said(hop(facts, "source"), HopVerdict.IF)


def test_a_missing_topic_is_reported() -> None:
    gone = topic("out", error=ErrorCode.unknown_topic_or_partition, partitions=0)
    assert "out does not exist" in said(hop(replace(FACTS, cluster=cluster(gone)), "sink"), HopVerdict.NOT)


def test_unchecked_hops_are_reported_as_unknown() -> None:
    facts = replace(
        FACTS,
        sources=(replace(SOURCE, cluster=None, problem="no broker"),),
        plan=None,
        plan_problem="no Java",
        cluster=None,
        cluster_problem="no broker",
    )
    assert "no broker" in said(hop(facts, "source"), HopVerdict.UNKNOWN)
    assert "no broker" in said(hop(facts, "sink"), HopVerdict.UNKNOWN)
    assert hop(facts, "transformation").guarantee == UNKNOWN
    assert overall(explain(facts)) == UNKNOWN


def test_the_definition_of_a_result_depends_on_state_and_chance() -> None:
    def transformation(**plan: Any) -> str:
        return said(hop(replace(FACTS, plan=PlanFacts(**plan)), "transformation"), HopVerdict.HOLDS)

    assert "gives the same rows" in transformation()
    assert "an uninterrupted run could have given" in transformation(non_deterministic=("rand",))
    assert "state and output go together" in transformation(stateful=("aggregate",))
    assert "agrees with the state" in transformation(stateful=("aggregate",), non_deterministic=("rand",))


def test_a_relation_that_does_not_stream_is_a_condition() -> None:
    for plan in (PlanFacts(), PlanFacts(stateful=("aggregate",)), PlanFacts(non_deterministic=("rand",))):
        found = hop(replace(FACTS, plan=replace(plan, static=("parquet",))), "transformation")
        assert "do not stream (parquet)" in said(found, HopVerdict.IF)
        assert "gives the same rows" not in said(found, HopVerdict.HOLDS)


def test_python_functions_and_old_state_are_conditions() -> None:
    plan = PlanFacts(stateful=("aggregate",), python=("shout",), state_format=1)
    conditions = said(hop(replace(FACTS, plan=plan), "transformation"), HopVerdict.IF)
    assert "shout" in conditions and "state format 1" in conditions


def test_speculation_costs_attempts_and_no_records() -> None:
    assert "speculation" in said(
        hop(replace(FACTS, plan=PlanFacts(speculation=True)), "transformation"), HopVerdict.HOLDS
    )


def test_brokers_that_let_late_writes_in_do_not_carry_exactly_once() -> None:
    facts = replace(FACTS, cluster=cluster(topic("out"), verifies=False))
    assert hop(facts, "sink").guarantee == AT_LEAST_ONCE
    assert "KIP-890" in said(hop(facts, "sink"), HopVerdict.NOT)


@pytest.mark.parametrize(("guarantee", "word"), [(AT_LEAST_ONCE, "written again"), (AT_MOST_ONCE, "is lost")])
def test_the_weaker_guarantees_state_their_cost(guarantee: str, word: str) -> None:
    facts = replace(FACTS, guarantee=guarantee)
    assert overall(explain(facts)) == guarantee
    assert word in said(hop(facts, "sink"), HopVerdict.NOT)
    assert "two writes" in said(hop(facts, "positions"), HopVerdict.NOT)
