"""The facts behind ``einmal explain``: of a declared pipeline, its plan and its clusters, as far as they can be had.

Nothing is started and nothing is written. Where Spark or a cluster is out of reach, the facts have the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Final

from einmal.client.errors import KafkaError
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.declare.pipeline import Declaration, DeclaredSink, Source
from einmal.options.sink import EXACTLY_ONCE, TWO_PHASE_COMMIT, SinkOptions
from einmal.options.source import fails_on_data_loss, isolation_of, topics_of
from einmal.options.values import client_settings
from einmal.sinks.kinds import new_sink
from einmal.spark.declare.guarantees import PipelineFacts, PlanFacts, SinkFacts, SourceFacts
from einmal.spark.declare.inspection import ClusterFacts, inspect

_PATIENCE_MS: Final = "3000"


def facts_of(declaration: Declaration, plan: PlanFacts | None, plan_problem: str = "") -> PipelineFacts:
    """``plan``: None without Spark; ``plan_problem`` is then the reason."""
    options = declaration.options
    topics = tuple(sink.topic or "" for sink in declaration.sinks if sink.is_topic)
    cluster, cluster_problem = None, ""
    if isinstance(options, SinkOptions):
        wanted = [*filter(None, topics), *([COMMIT_TOPIC] if options.guarantee == EXACTLY_ONCE else [])]
        cluster, cluster_problem = _cluster(options.client, wanted)
    return PipelineFacts(
        guarantee=options.guarantee,
        name=declaration.name,
        sources=tuple(_source(source) for source in declaration.sources),
        topics=topics,
        sinks=_sinks(declaration),
        together=isinstance(options, SinkOptions) and options.client.get(TWO_PHASE_COMMIT) == "true",
        plan=plan,
        plan_problem=plan_problem,
        cluster=cluster,
        cluster_problem=cluster_problem,
    )


def _sinks(declaration: Declaration) -> tuple[SinkFacts, ...]:
    sinks = [sink for sink in declaration.sinks if not sink.is_topic]
    return tuple(_sink(sink, f"{declaration.name}/{sink.name}" if len(sinks) > 1 else None) for sink in sinks)


def _sink(sink: DeclaredSink, record: str | None) -> SinkFacts:
    with closing(new_sink(sink.kind, sink.options)) as row_sink:
        return SinkFacts(sink.kind, row_sink.table, row_sink.promises(), record, sink.dead_letter_topic or "")


def _source(source: Source) -> SourceFacts:
    options = {name.lower(): value for name, value in source.options.items()}
    client = client_settings(options)
    isolation = isolation_of(source.format, client)
    if isolation is None:
        return SourceFacts(name=source.name, format=source.format)
    cluster, problem = _cluster(client, topics_of(options))
    if "subscribepattern" in options:
        cluster, problem = None, "they are chosen by a pattern"
    return SourceFacts(
        name=source.name,
        format=source.format,
        isolation=isolation,
        fails_on_data_loss=fails_on_data_loss(options),
        cluster=cluster,
        problem=problem,
        decoded=source.decoding.get("value.format", source.decoding.get("key.format", "")),
        letters=source.dead_letter_topic or "",
    )


def _cluster(client: Mapping[str, str], topics: list[str]) -> tuple[ClusterFacts | None, str]:
    try:
        return inspect({**client, "default.api.timeout.ms": _PATIENCE_MS}, topics), ""
    except KafkaError as error:
        return None, f"no broker answers at {client['bootstrap.servers']} ({error.name})"
