"""``einmal explain`` of several files: one chain of pipelines, mirrors and ingesters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from einmal.cli.clients import failures_reported
from einmal.cli.declarations import WRONG_USAGE, parsed, wrong_usage
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format
from einmal.cli.printing.messages import note

if TYPE_CHECKING:
    from einmal.chains.declared import BrokenSection, DeclaredLink
    from einmal.chains.graph import Chain, ChainStep, Link, Location


def explain_chain(files: Sequence[Path], graph: Path | None, output: Format) -> None:
    """Print what the chain promises from end to end, and how far it is behind; ``graph``: draw it to this file.

    A section, or a file, that is broken is left out, which the output reports, and the exit status: 2.
    """
    from einmal.chains.declared import BrokenSection, DeclaredLink
    from einmal.chains.drawing import svg, text
    from einmal.chains.graph import CircularChain, chain_of
    from einmal.chains.lags import end_to_end, lag_of, topics_of_clusters

    systems = _Systems()
    with failures_reported():
        sections = [(file, section) for file in files for section in _links(file, systems)]
        declared = [section for _, section in sections if isinstance(section, DeclaredLink)]
        broken = [(file, section) for file, section in sections if isinstance(section, BrokenSection)]
        for file, section in broken:
            wrong_usage(file, section.error)
        if not declared:
            raise typer.Exit(WRONG_USAGE)
        existing, unanswered = topics_of_clusters(systems.clients, systems.names)
        for system, reason in unanswered.items():
            typer.echo(f"warning: the topics of {system} are not known: {reason}", err=True)
        try:
            chain = chain_of([declaration.link for declaration in declared], existing)
        except CircularChain as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        lags = {declaration.link: lag_of(declaration) for declaration in declared}
    notes = {link: str(lag) for link, lag in lags.items()}
    if graph is not None:
        try:
            graph.write_text(svg(chain, notes), encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"{graph} cannot be written: {error.strerror}") from error
        note(f"drawn: {graph}")
    ends = [{**_end(chain, location), "behind": str(end_to_end(chain, location, lags))} for location in chain.ends]
    if output.is_document:
        steps = [_step(step, notes) for step in chain.steps]
        print(
            encoded(
                {"links": steps, "ends": ends, "left_out": [f"{file}: {section.name}" for file, section in broken]},
                output,
            )
        )
    else:
        for line in text(chain, notes):
            print(line)
        for end in ends:
            print(f"\n{end['location']}, from end to end: {end['guarantee']}; {end['behind']}")
        for file, section in broken:
            print(f"\nleft out, and everything above is without it: {file}: {section.name}")
    if broken:
        raise typer.Exit(WRONG_USAGE)


class _Systems:
    """The name of a cluster: the addresses under which it was seen first."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """By bootstrap.servers."""
        self.clients: list[Mapping[str, str]] = []
        self._by_id: dict[str, str] = {}

    def __call__(self, client: Mapping[str, str]) -> str:
        servers = client.get("bootstrap.servers", "")
        if servers not in self.names:
            self.clients.append(client)
            cluster_id = self._cluster_id(client)
            self.names[servers] = self._by_id.setdefault(cluster_id, servers) if cluster_id else servers
        return self.names[servers]

    @staticmethod
    def _cluster_id(client: Mapping[str, str]) -> str | None:
        """None where it does not answer."""
        from einmal.client.errors import KafkaError
        from einmal.clusters.kafka_cluster import KafkaCluster

        try:
            with closing(KafkaCluster({**client, "default.api.timeout.ms": "3000"})) as cluster:
                return cluster.cluster_id()
        except KafkaError:
            return None


def _links(file: Path, systems: _Systems) -> list[DeclaredLink | BrokenSection]:
    from einmal.chains.declared import BrokenSection, declared_links
    from einmal.options.values import OptionError

    try:
        return parsed(file, lambda text, environment, read: [*declared_links(text, environment, read, systems)])
    except OptionError as error:
        return [BrokenSection("all of it", error)]


def _step(step: ChainStep, notes: Mapping[Link, str]) -> dict[str, Any]:
    return {
        "link": step.link.name,
        "kind": step.link.kind.value,
        "inputs": [_location(location) for location in step.inputs],
        "outputs": [_location(output) for output in step.outputs],
        "guarantee": step.guarantee,
        "why": step.why,
        "behind": notes[step.link],
    }


def _end(chain: Chain, location: Location) -> dict[str, Any]:
    return {"location": _location(location), "guarantee": chain.guarantee_of(location)}


def _location(location: Location) -> str:
    return f"{location.name} [{location.kind.value}, {location.system}]"
