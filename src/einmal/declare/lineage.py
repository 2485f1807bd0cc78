"""Which sources the rows of a sink can depend on, and circles of sources. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Final

_NO_NAMES: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Parts of a query in which no table is named."""


def sources_of(sources: Collection[str], views: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """The sources that a source or view can depend on, by its name. ``views``: names and queries, in their order.

    A query depends on what it names; a field, or the new name of a column, names no table.
    """
    known = {name: frozenset([name]) for name in sources}
    for view, sql in views:
        query = _NO_NAMES.sub(" ", sql)
        known[view] = frozenset[str]().union(*(own for name, own in known.items() if _names(query, name)))
    return known


def _names(query: str, table: str) -> bool:
    return re.search(rf"(?i)(?<![\w.])(?<!\bas\s){re.escape(table)}\b", query) is not None


def circles(edges: Collection[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Circles of edges from one node to another, none of which has an edge of another one."""
    remaining = set(edges)
    several: list[list[tuple[str, str]]] = []
    while circle := _circle([edge for edge in edges if edge in remaining]):
        several.append(circle)
        remaining -= set(circle)
    return several


def _circle(edges: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    sorter = TopologicalSorter[str]()
    for origin, target in edges:
        sorter.add(target, origin)
    try:
        sorter.prepare()
    except CycleError as error:
        names = error.args[1]
        return [*zip(names, names[1:], strict=False)]
    return []
