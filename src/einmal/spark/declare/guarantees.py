"""Which guarantee holds on each hop of a pipeline, and why: a function of what is known of it. Pure.

A hop is a source, the transformation, a sink, the positions, the readers. What could not be inspected is
listed as unknown. The words of the guarantees are Kafka Streams', and those of ``options.guarantees``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.options.guarantees import NONE, REPLAYED_FILES, UNKNOWN, guarantee_of_source, together
from einmal.options.sink import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.spark.declare.inspection import ClusterFacts, TopicFacts
from einmal.spark.writer.handover import STATE_CAVEAT


@dataclass(frozen=True, slots=True)
class Hop:
    """``kind``: source, transformation, sink, positions, readers. ``guarantee``: a word of processing.guarantee,
    "none" or "unknown"."""

    kind: str
    name: str
    guarantee: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """``isolation`` is None for other formats. ``cluster`` None: not inspected, ``problem`` is the reason.
    ``decoded``: its declared format, "" without one; ``letters``: the topic of its dead letters, ``letter_facts``: what
    is known of it."""

    name: str
    format: str
    isolation: str | None = None
    fails_on_data_loss: bool = True
    cluster: ClusterFacts | None = None
    problem: str = ""
    decoded: str = ""
    letters: str = ""
    letter_facts: TopicFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """Facts that Spark's plan shows: operators with state, functions that give another result each time, and Python
    functions that are taken to be deterministic. ``static``: relations that do not stream. ``state_format``: of the
    state's checkpoints."""

    stateful: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    non_deterministic: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    state_format: int = 2
    speculation: bool = False


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """A sink that is no topic. ``promises``: its own reasons, without asking it. ``record``: the name of its commit
    record, where that is not the pipeline's. ``letters``: the topic of the dead letters of rows that it rejects, ""
    where such a row stops the pipeline; ``letter_facts``: what is known of it."""

    kind: str
    table: str
    promises: tuple[Reason, ...]
    record: str | None = None
    letters: str = ""
    letter_facts: TopicFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """``topics``: the sinks in Kafka, "" where each row names its own; ``sinks``: all others; ``together``: one
    commit for both. ``plan`` and ``cluster`` (of the topics) are None where they were not inspected; the problems are
    the reasons. ``sparks_writer``: ``writeStream.format("einmal")`` writes the topics; ``refusals``: why it refuses
    to."""

    guarantee: str
    name: str
    sources: tuple[SourceFacts, ...]
    topics: tuple[str, ...]
    sinks: tuple[SinkFacts, ...] = ()
    together: bool = False
    plan: PlanFacts | None = None
    plan_problem: str = ""
    cluster: ClusterFacts | None = None
    cluster_problem: str = ""
    sparks_writer: bool = False
    refusals: tuple[Reason, ...] = ()


def explain(facts: PipelineFacts) -> list[Hop]:
    """Every hop, in the order in which a record takes them."""
    return [
        *(source_hop(source, facts.guarantee) for source in facts.sources),
        _transformation(facts),
        *(_topic(facts, topic) for topic in facts.topics),
        *(_sink(sink) for sink in facts.sinks),
        *([_positions(facts), _readers(facts)] if facts.topics else ()),
        *(hop for sink in facts.sinks for hop in _behind(facts, sink)),
        *_commit_points(facts),
    ]


def overall(hops: Sequence[Hop]) -> str:
    """The guarantee of all hops together: "none" where one may lose records, and one may repeat some."""
    return together(hop.guarantee for hop in hops)


# --- sources ----------------------------------------------------------------------------------------------------

_REPLAYS: Final = {
    "rate-micro-batch": "the same rows for the same offsets, always",
    "delta": "the same rows for the same versions, as long as they are kept",
    "parquet": "the same files for the same offsets, as long as nobody changes or removes them",
}
_TIMES: Final = {EXACTLY_ONCE: "once", AT_LEAST_ONCE: "at least once", AT_MOST_ONCE: "at most once"}


def source_hop(source: SourceFacts, asked: str) -> Hop:
    """The hop of one source. ``asked``: of the pipeline, whose dead letters are written as its rows are."""
    guarantee = guarantee_of_source(source.format, source.isolation, fails_on_data_loss=source.fails_on_data_loss)
    if source.isolation is None:
        return _other_source(source, guarantee)
    reasons = []
    if source.isolation == "read_committed":
        reasons.append(
            Reason(HopVerdict.HOLDS, "read_committed: a replay of the same offsets reads the same committed records")
        )
    else:
        hint = 'set kafka.isolation.level = "read_committed"' if source.format == "kafka" else "leave it out"
        reasons.append(
            Reason(
                HopVerdict.NOT, "read_uncommitted: what a producer has aborted, or will abort, is read as well", hint
            )
        )
    if source.decoded:
        fate = f"is a dead letter in {source.letters}, {_TIMES[asked]}" if source.letters else "stops the pipeline"
        reasons.append(Reason(HopVerdict.HOLDS, f"a row that is not {source.decoded} of the declared schema {fate}"))
        reasons += _expiring(source.letter_facts)
    if not source.fails_on_data_loss:
        reasons.append(_passes_over("records"))
    if source.cluster is None:
        reasons.append(Reason(HopVerdict.UNKNOWN, f"its topics were not looked at: {source.problem}"))
    else:
        for topic in source.cluster.topics.values():
            reasons += _kept(topic, source.cluster.brokers)
            if "compact" in topic.settings.get("cleanup.policy", ""):
                reasons.append(
                    Reason(
                        HopVerdict.IF,
                        f"{topic.name} is compacted: a batch that is replayed later may find fewer records of a key",
                    )
                )
    return Hop("source", source.name, guarantee, tuple(reasons))


def _other_source(source: SourceFacts, guarantee: str) -> Hop:
    kind = "parquet" if source.format in REPLAYED_FILES else source.format
    if source.format == "socket":
        reason = Reason(HopVerdict.NOT, "a socket cannot be read again: what a failed batch has read is lost")
    elif kind in _REPLAYS:
        reason = Reason(HopVerdict.IF, f"replays {_REPLAYS[kind]}")
    else:
        reason = Reason(
            HopVerdict.UNKNOWN,
            f"of {source.format!r} it is not known whether it gives the same rows for the same offsets again",
        )
    lost = [_passes_over("versions")] if guarantee == AT_MOST_ONCE and not source.fails_on_data_loss else []
    return Hop("source", source.name, guarantee, (reason, *lost))


def _passes_over(what: str) -> Reason:
    return Reason(
        HopVerdict.NOT,
        f"failOnDataLoss=false: {what} that were deleted before they were read are passed over",
        f"leave it out: the query then fails, and names the lost {what}",
    )


def _expiring(letters: TopicFacts | None) -> Iterator[Reason]:
    """A condition under which dead letters are there to be read."""
    if letters is not None and letters.deletes_after_ms is not None:
        yield Reason(
            HopVerdict.IF,
            f"{letters.name} has retention.ms={letters.deletes_after_ms}: a dead letter has the timestamp of its "
            "record, and one of an older record may be deleted before anybody has read it",
            f"set retention.ms=-1 on {letters.name}",
        )


def _kept(topic: TopicFacts, brokers: int) -> Iterator[Reason]:
    """Whether a topic keeps what it has acknowledged."""
    if not topic.exists:
        yield Reason(HopVerdict.NOT, f"{topic.name} does not exist", "create it")
        return
    if topic.partitions == 0:
        yield Reason(HopVerdict.UNKNOWN, f"{topic.name} is not shown: {topic.error.name}")
        return
    least = topic.min_insync_replicas
    if topic.replicas == 1:
        hint = "give it three replicas, and min.insync.replicas=2" if brokers > 1 else ""
        yield Reason(
            HopVerdict.IF, f"{topic.name} has one replica: its records are as safe as that broker's disk", hint
        )
    elif least == 1:
        yield Reason(
            HopVerdict.IF,
            f"{topic.name} has min.insync.replicas=1: what only the leader had is lost with it",
            "set min.insync.replicas=2",
        )
    if topic.settings.get("unclean.leader.election.enable") == "true":
        yield Reason(
            HopVerdict.IF,
            f"{topic.name} allows unclean elections, which lose acknowledged records",
            "set unclean.leader.election.enable=false",
        )


# --- transformation ---------------------------------------------------------------------------------------------


def _transformation(facts: PipelineFacts) -> Hop:
    plan = facts.plan
    if plan is None:
        reason = Reason(HopVerdict.UNKNOWN, f"the plan was not looked at: {facts.plan_problem}")
        return Hop("transformation", "", UNKNOWN, (reason,))
    reasons = (*_results(facts, plan), *_functions(plan))
    random_state = facts.sparks_writer and plan.stateful and plan.non_deterministic
    guarantee = NONE if random_state and facts.guarantee == EXACTLY_ONCE else facts.guarantee
    return Hop("transformation", "", guarantee, reasons)


def _results(facts: PipelineFacts, plan: PlanFacts) -> Iterator[Reason]:
    guarantee = facts.guarantee
    if plan.static:
        yield Reason(
            HopVerdict.IF,
            f"reads relations that do not stream ({', '.join(plan.static)}): a batch that is run again reads them as "
            "they are then, and gives the same rows only where nobody has changed them",
        )
    random = ", ".join(plan.non_deterministic)
    if not plan.stateful:
        if random:
            yield Reason(
                HopVerdict.HOLDS,
                f"stateless, not deterministic ({random}): an uninterrupted run could have given this output",
            )
        elif not plan.static:
            yield Reason(HopVerdict.HOLDS, "stateless and deterministic: a batch that is run again gives the same rows")
        return
    state = ", ".join(plan.stateful)
    if guarantee == AT_LEAST_ONCE:
        yield Reason(
            HopVerdict.NOT, f"state ({state}): a batch that is run again is written again, its state is kept once"
        )
        return
    if guarantee == AT_MOST_ONCE:
        yield Reason(HopVerdict.NOT, f"state ({state}): it takes in batches whose output was lost")
        return
    if facts.sparks_writer:
        yield from _state_of_sparks_writer(plan, state, random)
        return
    yield Reason(
        HopVerdict.HOLDS,
        f"state ({state}): Spark's own commit of the state is in the commit record, so state and output go together",
    )
    if random:
        yield Reason(
            HopVerdict.HOLDS,
            f"not deterministic ({random}): the output agrees with the state that is kept; where that cannot be shown "
            "the query stops",
        )
    if plan.state_format == 1:
        yield Reason(
            HopVerdict.IF,
            "state format 1: a late task can replace a state file; what is seen of it stops the query",
            "a new checkpoint with spark.sql.streaming.stateStore.checkpointFormatVersion=2 and RocksDB",
        )


def _state_of_sparks_writer(plan: PlanFacts, state: str, random: str) -> Iterator[Reason]:
    if random:
        yield Reason(
            HopVerdict.NOT,
            f"state ({state}), not deterministic ({random}). {STATE_CAVEAT}",
            "write it with write_stream(df), in a program or by einmal run",
        )
    else:
        yield Reason(HopVerdict.IF, f"state ({state}). {STATE_CAVEAT}")
    if plan.state_format == 1:
        yield Reason(
            HopVerdict.IF,
            "state format 1: a late task can replace a state file, which the sink cannot see",
            "a new checkpoint with spark.sql.streaming.stateStore.checkpointFormatVersion=2 and RocksDB",
        )


def _functions(plan: PlanFacts) -> Iterator[Reason]:
    if plan.python:
        yield Reason(
            HopVerdict.IF,
            f"Python functions ({', '.join(plan.python)}) are taken to be deterministic, without effects outside: "
            "effects are repeated with a batch, and a random one may be mixed of two runs when an executor is lost",
            "declare what is random: .asNondeterministic()",
        )
    if plan.speculation:
        yield Reason(
            HopVerdict.HOLDS,
            "spark.speculation is on: a copy of a task is refused its partition, which costs attempts, not records",
            "leave it off for this pipeline",
        )


# --- sink, positions, readers -----------------------------------------------------------------------------------

_SINK: Final = {
    EXACTLY_ONCE: (HopVerdict.HOLDS, "the records of a batch and its commit record are one transaction"),
    AT_LEAST_ONCE: (HopVerdict.NOT, "no transaction: a task or a batch that is run again is written again"),
    AT_MOST_ONCE: (HopVerdict.NOT, "a batch that was begun is not written again: what a failure has kept back is lost"),
}


def _topic(facts: PipelineFacts, topic: str) -> Hop:
    reasons = [Reason(*_SINK[facts.guarantee])]
    guarantee = facts.guarantee
    cluster = facts.cluster
    if cluster is None:
        reasons.append(Reason(HopVerdict.UNKNOWN, f"its cluster was not looked at: {facts.cluster_problem}"))
    else:
        if guarantee == EXACTLY_ONCE and not cluster.verifies:
            guarantee = AT_LEAST_ONCE
            reasons.append(
                Reason(
                    HopVerdict.NOT,
                    "brokers older than 3.6 do not refuse writes that come after their transaction (KIP-890): such a "
                    "pipeline is not started",
                    "use newer brokers",
                )
            )
        elif guarantee == EXACTLY_ONCE:
            reasons.append(Reason(HopVerdict.HOLDS, _epochs(cluster)))
        if topic in cluster.topics:
            reasons += _kept(cluster.topics[topic], cluster.brokers)
    if facts.refusals:
        guarantee, reasons = NONE, [*facts.refusals, *reasons]
    return Hop("sink", topic or "a topic per row", guarantee, tuple(reasons))


def _sink(sink: SinkFacts) -> Hop:
    guarantee = EXACTLY_ONCE
    if any(reason.verdict is HopVerdict.NOT for reason in sink.promises):
        guarantee = AT_LEAST_ONCE
    held = Reason(HopVerdict.HOLDS, "the rows of a batch and its commit record are one transaction of the sink")
    rejected = "a row that the table rejects stops the pipeline"
    if sink.letters:
        rejected = (
            f"a row that the table rejects is recorded in the transaction of the others, and is a dead letter in "
            f"{sink.letters}, once: in a transaction of its own, after that of the table"
        )
    reasons = (held, Reason(HopVerdict.HOLDS, rejected), *_expiring(sink.letter_facts), *sink.promises)
    return Hop("sink", f"{sink.kind} {sink.table}", guarantee, reasons)


def _commit_points(facts: PipelineFacts) -> Iterator[Hop]:
    """Yield the hop of a query with several sinks."""
    if facts.together:
        reason = Reason(
            HopVerdict.HOLDS,
            "one, in the database: its commit record names the prepared transaction of the topics (KIP-939), which "
            "ends as the database has decided. Readers may see a batch in the database before it is in the topics",
        )
    elif len(facts.sinks) + bool(facts.topics) > 1:
        reason = Reason(
            HopVerdict.IF,
            "several, one after the other: each sink has each batch once, at different times. A query that is not "
            "deterministic can give two sinks two results of one batch",
            "for topics and one database, brokers with transaction.two.phase.commit.enable commit both as one: set "
            "kafka.transaction.two.phase.commit.enable",
        )
    else:
        return
    yield Hop("commit points", "", EXACTLY_ONCE, (reason,))


def _behind(facts: PipelineFacts, sink: SinkFacts) -> Iterator[Hop]:
    """Positions and readers of a sink that is no topic."""
    name = sink.record or facts.name
    record = Reason(HopVerdict.HOLDS, f"in its commit record under {name!r}, in the same transaction as the rows")
    yield Hop("positions", sink.kind, EXACTLY_ONCE, (record,))
    seen = Reason(HopVerdict.HOLDS, f"readers of {sink.table} see the rows of a batch together, or none of them")
    yield Hop("readers", sink.kind, EXACTLY_ONCE, (seen,))


def _epochs(cluster: ClusterFacts) -> str:
    if cluster.transaction_version >= 2:
        return "every transaction has an epoch of its own, given with the end of the one before (TV2)"
    return "every transaction has an epoch of its own, taken before it begins (TV1)"


def _positions(facts: PipelineFacts) -> Hop:
    if facts.guarantee != EXACTLY_ONCE:
        word = "before a batch is written" if facts.guarantee == AT_MOST_ONCE else "after it is written"
        reason = Reason(HopVerdict.NOT, f"in Spark's checkpoint, {word}: output and positions are two writes")
        return Hop("positions", "checkpoint", facts.guarantee, (reason,))
    reasons = [
        Reason(
            HopVerdict.HOLDS,
            f"in {COMMIT_TOPIC} under {facts.name!r}, in the same transaction as the output; as group offsets too, for "
            "lag tools, where the cluster knows the topics",
        )
    ]
    if facts.cluster is not None and COMMIT_TOPIC in facts.cluster.topics:
        commit_topic = facts.cluster.topics[COMMIT_TOPIC]
        # Where it does not exist the first start makes it.
        reasons += _kept(commit_topic, facts.cluster.brokers) if commit_topic.exists else ()
    return Hop("positions", COMMIT_TOPIC, EXACTLY_ONCE, tuple(reasons))


def _readers(facts: PipelineFacts) -> Hop:
    if facts.guarantee != EXACTLY_ONCE:
        return Hop("readers", "", facts.guarantee, (Reason(HopVerdict.HOLDS, "see what is written, at once"),))
    reason = Reason(
        HopVerdict.IF,
        "readers with isolation.level=read_committed see each record once; read_uncommitted, the default of most "
        "clients, shows aborted attempts too. Brokers do not report the isolation level of readers",
        "set isolation.level=read_committed in every reader",
    )
    return Hop("readers", "", EXACTLY_ONCE, (reason,))
