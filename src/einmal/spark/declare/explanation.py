"""The facts behind ``einmal explain``: of a declared pipeline, its plan and its clusters, as far as they can be had.

Nothing is started and nothing is written. Where Spark or a cluster is out of reach, the facts have the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from einmal.client.errors import KafkaError
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.declare.pipeline import OWN_FORMAT, Declaration, DeclaredSink, Source
from einmal.options.sink import EXACTLY_ONCE, TWO_PHASE_COMMIT, SinkOptions
from einmal.options.source import fails_on_data_loss, isolation_of, pattern_of, topics_of
from einmal.options.values import client_settings
from einmal.sinks.kinds import new_sink
from einmal.spark.declare.guarantees import PipelineFacts, PlanFacts, SinkFacts, SourceFacts
from einmal.spark.declare.inspection import ClusterFacts, TopicFacts, inspect

_PATIENCE_MS: Final = "3000"


def facts_of(declaration: Declaration, plan: PlanFacts | None, plan_problem: str = "") -> PipelineFacts:
    """``plan``: None without Spark; ``plan_problem`` is then the reason."""
    options = declaration.options
    topics = tuple(sink.topic or "" for sink in declaration.sinks if sink.is_topic)
    cluster, cluster_problem = None, ""
    # Dead letters of bad rows are beside the topics of the sinks, where there are any; all others beside the source.
    bad = [source.dead_letter_topic for source in declaration.sources]
    rejected = [sink.dead_letter_topic for sink in declaration.sinks]
    letters: dict[str, TopicFacts] = {}
    if isinstance(options, SinkOptions):
        wanted = [*filter(None, [*topics, *bad]), *([COMMIT_TOPIC] if options.guarantee == EXACTLY_ONCE else [])]
        cluster, cluster_problem = _cluster(options.client, wanted)
        letters |= {} if cluster is None else cluster.topics
        bad = []
    sources = [_source(source, [*filter(None, [*bad, *rejected])], letters) for source in declaration.sources]
    return PipelineFacts(
        guarantee=options.guarantee,
        name=declaration.name,
        sources=tuple(replace(source, letter_facts=letters.get(source.letters)) for source in sources),
        topics=topics,
        sinks=_sinks(declaration, letters),
        together=isinstance(options, SinkOptions) and options.client.get(TWO_PHASE_COMMIT) == "true",
        plan=plan,
        plan_problem=plan_problem,
        cluster=cluster,
        cluster_problem=cluster_problem,
    )


def _sinks(declaration: Declaration, letters: Mapping[str, TopicFacts]) -> tuple[SinkFacts, ...]:
    sinks = [sink for sink in declaration.sinks if not sink.is_topic]
    return tuple(_sink(sink, f"{declaration.name}/{sink.name}" if len(sinks) > 1 else None, letters) for sink in sinks)


def _sink(sink: DeclaredSink, record: str | None, letters: Mapping[str, TopicFacts]) -> SinkFacts:
    topic = sink.dead_letter_topic or ""
    with closing(new_sink(sink.kind, sink.options)) as row_sink:
        return SinkFacts(sink.kind, row_sink.table, row_sink.promises(), record, topic, letters.get(topic))


def _source(source: Source, beside: Sequence[str], letters: dict[str, TopicFacts]) -> SourceFacts:
    """``beside``: topics of dead letters in the cluster of einmal's sources, whose facts are added to ``letters``."""
    options = {name.lower(): value for name, value in source.options.items()}
    client = client_settings(options)
    isolation = isolation_of(source.format, client)
    if isolation is None:
        return SourceFacts(name=source.name, format=source.format, fails_on_data_loss=fails_on_data_loss(options))
    topics = topics_of(options)
    beside = beside if source.format == OWN_FORMAT else ()
    cluster, problem = _cluster(client, [*topics, *beside])
    if cluster is not None:
        # A topic of the same name may exist in one cluster and not in another one.
        missing = [name for name in beside if name not in letters or not letters[name].exists]
        letters |= {name: cluster.topics[name] for name in missing}
        cluster = replace(cluster, topics={name: cluster.topics[name] for name in topics})
    if pattern_of(options) is not None:
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
