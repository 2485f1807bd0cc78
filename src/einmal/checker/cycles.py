"""Cycles of dependencies between operations (Adya's G0 and G1c, with process and real-time order).

Edges: ww (the writer of a version before the writer of the next one in its key), wr (a writer before its reader), the
order of one process, and real time (one had ended before the other began). The log has no write isolation, so cycles
that need a ww edge are allowed; without one, information has travelled in a circle or back in time, which is never
allowed.

Orders need few edges: each end leads to a barrier, each barrier to the next one, and to the operations that begin after
it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from einmal.checker.history import Anomaly, Op, OpOutcome
from einmal.checker.index import Index

Node = Hashable
Graph = dict[Node, dict[Node, None]]
_ORDERS: Final = (("", ""), ("-process", "strong-session-"), ("-realtime", "strong-"))


@dataclass(frozen=True, slots=True)
class Cycle:
    """``kind``: the specific name, or the general one (``PL-...-cycle-exists``)."""

    kind: str
    is_allowed: bool
    ops: tuple[int, ...]

    def anomaly(self) -> Anomaly:
        return Anomaly(self.kind, f"operations {' -> '.join(map(str, (*self.ops, *self.ops[:1])))}", ops=self.ops)


def find_cycles(index: Index) -> list[Cycle]:
    """The simplest cycle of each kind. Operations are named by their position in the history."""
    ops = {op_id: op for op_id, op in enumerate(index.history.ops) if _has_effect(index, op)}
    writes, reads = _write_edges(index, ops), _read_edges(index, ops)
    processes: dict[int, list[int]] = defaultdict(list)
    for op_id, op in ops.items():
        processes[op.process].append(op_id)
    order: Graph = {}
    found: list[Cycle] = []
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
            # A cycle that exists in a weaker order already is reported once.
            if any(cycle.kind.startswith(name) and cycle.is_allowed is is_allowed for cycle in found):
                continue
            cycle = _shortest_cycle(_union(*edges, order))
            if cycle:
                if is_allowed and name == "G1c" and any(other.kind.startswith("G0") for other in found):
                    continue
                found.append(Cycle(f"{name}{suffix}", is_allowed, cycle))
                found.append(Cycle(f"{strength}PL-{level}-cycle-exists", is_allowed, cycle))
    return found


def flows_forward(index: Index) -> bool:
    """Whether it is certain, after one pass without a graph, that no cycle exists that is not allowed.

    Count a write at the moment when it began, and a read when it ended. Orders lead from the end of an operation to a
    later beginning, so forward; if each value was read after its write began, all edges lead forward.
    """
    for op in index.history.ops:
        for poll in op.polls if op.read_committed and op.outcome is OpOutcome.OK else ():
            for _, value in poll.records:
                writer = index.writers.get((poll.key, value))
                if writer is None or writer is op:
                    continue
                if op.sends or op.ended is None or writer.polls or writer.began >= op.ended:
                    return False
    return True


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
    for found in versions.values():
        found.sort()
        for (_, before), (_, after) in zip(found, found[1:], strict=False):
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
    """The operations of a shortest cycle; empty: there is none."""
    best: list[Node] = []
    for component in _components(graph):
        inside = dict.fromkeys(component)
        for start in component:
            path = _way_back(graph, start, inside, len(best) or len(component) + 1)
            if path and (not best or len(path) < len(best)):
                best = path
    return tuple(node for node in best if isinstance(node, int))


def _way_back(graph: Graph, start: Node, inside: dict[Node, None], below: int) -> list[Node]:
    before: dict[Node, Node] = {}
    depth = {start: 0}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        if depth[node] + 1 >= below:
            return []
        for target in graph.get(node, ()):
            if target == start:
                path = [node]
                while path[-1] != start:
                    path.append(before[path[-1]])
                return path[::-1]
            if target in inside and target not in depth:
                depth[target], before[target] = depth[node] + 1, node
                queue.append(target)
    return []


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
