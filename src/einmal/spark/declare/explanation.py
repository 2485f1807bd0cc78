"""The facts behind ``einmal explain``: of a declared pipeline, its plan and its clusters, as far as they can be had.

Nothing is started and nothing is written. Where Spark or a cluster is out of reach, the facts have the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from einmal.client.errors import KafkaError, RetriableError
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.declare.pipeline import OWN_FORMAT, Declaration, DeclaredSink, Source
from einmal.options.sink import EXACTLY_ONCE, TWO_PHASE_COMMIT, SinkOptions
from einmal.options.source import fails_on_data_loss, isolation_of, pattern_of, topics_of
from einmal.options.values import client_settings
from einmal.sinks.kinds import new_sink
from einmal.spark.declare.guarantees import PipelineFacts, PlanFacts, SinkFacts, SourceFacts
from einmal.spark.declare.inspection import ClusterFacts, TopicFacts, inspect

_PATIENCE_MS: Final = "3000"


class Clusters:
    """Inspects clusters, and waits for one that does not answer only once."""

    def __init__(self) -> None:
        self._unanswered: dict[frozenset[tuple[str, str]], str] = {}
        """The problem, by the settings of the client."""

    def inspect(self, client: Mapping[str, str], topics: list[str]) -> tuple[ClusterFacts | None, str]:
        """Return the facts of a cluster, or None and the problem."""
        servers = client["bootstrap.servers"]
        settings = frozenset(item for item in client.items() if item[0] != "client.id")
        if settings in self._unanswered:
            return None, self._unanswered[settings]
        try:
            return inspect({**client, "default.api.timeout.ms": _PATIENCE_MS}, topics), ""
        except KafkaError as error:
            problem = f"no broker answers at {servers} ({error.name})"
            if isinstance(error, RetriableError):
                self._unanswered[settings] = problem
            return None, problem


def facts_of(declaration: Declaration, plan: PlanFacts | None, plan_problem: str = "") -> PipelineFacts:
    """``plan``: None without Spark; ``plan_problem`` is then the reason."""
    options, clusters = declaration.options, Clusters()
    topics = tuple(sink.topic or "" for sink in declaration.sinks if sink.is_topic)
    cluster, cluster_problem = None, ""
    # Dead letters of bad rows are beside the topics of the sinks, where there are any; all others beside the source.
    bad = [source.dead_letter_topic for source in declaration.sources]
    rejected = [sink.dead_letter_topic for sink in declaration.sinks]
    letters: dict[str, TopicFacts] = {}
    if isinstance(options, SinkOptions):
        cluster, cluster_problem = _home(options, [*topics, *bad], clusters)
        letters |= {} if cluster is None else cluster.topics
        bad = []
    sources = [
        source_facts(source, clusters, [*filter(None, [*bad, *rejected])], letters) for source in declaration.sources
    ]
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


def flow_facts(
    options: SinkOptions,
    sources: Sequence[SourceFacts],
    plan: PlanFacts | None,
    plan_problem: str,
    clusters: Clusters,
) -> PipelineFacts:
    """The facts of a query of ``writeStream.format("einmal")``, of which each is a pipeline with one sink."""
    cluster, cluster_problem = _home(options, [options.topic], clusters)
    return PipelineFacts(
        guarantee=options.guarantee,
        name=options.transactional_id or "",
        sources=tuple(sources),
        topics=(options.topic or "",),
        plan=plan,
        plan_problem=plan_problem,
        cluster=cluster,
        cluster_problem=cluster_problem,
        sparks_writer=True,
    )


def _home(options: SinkOptions, topics: Sequence[str | None], clusters: Clusters) -> tuple[ClusterFacts | None, str]:
    """The cluster of the topics that are written, with the topic of the commit record."""
    commits = [COMMIT_TOPIC] if options.guarantee == EXACTLY_ONCE else []
    return clusters.inspect(options.client, [*filter(None, topics), *commits])


def _sinks(declaration: Declaration, letters: Mapping[str, TopicFacts]) -> tuple[SinkFacts, ...]:
    sinks = [sink for sink in declaration.sinks if not sink.is_topic]
    return tuple(_sink(sink, f"{declaration.name}/{sink.name}" if len(sinks) > 1 else None, letters) for sink in sinks)


def _sink(sink: DeclaredSink, record: str | None, letters: Mapping[str, TopicFacts]) -> SinkFacts:
    topic = sink.dead_letter_topic or ""
    with closing(new_sink(sink.kind, sink.options)) as row_sink:
        return SinkFacts(sink.kind, row_sink.table, row_sink.promises(), record, topic, letters.get(topic))


def source_facts(
    source: Source, clusters: Clusters, beside: Sequence[str] = (), letters: dict[str, TopicFacts] | None = None
) -> SourceFacts:
    """The facts of one source. ``beside``: topics of dead letters in the cluster of einmal's sources, whose facts are
    added to ``letters``."""
    letters = {} if letters is None else letters
    options = {name.lower(): value for name, value in source.options.items()}
    client = client_settings(options)
    isolation = isolation_of(source.format, client)
    if isolation is None:
        return SourceFacts(name=source.name, format=source.format, fails_on_data_loss=fails_on_data_loss(options))
    topics = topics_of(options)
    beside = beside if source.format == OWN_FORMAT else ()
    cluster, problem = clusters.inspect(client, [*topics, *beside])
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
