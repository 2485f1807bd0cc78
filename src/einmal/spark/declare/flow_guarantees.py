"""Which guarantee holds for each flow of a project of declarative pipelines: the hops of ``guarantees``, by flow.

A flow into a sink of ``format("einmal")`` is a pipeline of its own. Of all others only the sources are explained: who
writes their targets is Spark, or somebody else's sink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.pipelines.output import Sink
from pyspark.sql import DataFrame

from einmal.declare.document import DeclarationError
from einmal.declare.pipeline import OWN_FORMAT, SPARK_FORMAT, Source
from einmal.options.guarantees import NONE, UNKNOWN
from einmal.options.sink import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions, sink_options, without_claims_port
from einmal.options.source import topics_of
from einmal.options.values import OptionError
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.sinks.kafka.routing import check_columns
from einmal.spark.declare.dataflow_graph import FlowQuery, Project
from einmal.spark.declare.explanation import Clusters, flow_facts, source_facts
from einmal.spark.declare.guarantees import Hop, PlanFacts, explain, overall, source_hop
from einmal.spark.declare.plan import plan_facts
from einmal.spark.environment.local_files import LocalFiles, RemoteLocation
from einmal.spark.environment.plans.row_schemas import schema_of
from einmal.spark.protocol.execution import FORMAT_SETTING, sources

_SPARKS_FORMAT: Final = "1"
"""Format of the state's checkpoints where nothing sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGuarantee:
    """``target``: with the word for it. ``asked``, ``topic`` and ``transactional_id`` are None where no sink of ours
    is the target, ``topic`` and ``transactional_id`` also where it has none."""

    flow: str
    target: str
    hops: tuple[Hop, ...]
    asked: str | None = None
    topic: str | None = None
    transactional_id: str | None = None

    @property
    def holds(self) -> str:
        return overall(self.hops)


def flow_guarantees(project: Project) -> list[FlowGuarantee]:
    """Explain every flow that writes. Asks the clusters of the topics, and starts nothing. Raises DeclarationError."""
    clusters = Clusters()
    options = {name: _options(output, project.storage) for name, output in _own_sinks(project)}
    return [_flow(project, query, options, clusters) for query in project.queries]


def _own_sinks(project: Project) -> Iterator[tuple[str, Sink]]:
    for name, output in project.graph.outputs.items():
        if isinstance(output, Sink) and output.format == OWN_FORMAT:
            yield name, output


def _options(sink: Sink, storage: str) -> SinkOptions | OptionError:
    """Spark sets the checkpoint of each flow, below ``storage``."""
    try:
        return sink_options({**without_claims_port(sink.options)[0], "checkpointLocation": storage})
    except OptionError as error:
        return error


def _flow(
    project: Project, query: FlowQuery, options: Mapping[str, SinkOptions | OptionError], clusters: Clusters
) -> FlowGuarantee:
    flow = query.flow
    target = f"{project.graph.kind(flow.target) or 'nothing declared'} {flow.target}"
    read = [] if query.frame is None else [source_facts(source, clusters) for source in _sources(query.frame)]
    own = options.get(flow.target)
    if not isinstance(own, SinkOptions):
        end = _refused(flow.target, own) if own is not None else replace(_of_others(project, flow.target), name=target)
        hops = [*(source_hop(source, EXACTLY_ONCE) for source in read), *_unread(query), end]
        return FlowGuarantee(flow=flow.name, target=target, hops=tuple(hops))
    facts = flow_facts(own, read, _plan(project, query), query.problem, clusters)
    facts = replace(facts, name=facts.name or flow.name, refusals=tuple(_refusals(project, query, own, options)))
    return FlowGuarantee(
        flow=flow.name,
        target=target,
        hops=(*_unread(query), *explain(facts)),
        asked=own.guarantee,
        topic=own.topic,
        transactional_id=own.transactional_id,
    )


def _sources(frame: DataFrame) -> Iterator[Source]:
    for kind, options in sources(frame):
        name = ",".join(topics_of(options)) or options.get("subscribepattern") or kind
        yield Source(name, kind, options)


def _unread(query: FlowQuery) -> Iterator[Hop]:
    """The sources of a flow without a plan."""
    if query.frame is None:
        reason = Reason(HopVerdict.UNKNOWN, f"they are in the plan, which was not looked at: {query.problem}")
        yield Hop("sources", "", UNKNOWN, (reason,))


def _plan(project: Project, query: FlowQuery) -> PlanFacts | None:
    """The run has the settings of the spec and the flow, and this session defaults of its own."""
    if query.frame is None:
        return None
    settings = project.settings | query.flow.spark_conf
    state_format = str(settings.get(FORMAT_SETTING, _SPARKS_FORMAT))
    if not state_format.isdecimal():
        raise DeclarationError([f"flow {query.flow.name}: {FORMAT_SETTING} is a number, not {state_format!r}"])
    return replace(plan_facts(query.frame), state_format=int(state_format))


def _refusals(
    project: Project, query: FlowQuery, own: SinkOptions, options: Mapping[str, SinkOptions | OptionError]
) -> Iterator[Reason]:
    """Why the sink will not write the rows of the flow."""
    flow = query.flow
    into = [other.flow.name for other in project.queries if other.flow.target == flow.target]
    if len(into) > 1:
        yield Reason(
            HopVerdict.NOT,
            f"{len(into)} flows write to it ({', '.join(into)}): Spark has a checkpoint for each, and a "
            "transactional.id belongs to one. The flow that comes second is refused",
            "create a sink, with a transactional.id of its own, for each flow",
        )
    same = [
        name
        for name, other in options.items()
        if isinstance(other, SinkOptions) and other.transactional_id == own.transactional_id is not None
    ]
    if len(same) > 1:
        yield Reason(
            HopVerdict.NOT,
            f"transactional.id {own.transactional_id!r} is that of {len(same)} sinks ({', '.join(same)}): the flows "
            "fence each other, or are refused",
            "name each sink's own",
        )
    yield from _storage(project.storage)
    if query.frame is not None:
        if not query.frame.isStreaming:
            # Spark's dry run accepts it.
            text = (
                "its query is a batch, and Spark writes only streams to a sink: its run ends with a ClassCastException"
            )
            yield Reason(HopVerdict.NOT, text, "read with spark.readStream")
        try:
            check_columns(schema_of(query.frame.schema), own.topic)
        except OptionError as error:
            yield _not(error)


def _storage(storage: str) -> Iterator[Reason]:
    hint = "set storage to a directory of the driver's machine, file:///..."
    if ":" not in storage:
        yield Reason(HopVerdict.NOT, f"storage is {storage}: Spark takes only an absolute path with a scheme", hint)
        return
    try:
        LocalFiles(storage)
    except RemoteLocation:
        text = f"storage is {storage}: the sink reads checkpoints without Spark, from the driver's machine"
        yield Reason(HopVerdict.NOT, text, hint)


def _refused(name: str, error: OptionError) -> Hop:
    return Hop("sink", name, NONE, (_not(error),))


def _not(error: OptionError) -> Reason:
    text, _, hint = str(error).partition("\nhint: ")
    return Reason(HopVerdict.NOT, text, hint)


def _of_others(project: Project, name: str) -> Hop:
    output = project.graph.outputs.get(name)
    if output is None:
        reason = Reason(HopVerdict.NOT, "no sink or table of this name is declared: Spark refuses the project")
        return Hop("target", "", NONE, (reason,))
    if isinstance(output, Sink) and output.format == SPARK_FORMAT:
        text = "Spark's Kafka sink has no transactions: a batch that is run again is written again"
        return Hop("target", "", AT_LEAST_ONCE, (Reason(HopVerdict.NOT, text, f'create the sink with "{OWN_FORMAT}"'),))
    writer = f"a sink of format {output.format!r}" if isinstance(output, Sink) else "a table, which Spark writes"
    reason = Reason(HopVerdict.UNKNOWN, f"{writer}: its guarantee is not einmal's, and not known here")
    return Hop("target", "", UNKNOWN, (reason,))
