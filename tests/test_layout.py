"""Claims about the package as a whole: one name means one thing, and functions and classes have a bounded size."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.python_source import parse

SOURCE = Path(__file__).parent.parent / "src" / "einmal"
GENERATED = SOURCE / "wire" / "api"
"""Requests and responses, whose nested structures have the names that Kafka's schemas give them."""

DRIVERS = ("Admin", "Consumer", "PartitionWriter", "Producer", "RangeReader", "TransactionDriver")
"""The client's two drivers, asyncio and blocking, have the same names on purpose: who knows one knows the other."""

REMAINDER = {
    "BrokerProcess": 2,
    "ConfigError": 2,
    "Connection": 3,
    "GroupMetadata": 2,
    "Heartbeat": 2,
    "Leader": 2,
    "Membership": 2,
    "NewTopic": 2,
    "Transaction": 3,
}
"""Names that still mean several things, and how many. To be emptied: rename a class, then lower or remove its line.
``Transaction`` is done when only the client's two drivers have it."""

FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 7
METHODS_MAX = 30
LARGER = {
    "wire/record_batch.py:_decode_section": "the hot path of a consumer: one pass without calls",
    "wire/record_scan.py:_Scan.walk": "the hot path of validation: one pass without calls",
    "wire/record_batch.py:encode_batch": "the fields of a record batch",
    "wire/record_batch.py:seal_batch": "the fields of a record batch",
    "cli/acl.py:list_acls": "the options of a command",
    "cli/acl.py:add": "the options of a command",
    "cli/acl.py:remove": "the options of a command",
    "cli/app.py:start": "the options of a command",
    "cli/dlq.py:list_letters": "the options of a command",
    "cli/dlq.py:show": "the options of a command",
    "cli/dlq.py:replay": "the options of a command",
    "cli/pipeline.py:adopt": "the options of a command",
    "cli/pipeline.py:reset": "the options of a command",
    "cli/quota.py:set_quotas": "the options of a command",
    "cli/quota.py:remove_quotas": "the options of a command",
    "cli/bench.py:bench": "the options of a command",
    "cli/run.py:run": "the options of a command",
    "cli/start.py:run": "the options of a command",
    "cli/topic.py:create": "the options of a command",
    "cli/topic.py:produce": "the options of a command",
    "cli/topic.py:consume": "the options of a command",
    "cli/txn.py:abort": "the options of a command",
    "cli/user.py:create": "the options of a command",
    "client/aio/raw.py:PartitionWriter.__init__": "public",
    "broker/coordinators/shard_runtime.py:ShardRuntime.__init__": "its collaborators, by keyword",
    "replication/leader.py:Leader.__init__": "the state that a leader starts from, by keyword",
    "quorum/raft.py:Raft": "one state machine: each event and its effects in one place, as in etcd/raft",
}
"""What is larger than the limits, and why."""


@cache
def modules() -> dict[Path, ast.Module]:
    """All but the generated ones, parsed."""
    return {path: parse(path.read_text()) for path in sorted(set(SOURCE.rglob("*.py")) - set(GENERATED.glob("*.py")))}


def public_classes() -> dict[str, list[str]]:
    """The modules that define each public class, as paths inside the package."""
    found = defaultdict(list)
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SOURCE)))
    return found


def test_a_public_class_has_a_name_of_its_own() -> None:
    found = public_classes()
    shared = {name: modules for name, modules in found.items() if len(modules) > _allowed(name)}
    assert shared == {}, "rename the new one"
    emptied = [name for name in REMAINDER if len(found[name]) < _allowed(name)]
    assert emptied == [], "the remainder has become shorter"


def test_the_two_drivers_of_the_client_have_the_same_names() -> None:
    found = public_classes()
    for name in DRIVERS:
        assert [Path(module).parent for module in found[name]] == [Path("client/aio"), Path("client/blocking")]


def test_functions_and_classes_have_a_bounded_size() -> None:
    too_large = set()
    for path, tree in modules().items():
        module = path.relative_to(SOURCE).as_posix()
        too_large |= {f"{module}:{name}" for name in _too_large(tree)}
    assert too_large == set(LARGER), "split the new one, or remove the line of what is smaller now"


def _too_large(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{getattr(node, 'name', '')}"
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if methods > METHODS_MAX:
                yield name
            yield from _too_large(node, f"{name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            parameters = sum(each.arg not in ("self", "cls") for each in arguments)
            if parameters > PARAMETERS_MAX or node.end_lineno - node.lineno >= FUNCTION_LINES_MAX:
                yield name
            yield from _too_large(node, f"{name}.")
        else:
            yield from _too_large(node, prefix)


def _allowed(name: str) -> int:
    return REMAINDER.get(name, 2 if name in DRIVERS else 1)
