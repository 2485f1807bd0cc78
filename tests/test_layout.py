"""Claims about the package as a whole: one name means one thing, functions and classes have a bounded size, and one
package reaches into Spark's JVM."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.python_source import parse

SOURCE = Path(__file__).parent.parent / "src" / "einmal"
TESTS = Path(__file__).parent
GENERATED = SOURCE / "wire" / "api"
"""Requests and responses, whose nested structures have the names that Kafka's schemas give them."""

DRIVERS = ("Admin", "Consumer", "PartitionWriter", "Producer", "RangeReader", "TransactionDriver")
"""The client's two drivers, asyncio and blocking, have the same names on purpose: who knows one knows the other."""

REMAINDER = {
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
CLASS_LINES_MAX = 400
COHESIVE_ABOVE = 20
"""Methods: a class of more is one state machine, see ``_is_cohesive``."""
LARGER = {
    "wire/record_batch.py:_decode_section": "the hot path of a consumer: one pass without calls",
    "wire/record_scan.py:_Scan.walk": "the hot path of validation: one pass without calls",
    "wire/record_batch.py:encode_batch": "the fields of a record batch",
    "wire/record_batch.py:seal_batch": "the fields of a record batch",
    "cli/commands/acl.py:list_acls": "the options of a command",
    "cli/commands/acl.py:add": "the options of a command",
    "cli/commands/acl.py:remove": "the options of a command",
    "cli/app.py:start": "the options of a command",
    "cli/commands/verify.py:verify": "the options of a command",
    "cli/commands/chaos.py:chaos": "the options of a command",
    "cli/commands/dlq.py:list_letters": "the options of a command",
    "cli/commands/dlq.py:show": "the options of a command",
    "cli/commands/dlq.py:replay": "the options of a command",
    "cli/commands/group.py:seek": "the options of a command",
    "cli/commands/pipeline.py:adopt": "the options of a command",
    "cli/commands/pipeline.py:reset": "the options of a command",
    "cli/commands/quota.py:set_quotas": "the options of a command",
    "cli/commands/quota.py:remove_quotas": "the options of a command",
    "cli/commands/bench.py:bench": "the options of a command",
    "cli/commands/run.py:run": "the options of a command",
    "cli/start/run.py:run": "the options of a command",
    "cli/commands/topic.py:create": "the options of a command",
    "cli/commands/topic.py:alter": "the options of a command",
    "cli/commands/topic.py:produce": "the options of a command",
    "cli/commands/topic.py:consume": "the options of a command",
    "cli/commands/trace.py:trace": "the options of a command",
    "cli/commands/txn.py:abort": "the options of a command",
    "cli/commands/user.py:create": "the options of a command",
    "client/aio/raw.py:PartitionWriter.__init__": "public",
    "broker/coordinators/shard_runtime.py:ShardRuntime.__init__": "its collaborators, by keyword",
    "replication/leader.py:Leader.__init__": "the state that a leader starts from, by keyword",
    "quorum/raft.py:Raft": "one state machine: each event and its effects in one place, as in etcd/raft",
    "mirror_protocol/machine.py:MirrorMachine": "one state machine",
    "broker/config.py:BrokerConfig": "a field for each setting",
    "client/aio/admin.py:Admin": "public: a method for each request, and no state that they share",
}
"""What is larger than the limits, and why."""


JVM_ACCESS = SOURCE / "spark" / "environment"
OWN_JVM = SOURCE / "verify" / "clients" / "java.py"
"""Another JVM than Spark's, without internals of pyspark."""
JVM_NAMES = re.compile("_j[a-z]+[A-Za-z0-9_]*|_gateway|java_import|launch_gateway|(py4j|pyspark)\\.java_gateway")
"""Private attributes by which PySpark's objects lead into the JVM (``_jvm``, ``_jdf``), and what makes a connection."""


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
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno > CLASS_LINES_MAX or not _is_cohesive(node):
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


_CHANGES = (
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "pop",
    "popitem",
    "popleft",
    "remove",
    "update",
)


def _is_cohesive(node: ast.ClassDef) -> bool:
    """Whether the methods of a class with many belong together: those that use the same state that changes, or call
    each other, are a group, and there is one group of three or more (LCOM4, without what never changes)."""
    methods = [
        each
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name != "__init__"
    ]
    if len(methods) < COHESIVE_ABOVE:
        return True
    names = {each.name for each in methods}
    shared = names.union(*(_changed(each) for each in methods))
    groups: list[tuple[set[str], set[str]]] = []
    for method in methods:
        group, uses = {method.name}, {method.name} | (_attributes(method) & shared)
        for other, used in [each for each in groups if not uses.isdisjoint(each[1])]:
            groups.remove((other, used))
            group, uses = group | other, uses | used
        groups.append((group, uses))
    return sum(len(group) >= 3 for group, _uses in groups) <= 1


def _attributes(tree: ast.AST) -> set[str]:
    """The names of the attributes of ``self`` in it."""
    return {each.attr for each in ast.walk(tree) if _is_own(each)}  # type: ignore[attr-defined]


def _changed(method: ast.AST) -> set[str]:
    """Attributes that a method assigns, or whose contents it changes."""
    found: set[str] = set()
    for each in ast.walk(method):
        match each:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                found |= _attributes(each)
            case ast.Subscript(value=target, ctx=ast.Store() | ast.Del()) if _is_own(target):
                found.add(target.attr)  # type: ignore[attr-defined]
            case ast.Call(func=ast.Attribute(value=target, attr=name)) if name in _CHANGES and _is_own(target):
                found.add(target.attr)  # type: ignore[attr-defined]
    return found


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def test_a_class_that_is_two_has_two_groups_of_methods() -> None:
    def tree(*bodies: str) -> ast.ClassDef:
        lines = [f"    def m{number}(self):\n        {body}" for number, body in enumerate(bodies)]
        (node,) = ast.parse("class C:\n" + "\n".join(lines)).body
        assert isinstance(node, ast.ClassDef)
        return node

    one, other = ["self.a = self.clock"] * 12, ["self.b.append(self.clock)"] * 12
    assert not _is_cohesive(tree(*one, *other))
    assert _is_cohesive(tree(*one, *other, "self.m0() or self.m20()"))
    assert _is_cohesive(tree(*one, *["return self.clock"] * 12))


def test_one_package_reaches_into_the_jvm_of_spark() -> None:
    found = [
        f"{path.relative_to(SOURCE).as_posix()}:{name}"
        for path, tree in modules().items()
        if not path.is_relative_to(JVM_ACCESS) and path != OWN_JVM
        for name in _jvm_names(tree)
    ]
    assert found == [], "spark/environment has the functions for it, or gets another one"


def test_each_access_to_the_jvm_is_found() -> None:
    own = "self._joins = self._job"
    assert list(_jvm_names(ast.parse(own))) == []
    for code in (
        "frame._jdf.queryExecution()",
        "self._spark._jvm",
        "context._gateway",
        "hasattr(spark, '_jsparkSession')",
        "SparkConf(_jconf=conf)",
        "from py4j.java_gateway import JavaObject",
        "from pyspark import java_gateway",
        "import py4j.java_gateway",
    ):
        assert list(_jvm_names(ast.parse(code))), code


def test_text_files_are_read_and_written_in_an_encoding_that_no_locale_decides() -> None:
    assert list(_locale_decides(ast.parse("path.read_text(); open(x); path.open('a'); os.fdopen(3, 'w')"))) == [1] * 4
    assert not list(_locale_decides(ast.parse("open(x, 'rb'); disk.open(x); open(x, 'w', encoding='ascii')")))
    places = [f"{path}:{line}" for path, tree in modules().items() for line in _locale_decides(tree)]
    assert not places, "encoding= is missing"


def _locale_decides(tree: ast.AST) -> Iterator[int]:
    """Lines with a file opened as text without its encoding."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        words = [word.value for word in ast.walk(node) if isinstance(word, ast.Constant)]
        modes = [word for word in words if isinstance(word, str) and re.fullmatch("[rwax][bt+]*", word)]
        is_binary = any("b" in mode for mode in modes)
        # ``open`` of a path has a mode, or is one of other objects.
        opens = name == "fdopen" or (name == "open" and (bool(modes) or isinstance(node.func, ast.Name)))
        if name in ("read_text", "write_text") or (opens and not is_binary):
            yield node.lineno


def test_the_project_contains_text_only() -> None:
    # Packages and other binaries are used, and not committed: nobody can read what they do.
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TESTS.parent, capture_output=True, check=True, text=True)
    paths = [TESTS.parent / name for name in listed.stdout.split("\0") if name]
    assert len(paths) > 1_000
    binary = [path.name for path in paths if path.is_file() and not _is_text(path.read_bytes())]
    assert binary == []


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def test_nothing_that_tests_run_thaws_what_collections_leave_alone() -> None:
    # One thaw, and each later collection of a process of the tests looks through the modules of all of them: a second.
    thaws = "gc.un" + "freeze()"
    found = [
        path.relative_to(TESTS.parent).as_posix()
        for folder in (SOURCE, TESTS)
        for path in sorted(folder.rglob("*.py"))
        if thaws in path.read_text() and path != SOURCE / "cli" / "start" / "garbage.py"
    ]
    assert found == [], "only a broker's own process may, which is started for it"


def _jvm_names(tree: ast.AST) -> Iterator[str]:
    """Those that a module takes from other objects, or imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self")):
                names = []
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.Constant(value=str(name)):
                names = [name]
            case ast.Import(names=imported):
                names = [each.name for each in imported]
            case ast.ImportFrom(module=str(module), names=imported):
                names = [module, *(name for each in imported for name in (each.name, f"{module}.{each.name}"))]
            case _:
                names = []
        yield from filter(JVM_NAMES.fullmatch, names)


def _allowed(name: str) -> int:
    return REMAINDER.get(name, 2 if name in DRIVERS else 1)
