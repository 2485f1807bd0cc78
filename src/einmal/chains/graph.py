"""The graph of a chain: locations that hold records, and links that move them. Pure.

A link is a pipeline, a flow of a mirror, or an ingester. Each is exactly once by itself, with a commit of its own, so a
chain of such links is exactly once as a whole: what a link reads twice it does not commit twice. This ends where a link
promises less, or reads what the link before may still abort.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from graphlib import CycleError, TopologicalSorter

from einmal.options.guarantees import UNKNOWN, together
from einmal.options.sink import AT_LEAST_ONCE, EXACTLY_ONCE


class LocationKind(Enum):
    TOPIC = "topic"
    TABLE = "table"
    FILES = "files"
    OTHER = "other"
    NAMED_BY_ROWS = "topics"
    """Topics of a cluster that each row names: which ones they are is not known, and who else writes them."""


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """``system``: which cluster, database or machine."""

    system: str
    name: str
    kind: LocationKind = field(default=LocationKind.TOPIC, compare=False)


class LinkKind(Enum):
    PIPELINE = "pipeline"
    MIRROR = "mirror"
    INGESTER = "ingester"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """``patterns``: topics that it reads by a regular expression, with their system; ``writes``: topics that it writes,
    as far as they are known otherwise; ``dead_letters``: topics of its dead letters, besides. ``copies``: of a mirror,
    the location that a topic is copied to; None: it is not copied. ``guarantee``: by itself, its sources included;
    ``why``: what weakens it there. ``reads_uncommitted``: also what may be aborted."""

    name: str
    kind: LinkKind
    inputs: tuple[Location, ...] = ()
    patterns: tuple[tuple[str, str], ...] = ()
    outputs: tuple[Location, ...] = ()
    writes: tuple[tuple[str, str], ...] = ()
    dead_letters: tuple[Location, ...] = ()
    copies: Callable[[Location], Location | None] | None = None
    guarantee: str = EXACTLY_ONCE
    why: str = ""
    reads_uncommitted: bool = False


@dataclass(frozen=True, slots=True)
class ChainStep:
    """A link with the locations that it was found to connect. ``guarantee``: of what it writes, from the beginning of
    the chain; ``why``: what weakens it here."""

    link: Link
    inputs: tuple[Location, ...]
    outputs: tuple[Location, ...]
    guarantee: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Chain:
    """``steps`` in the order in which a record takes them. ``depths``: columns for a drawing, of locations."""

    steps: tuple[ChainStep, ...]
    depths: Mapping[Location, int]

    @property
    def ends(self) -> list[Location]:
        """Locations that no link reads."""
        read = {location for step in self.steps for location in step.inputs}
        return sorted({output for step in self.steps for output in step.outputs} - read)

    def guarantee_of(self, location: Location) -> str:
        """Return the guarantee of the data in the location: of all links together that write there."""
        if location.kind is LocationKind.NAMED_BY_ROWS:
            return UNKNOWN
        return together(step.guarantee for step in self.steps if location in step.outputs)

    def upstream(self, location: Location) -> list[ChainStep]:
        """The steps that a record can have taken to this location, in order."""
        wanted = {location}
        while True:
            # Dead letters can lead back to a link before.
            steps = [step for step in self.steps if wanted & set(step.outputs)]
            grown = wanted.union(*(step.inputs for step in steps))
            if grown == wanted:
                return steps
            wanted = grown


class CircularChain(Exception):
    """Records would run in a circle."""


def chain_of(links: Sequence[Link], existing: Collection[Location] = ()) -> Chain:
    """``existing``: topics that were found in the clusters, for patterns. Raises CircularChain.

    A circle through dead letters is none: a link that repairs them writes to the topic that they come from. Nor is a
    pipeline that reads what it writes: it may have several steps, and its declaration is refused where it has a circle.
    """
    connected = _connected(links, existing)
    try:
        order = _order(_before(connected))
    except CycleError:
        try:
            order = _order(_before(connected, dead_letters=False))
        except CycleError as error:
            names = " -> ".join(connected[number][0].name for number in error.args[1])
            raise CircularChain(f"records run in a circle: {names}") from error
    depths: dict[Location, int] = {}
    for number in order:
        _, inputs, outputs = connected[number]
        depth = max((depths.setdefault(location, 0) for location in inputs), default=0)
        for output in outputs:
            depths[output] = max(depths.get(output, 0), depth + 1)
    return Chain(_steps([connected[number] for number in order]), depths)


def _order(before: Mapping[int, set[int]]) -> list[int]:
    return [*TopologicalSorter(before).static_order()]


_Connected = tuple[Link, tuple[Location, ...], tuple[Location, ...]]


def _connected(links: Sequence[Link], existing: Collection[Location]) -> list[_Connected]:
    """Patterns and mirrors see the outputs of all other links, so that this is repeated until nothing is found."""
    topics = {
        location for link in links for location in (*link.inputs, *link.outputs) if location.kind is LocationKind.TOPIC
    }
    topics |= set(existing)
    while True:
        connected = [_expanded(link, topics) for link in links]
        more = {
            output for _, _, outputs in connected for output in outputs if output.kind is LocationKind.TOPIC
        } - topics
        if not more:
            return connected
        topics |= more


def _expanded(link: Link, topics: Iterable[Location]) -> _Connected:
    inputs = tuple(dict.fromkeys((*link.inputs, *_matching(link.patterns, topics))))
    if link.copies is None:
        outputs = (*link.outputs, *_matching(link.writes, topics), *link.dead_letters)
        return link, inputs, tuple(dict.fromkeys(outputs))
    copied = {source: location for source in inputs if (location := link.copies(source)) is not None}
    return link, tuple(copied), tuple(dict.fromkeys(copied.values()))


def _matching(patterns: Iterable[tuple[str, str]], topics: Iterable[Location]) -> list[Location]:
    return [
        topic
        for topic in sorted(topics)
        if any(topic.system == system and re.fullmatch(pattern, topic.name) for system, pattern in patterns)
    ]


def _before(connected: Sequence[_Connected], *, dead_letters: bool = True) -> dict[int, set[int]]:
    """The links whose outputs a link reads, by number."""

    def written(link: Link, outputs: tuple[Location, ...]) -> set[Location]:
        return set(outputs) if dead_letters else set(outputs) - set(link.dead_letters)

    return {
        number: {
            other
            for other, (link, _, outputs) in enumerate(connected)
            if written(link, outputs) & set(inputs) and (other != number or link.kind is not LinkKind.PIPELINE)
        }
        for number, (_, inputs, _) in enumerate(connected)
    }


def _steps(ordered: Sequence[_Connected]) -> tuple[ChainStep, ...]:
    """Repeated until no guarantee becomes weaker: dead letters can lead back to a link before."""
    guarantees: dict[Location, str] = {}
    while True:
        before, steps = dict(guarantees), []
        for link, inputs, outputs in ordered:
            step = _step(link, inputs, outputs, guarantees)
            steps.append(step)
            for output in outputs:
                guarantees[output] = together([step.guarantee, guarantees.get(output, EXACTLY_ONCE)])
        if guarantees == before:
            return tuple(steps)


def _step(
    link: Link, inputs: tuple[Location, ...], outputs: tuple[Location, ...], guarantees: Mapping[Location, str]
) -> ChainStep:
    written = [location for location in inputs if location in guarantees]
    before = together(guarantees[location] for location in written)
    own = together([link.guarantee, AT_LEAST_ONCE if link.reads_uncommitted else EXACTLY_ONCE])
    why = ""
    if link.reads_uncommitted and written:
        why = f"reads {written[0].name} with isolation.level=read_uncommitted: also what the link before aborts"
    elif own != EXACTLY_ONCE:
        why = link.why or "promises no more by itself"
    elif before != EXACTLY_ONCE:
        why = "so does a link before"
    return ChainStep(link, inputs, outputs, together([own, before]), why)
