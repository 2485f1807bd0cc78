"""The links of a chain, from the files that declare them: pipelines, ingesters and mirrors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from einmal.chains.graph import Link, LinkKind, Location, LocationKind
from einmal.declare import pipeline as pipelines
from einmal.declare.document import toml_tables
from einmal.declare.pipeline import OWN_FORMAT, Declaration, DeclaredSink, Source
from einmal.ingest import declaration as ingesters
from einmal.ingest.declaration import IngestDeclaration
from einmal.ingest.machine import transactional_id
from einmal.mirror_protocol.flow import Flow
from einmal.mirroring import declaration as mirrors
from einmal.mirroring.declaration import MirrorDeclaration
from einmal.options.guarantees import guarantee_of_source, together
from einmal.options.sink import EXACTLY_ONCE, SinkOptions
from einmal.options.source import fails_on_data_loss, isolation_of, pattern_of, topics_of
from einmal.options.values import OptionError, client_settings
from einmal.sinks.kafka.sink import KafkaSink
from einmal.sinks.kinds import new_sink
from einmal.sinks.sink import Sink

_USER: Final = re.compile(r"//[^/@]*@")
_HERE: Final = "this machine"

Read = Callable[[str], str]
"""The text of a file that a value refers to (OSError)."""
Systems = Callable[[Mapping[str, str]], str]
"""Function that returns a cluster's name from settings of a client; one name for all addresses of a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredLink:
    """``record``: the name of its commit record, which is where ``sink`` leads; None where it has none: its guarantee
    does without transactions. ``source``: settings of a client of the cluster that it reads; None where it reads no
    topics."""

    link: Link
    record: str | None
    sink: Callable[[], Sink]
    source: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class BrokenSection:
    """``name``: of a flow, an ingester or a pipeline, which is not a link because of ``error``."""

    name: str
    error: OptionError


def declared_links(
    text: str, environment: Mapping[str, str], read: Read, systems: Systems
) -> Iterator[DeclaredLink | BrokenSection]:
    """Yield the links that one file declares. A broken link keeps no other from being there. Raises
    DeclarationError."""
    document = toml_tables(text)
    for name, make in _sections(text, document, environment, read, systems):
        try:
            yield make()
        except OptionError as error:
            yield BrokenSection(name, error)


def _sections(
    text: str, document: Mapping[str, Any], environment: Mapping[str, str], read: Read, systems: Systems
) -> Iterator[tuple[str, Callable[[], DeclaredLink]]]:
    """Names of what may be a link, and what makes it one (OptionError)."""

    def flow(name: str) -> DeclaredLink:
        return _flow(name, mirrors.parse(text, environment, read, name), systems)

    def ingester(name: str) -> DeclaredLink:
        return _ingester(ingesters.declared(text, environment, read, name)[name], systems)

    def pipeline() -> DeclaredLink:
        return _pipeline(pipelines.parse(text, environment, {}, read), systems)

    if "clusters" in document:
        yield from ((name, partial(flow, name)) for name in mirrors.flow_names(text))
        return
    tables = document.get("ingest")
    if isinstance(tables, Mapping):
        yield from ((f"ingest.{name}", partial(ingester, name)) for name in tables)
    if pipelines.declares_pipeline(document):
        yield "pipeline", pipeline


# --- pipelines --------------------------------------------------------------------------------------------------


def _pipeline(declaration: Declaration, systems: Systems) -> DeclaredLink:
    options = declaration.options
    client = options.client if isinstance(options, SinkOptions) else None
    inputs: list[Location] = []
    patterns: list[tuple[str, str]] = []
    source, reads_uncommitted = None, False
    weak: dict[str, str] = {}
    for declared_source in declaration.sources:
        settings = {name.lower(): value for name, value in declared_source.options.items()}
        client_of_source = client_settings(settings)
        isolation = isolation_of(declared_source.format, client_of_source)
        guarantee = guarantee_of_source(
            declared_source.format, isolation, fails_on_data_loss=fails_on_data_loss(settings)
        )
        if guarantee != EXACTLY_ONCE:
            weak[declared_source.name] = guarantee
        if isolation is None:
            inputs.append(_other_source(declared_source))
            continue
        source = client_of_source
        system = systems(source)
        inputs += [Location(system, topic) for topic in topics_of(settings)]
        if (pattern := pattern_of(settings)) is not None:
            patterns.append((system, pattern))
        reads_uncommitted |= isolation == "read_uncommitted"
    link = Link(
        name=declaration.name,
        kind=LinkKind.PIPELINE,
        inputs=tuple(inputs),
        patterns=tuple(patterns),
        outputs=tuple(_output(sink, client, systems) for sink in declaration.sinks),
        dead_letters=tuple(_dead_letters(declaration, systems)),
        guarantee=together([options.guarantee, *weak.values()]),
        why=_why(options.guarantee, weak),
        reads_uncommitted=reads_uncommitted,
    )
    record, sink = _record(declaration, client)
    return DeclaredLink(
        link=link, record=record if options.guarantee == EXACTLY_ONCE else None, sink=sink, source=source
    )


def _why(asked: str, weak: Mapping[str, str]) -> str:
    """``weak``: guarantees of sources, by name."""
    own = [f"processing.guarantee={asked}"] if asked != EXACTLY_ONCE else []
    return "; ".join([*own, *(f"{guarantee} by its source {name}" for name, guarantee in weak.items())])


def _record(declaration: Declaration, client: Mapping[str, str] | None) -> tuple[str, Callable[[], Sink]]:
    """The name of a commit record, and where it is: of several databases each has its own, and the last one, which
    commits behind the others, is asked."""
    others = [sink for sink in declaration.sinks if not sink.is_topic]
    if client is not None and len(others) < len(declaration.sinks):
        return declaration.name, partial(KafkaSink, dict(client))
    last = others[-1]
    name = declaration.name if len(others) == 1 else f"{declaration.name}/{last.name}"
    return name, partial(new_sink, last.kind, last.options)


def _dead_letters(declaration: Declaration, systems: Systems) -> Iterator[Location]:
    """Yield the topics of bad and of rejected rows: those of sinks, and of sources without a topic beside them, are in
    the cluster of a source."""
    options = declaration.options
    ours = [source for source in declaration.sources if source.format == OWN_FORMAT]
    clusters = [systems(client_settings({name.lower(): value for name, value in s.options.items()})) for s in ours]
    for source, cluster in zip(ours, clusters, strict=True):
        if source.dead_letter_topic is not None:
            home = systems(options.client) if isinstance(options, SinkOptions) else cluster
            yield Location(home, source.dead_letter_topic)
    for sink in declaration.sinks:
        if clusters and sink.dead_letter_topic is not None:
            yield Location(clusters[0], sink.dead_letter_topic)


def _other_source(source: Source) -> Location:
    path = source.options.get("path")
    if path is None:
        return Location(_HERE, f"{source.name} ({source.format})", LocationKind.OTHER)
    return Location(_HERE, path, LocationKind.FILES)


def _output(sink: DeclaredSink, client: Mapping[str, str] | None, systems: Systems) -> Location:
    if client is not None and sink.is_topic:
        named = Location(systems(client), "topics that each row names", LocationKind.NAMED_BY_ROWS)
        return named if sink.topic is None else Location(systems(client), sink.topic)
    with closing(new_sink(sink.kind, sink.options)) as row_sink:
        name = next((value for key, value in sink.options.items() if key.lower() == "table"), str(row_sink.table))
        return Location(_address(sink.options, sink.kind), name, LocationKind.TABLE)


def _address(options: Mapping[str, str], kind: str) -> str:
    """Where a database is, without user and password."""
    given = {name.lower(): value for name, value in options.items()}
    address = given.get("url") or given.get("path") or kind
    return _USER.sub("//", address).partition("?")[0]


# --- ingesters and mirrors --------------------------------------------------------------------------------------


def _ingester(declared: IngestDeclaration, systems: Systems) -> DeclaredLink:
    options: Mapping[str, Any] = declared.options
    name = str(options.get("path") or options.get("table") or options.get("publication") or declared.name)
    kind = LocationKind.FILES if "path" in options else LocationKind.TABLE
    system = _HERE if kind is LocationKind.FILES else _address(options, declared.kind)
    topic, prefix, cluster = options.get("topic"), options.get("topic.prefix"), systems(declared.client)
    link = Link(
        name=declared.name,
        kind=LinkKind.INGESTER,
        inputs=(Location(system, name, kind),),
        outputs=(Location(cluster, topic),) if topic else (),
        # One topic for each table that has changed.
        writes=((cluster, re.escape(prefix) + r"\..*"),) if prefix else (),
    )
    sink = partial(KafkaSink, dict(declared.client))
    return DeclaredLink(link=link, record=transactional_id(declared.name), sink=sink)


def _flow(name: str, declaration: MirrorDeclaration, systems: Systems) -> DeclaredLink:
    flow = declaration.flows[name]
    source, target = declaration.clusters[flow.source], declaration.clusters[flow.target]
    link = Link(
        name=flow.name,
        kind=LinkKind.MIRROR,
        patterns=((systems(source), ".*"),),
        copies=partial(_copy, flow, systems(target)),
    )
    leads = partial(KafkaSink, dict(target))
    return DeclaredLink(link=link, record=flow.transactional_id, sink=leads, source=source)


def _copy(flow: Flow, target: str, location: Location) -> Location | None:
    return Location(target, flow.remote_topic(location.name)) if flow.accepts_topic(location.name) else None
