"""Cycles of dependencies between operations (Adya's G0 and G1c, with process and real-time order).

Edges: ww (the writer of a version before the writer of the next one in its key), wr (a writer before its reader), the
order of one process, and real time (one had ended before the other began). The log has no write isolation, so cycles
that need a ww edge are allowed; without one, information has travelled in a circle or back in time, which is never
allowed.

Orders need few edges: each end leads to a barrier, each barrier to the next one, and to the operations that begin after
it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from einmal.checker.history import Anomaly, Op, OpOutcome
from einmal.checker.index import Index

Node = Hashable
Graph = dict[Node, dict[Node, None]]
Spans = list[tuple[float, float]]
"""From when to when, in seconds of the history's clock."""
_ORDERS: Final = (("", ""), ("-process", "strong-session-"), ("-realtime", "strong-"))


@dataclass(frozen=True, slots=True)
class Cycle:
    """``kind``: the specific name, or the general one (``PL-...-cycle-exists``)."""

    kind: str
    is_allowed: bool
    ops: tuple[int, ...]

    def anomaly(self) -> Anomaly:
        return Anomaly(self.kind, f"operations {' -> '.join(map(str, (*self.ops, *self.ops[:1])))}", ops=self.ops)


def find_cycles(index: Index, spans: Spans | None = None) -> list[Cycle]:
    """The simplest cycle of each kind. Operations are named by their position in the history.

    ``spans``: of an ``InformationFlow``; then only cycles that are not allowed are looked for, which suffices.
    """
    ops = {
        op_id: op
        for op_id, op in enumerate(index.history.ops)
        if (spans is None or _is_within(spans, op.began, index.ended[op_id])) and _has_effect(index, op)
    }
    writes, reads = _write_edges(index, ops), _read_edges(index, ops)
    processes: dict[int, list[int]] = defaultdict(list)
    for op_id, op in ops.items():
        processes[op.process].append(op_id)
    order: Graph = {}
    cycles: list[Cycle] = []
    for suffix, strength in _ORDERS:
        if suffix == "-process":
            for number, op_ids in processes.items():
                _draw_order(order, f"process {number}", op_ids, ops)
        elif suffix == "-realtime":
            _draw_order(order, "time", list(ops), ops)
        for name, level, edges, is_allowed in (
            ("G0", 1, (writes,), True),
            ("G1c", 2, (reads,), False),
            ("G1c", 2, (writes, reads), True),
        ):
            if is_allowed and spans is not None:
                continue
            # A cycle that exists in a weaker order already is reported once.
            if any(cycle.kind.startswith(name) and cycle.is_allowed is is_allowed for cycle in cycles):
                continue
            cycle = _shortest_cycle(_union(*edges, order))
            if cycle:
                if is_allowed and name == "G1c" and any(other.kind.startswith("G0") for other in cycles):
                    continue
                cycles.append(Cycle(f"{name}{suffix}", is_allowed, cycle))
                cycles.append(Cycle(f"{strength}PL-{level}-cycle-exists", is_allowed, cycle))
    return cycles


class InformationFlow:
    """Finds, in one pass without a graph, when information may have flowed back in time.

    Each operation has a moment: when it began or, if later, the latest moment of the writers that it read from.
    Orders lead from the end of an operation to a later beginning, so forward; where no operation ends before its
    moment, all edges lead forward. So a cycle of reads lies within the spans from such an end to the later moment, and
    within those of operations that read what a later one wrote: nothing leads back over a moment outside of them.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._moments = array("d")
        self._spans: Spans = []

    def add(self, op_id: int, op: Op) -> None:
        """The operations of the index, in their order."""
        moment = op.began
        if self._index.has_polls[op_id] and (op.read_committed or op.outcome is OpOutcome.INFO):
            moment = self._read_at(op_id, op)
            if op.outcome is OpOutcome.OK and moment > self._index.ended[op_id]:
                self._spans.append((self._index.ended[op_id], moment))
        self._moments.append(moment)

    def _read_at(self, op_id: int, op: Op) -> float:
        latest = op.began
        for poll in op.polls:
            key_index = self._index.keys[poll.key]
            for _, value in poll.records:
                writer = key_index.writers[key_index.numbers[value]]
                if writer < 0 or writer == op_id:
                    continue
                written_at = self._moments[writer] if writer < op_id else self._index.began[writer]
                if written_at > latest:
                    latest = written_at
                if writer > op_id and self._index.has_polls[writer]:
                    # The moment of the writer is not known yet.
                    self._spans.append((op.began, max(self._index.ended[op_id], self._index.ended[writer])))
        return latest

    def spans(self) -> Spans:
        """Return the spans that contain every cycle of reads, without overlaps, in order."""
        merged: Spans = []
        for start, end in sorted(self._spans):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged


def _is_within(spans: Spans, began: float, ended: float) -> bool:
    """Whether an operation ran in any of the spans."""
    position = bisect_right(spans, ended, key=itemgetter(0))
    return position > 0 and spans[position - 1][1] >= began


def _has_effect(index: Index, op: Op) -> bool:
    """It was committed, or a reader saw it."""
    if op.outcome is OpOutcome.INFO:
        return any(index.is_committed(op, send) for send in op.sends)
    return op.outcome is OpOutcome.OK and op.read_committed


def _write_edges(index: Index, ops: dict[int, Op]) -> Graph:
    versions: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for op_id, op in ops.items():
        for send in op.sends:
            offset = index.offset_of(send.key, send.value)
            if offset is not None:
                versions[send.key].append((offset, op_id))
    graph: Graph = {}
    for writes in versions.values():
        writes.sort()
        for (_, before), (_, after) in zip(writes, writes[1:], strict=False):
            if before != after:
                graph.setdefault(before, {})[after] = None
    return graph


def _read_edges(index: Index, ops: dict[int, Op]) -> Graph:
    writers = {(send.key, send.value): op_id for op_id, op in ops.items() for send in op.sends}
    graph: Graph = {}
    for op_id, op in ops.items():
        for poll in op.polls:
            for _, value in poll.records:
                writer = writers.get((poll.key, value))
                if writer is not None and writer != op_id:
                    graph.setdefault(writer, {})[op_id] = None
    return graph


def _draw_order(graph: Graph, name: str, op_ids: list[int], ops: dict[int, Op]) -> None:
    ends = sorted((end, op_id) for op_id in op_ids if (end := ops[op_id].ended) is not None)
    for number, (_, op_id) in enumerate(ends):
        graph.setdefault(op_id, {})[(name, number)] = None
        if number:
            graph.setdefault((name, number - 1), {})[(name, number)] = None
    passed = 0
    for began, op_id in sorted((ops[op_id].began, op_id) for op_id in op_ids):
        while passed < len(ends) and ends[passed][0] < began:
            passed += 1
        if passed:
            graph.setdefault((name, passed - 1), {})[op_id] = None


def _union(*graphs: Graph) -> Graph:
    union: Graph = {}
    for graph in graphs:
        for node, targets in graph.items():
            union.setdefault(node, {}).update(targets)
    return union


def _shortest_cycle(graph: Graph) -> tuple[int, ...]:
    """A cycle of the fewest operations, from its earliest one on; empty: there is none."""
    best: tuple[int, ...] = ()
    for component in _components(graph):
        inside = dict.fromkeys(component)
        for start in sorted(node for node in component if isinstance(node, int)):
            best = _way_back(graph, start, inside, len(best) or len(component) + 1) or best
    return best


def _way_back(graph: Graph, start: int, inside: dict[Node, None], below: int) -> tuple[int, ...]:
    """A cycle with ``start`` of the fewest operations, if they are fewer than ``below``. Barriers do not count."""
    before: dict[Node, Node] = {}
    counts: dict[Node, int] = {start: 1}
    passed: dict[Node, None] = {}
    queue: deque[Node] = deque([start])
    while queue:
        node = queue.popleft()
        if counts[node] >= below:
            return ()
        if node in passed:
            continue
        passed[node] = None
        for target in graph.get(node, ()):
            if target == start:
                path = [node]
                while path[-1] != start:
                    path.append(before[path[-1]])
                return tuple(op_id for op_id in reversed(path) if isinstance(op_id, int))
            count = counts[node] + isinstance(target, int)
            if target in inside and count < counts.get(target, below):
                counts[target], before[target] = count, node
                if isinstance(target, int):
                    queue.append(target)
                else:
                    queue.appendleft(target)
    return ()


def _components(graph: Graph) -> Iterable[list[Node]]:
    """Strongly connected components of more than one node (Tarjan's algorithm, without recursion)."""
    numbers: dict[Node, int] = {}
    lowest: dict[Node, int] = {}
    stack: list[Node] = []
    is_stacked: dict[Node, None] = {}
    for root in graph:
        if root in numbers:
            continue
        work = [(root, iter(graph.get(root, ())))]
        numbers[root] = lowest[root] = len(numbers)
        stack.append(root)
        is_stacked[root] = None
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in numbers:
                    numbers[target] = lowest[target] = len(numbers)
                    stack.append(target)
                    is_stacked[target] = None
                    work.append((target, iter(graph.get(target, ()))))
                    break
                if target in is_stacked:
                    lowest[node] = min(lowest[node], numbers[target])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == numbers[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        del is_stacked[member]
                        component.append(member)
                        if member == node:
                            break
                    if len(component) > 1:
                        yield component[::-1]
