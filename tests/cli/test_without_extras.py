"""Every command, and what every documented program imports, where packages of the extras are not installed: an error
that names the extra, or none at all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from einmal.cli.app import app
from einmal.extras import _MODULES, extra_of, install_command
from tests.suite.patience import patient

_ROOT: Final = Path(__file__).parents[2]
_BLOCK: Final = re.compile(r"^ *```python.*?\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_IMPORT: Final = re.compile(r"^((?:from einmal[\w.]* import (?:\([^)]*\)|[^(\n]+))|import einmal[\w.]*)$", re.MULTILINE)
_EXTRAS: Final = sorted({*_MODULES.values()})
_UNREACHABLE: Final = ["--brokers", "127.0.0.1:1", "-X", "bootstrap.timeout.ms=50"]
_FILES: Final = {
    "mirror.toml": 'clusters = ["A", "B"]\n'
    + "".join(f'{name}.bootstrap.servers = "127.0.0.1:1"\n{name}.bootstrap.timeout.ms = "50"\n' for name in "AB")
    + '["A->B"]\ntopics = "orders"\n',
    "pipeline.toml": 'transactional.id = "words"\ncheckpointLocation = "checkpoint"\n'
    'kafka.bootstrap.servers = "127.0.0.1:1"\nkafka.bootstrap.timeout.ms = "50"\n'
    '[sources.words]\nsubscribe = "words"\n[sinks.copies]\nfrom = "words"\ntopic = "copies"\n',
    "ingest.toml": "".join(
        f'[ingest.{name}]\nbootstrap.servers = "127.0.0.1:1"\nbootstrap.timeout.ms = "50"\ntopic = "lines"\n{more}\n'
        for name, more in {
            "files": 'type = "files"\npath = "*.log"',
            "table": 'type = "table"\nurl = "postgresql://127.0.0.1:1/x"\ntable = "t"\ncolumn = "id"',
            "changes": 'type = "postgresql"\nurl = "postgresql://127.0.0.1:1/x"\nslot = "s"\npublication = "p"',
        }.items()
    ),
    "sample.json": '{"a": 1}\n',
}
_COMMANDS: Final[dict[str, list[list[str]]]] = {
    "start": [["-X", "no.such.setting", "--port", "0"]],
    "run": [["pipeline.toml", "--available-now"]],
    "ingest": [[name, "--file", "ingest.toml", "--available-now"] for name in ("files", "table", "changes")],
    "explain": [["pipeline.toml"], ["mirror.toml"]],
    "demo": [["--input", "no-such-file"]],
    "bench": [["--help"], ["produce"]],
    "simulate": [["--seeds", "1", "--jobs", "1", "--workload", "pipeline"]],
    "mirror run": [["A->B"], ["A->B", "--available-now"], ["A->B", "--metrics", "0"], ["A->B", "--spark", "local"]],
    "mirror status": [["A->B"]],
    "mirror failover": [["A->B"], ["A->B", "--source-lost"]],
    "mirror explain": [["A->B"]],
    "pipeline status": [_UNREACHABLE],
    "pipeline adopt": [["words", "--checkpoint", "checkpoint", "--yes", *_UNREACHABLE]],
    "pipeline reset": [["words", "--yes", *_UNREACHABLE]],
    "pipeline infer": [["sample.json"]],
    "dlq list": [["letters", *_UNREACHABLE]],
    "dlq show": [["letters", *_UNREACHABLE]],
    "dlq replay": [["letters", "--yes", *_UNREACHABLE]],
    "topic create": [["t", *_UNREACHABLE]],
    "topic list": [_UNREACHABLE],
    "topic describe": [["t", *_UNREACHABLE]],
    "topic alter": [["t", "-p", "2", *_UNREACHABLE]],
    "cluster info": [_UNREACHABLE],
    "cluster health": [_UNREACHABLE],
    "cluster config": [_UNREACHABLE],
    "cluster loggers": [_UNREACHABLE],
    "log dump": [["no-such-file.log"]],
    "profile create": [["broken", "-b", ""]],
    "profile list": [[]],
    "profile show": [["missing"]],
    "profile use": [["missing"]],
    "profile delete": [["missing"]],
    "topic delete": [["t", "--yes", *_UNREACHABLE]],
    "topic produce": [["t", *_UNREACHABLE]],
    "topic consume": [["t", *_UNREACHABLE]],
    "group list": [_UNREACHABLE],
    "group describe": [["g", *_UNREACHABLE]],
    "group lag": [["g", *_UNREACHABLE]],
    "group seek": [["g", "--to", "end", *_UNREACHABLE]],
    "group delete": [["g", *_UNREACHABLE]],
    "quota list": [_UNREACHABLE],
    "quota set": [["producer_byte_rate=1", "--user", "u", *_UNREACHABLE]],
    "quota remove": [["--user", "u", *_UNREACHABLE]],
    "verify": [["--time", "1s", *_UNREACHABLE]],
    "chaos": [["--time", "1s", *_UNREACHABLE, "--", "true"]],
    "trace": [_UNREACHABLE],
    "top": [_UNREACHABLE],
    "txn doctor": [_UNREACHABLE],
    "txn show": [["t", *_UNREACHABLE]],
    "txn list": [_UNREACHABLE],
    "txn describe": [["t", *_UNREACHABLE]],
    "txn describe-producers": [["t", *_UNREACHABLE]],
    "txn find-hanging": [_UNREACHABLE],
    "txn abort": [["t", *_UNREACHABLE]],
    "acl list": [_UNREACHABLE],
    "acl add": [["User:u", "--topic", "t", "--consumer", *_UNREACHABLE]],
    "acl remove": [["User:u", "--yes", *_UNREACHABLE]],
    "user list": [_UNREACHABLE],
    "user create": [["u", *_UNREACHABLE]],
    "user delete": [["u", *_UNREACHABLE]],
}
_NEEDY: Final = ("run", "ingest", "explain", "demo", "bench", "mirror run", "pipeline infer", "dlq list")
"""Commands that use a package of an extra."""
WITHOUT: Final = '''
import contextlib, io, json, os, sys, traceback

class Without:
    """Finds what another finder does, but for what is not installed."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name in blocked or any(name.startswith(each + ".") for each in blocked):
            return None
        return self.finder.find_spec(name, path, target)

blocked, commands = json.loads(sys.argv[1])
sys.meta_path[:] = map(Without, sys.meta_path)
'''
PROGRAM: Final = (
    WITHOUT
    + """
from einmal.cli.app import main
for command in commands:
    said = io.StringIO()
    sys.argv, status = ["einmal", *command], 0
    sys.stdin = io.TextIOWrapper(io.BytesIO(b"a line"))
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            main()
        except SystemExit as end:
            status = end.code
        except BaseException:
            status = traceback.format_exc()
    print("@" + json.dumps([command, status, said.getvalue()]), flush=True)
"""
)
_IMPORTS: Final = (
    WITHOUT
    + """
for statement in commands:
    # Each in a process that has not imported what the others have.
    if os.fork() == 0:
        status = ""
        try:
            exec(statement)
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
        print("@" + json.dumps([statement, status]), flush=True)
        os._exit(0)
    os.wait()
"""
)


def leaves(command: Any, path: tuple[str, ...] = ()) -> list[str]:
    if not hasattr(command, "commands"):
        return [" ".join(path)]
    return [each for name, sub in command.commands.items() for each in leaves(sub, (*path, name))]


def ran(folder: Path, blocked: list[str], names: list[str]) -> list[tuple[list[str], int | str | None, str]]:
    """Each command's status, or traceback, and what it has said."""
    for name, text in _FILES.items():
        (folder / name).write_text(text)
    commands = [[*name.split(), *arguments] for name in names for arguments in _COMMANDS[name]]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([blocked, commands])],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=patient(120),
    )
    found = [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")]
    assert len(found) == len(commands), done.stderr[-2_000:]
    return [(command, status, said) for command, status, said in found]


def documented_imports() -> list[str]:
    """What the programs of the pages and the examples import from us."""
    pages = [_ROOT / "README.md", *_ROOT.glob("docs/**/*.md"), *_ROOT.glob("examples/**/*.md")]
    programs = [each for page in pages for each in _BLOCK.findall(page.read_text())]
    programs += [each.read_text() for each in _ROOT.glob("examples/**/*.py")]
    found: dict[str, None] = {}
    for program in programs:
        # Line by line: some blocks are parts of programs.
        for each in _IMPORT.findall(program):
            found[" ".join(each.split())] = None
    return sorted(found)


@pytest.mark.parametrize("extra", ["", *(pytest.param(each, marks=pytest.mark.long) for each in _EXTRAS)])
def test_what_a_documented_program_imports_is_there_or_names_its_extra(extra: str) -> None:
    statements = documented_imports()
    assert len(statements) > 20
    blocked = [module for module in _MODULES if _MODULES[module] != extra]
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS, json.dumps([blocked, statements])],
        capture_output=True,
        text=True,
        timeout=patient(120),
    )
    outcomes = dict(json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@"))
    assert list(outcomes) == statements, done.stderr[-2_000:]
    commands = [install_command(each) for each in _EXTRAS if each != extra]
    failed = {each: error for each, error in outcomes.items() if error}
    assert {each: error for each, error in failed.items() if not any(name in error for name in commands)} == {}


def test_every_command_is_tried() -> None:
    assert set(leaves(typer.main.get_command(app))) == _COMMANDS.keys()


def test_no_command_ends_in_a_traceback_without_any_extra(tmp_path: Path) -> None:
    found = ran(tmp_path, sorted(_MODULES), list(_COMMANDS))
    assert [(command, status) for command, status, _ in found if isinstance(status, str)] == []
    assert [command for command, _, said in found if "Traceback" in said] == []
    without = {" ".join(command): said for command, _, said in found if "is not installed" in said or "needs" in said}
    assert {"mirror run A->B --metrics 0", "mirror run A->B --spark local"} <= without.keys()
    assert all(install_command("spark") in without[each] for each in without if each.startswith("mirror run"))
    # A mirror needs no extra as long as nobody asks for what needs one.
    assert "mirror run A->B" not in without


@pytest.mark.slow
@pytest.mark.parametrize("extra", [_EXTRAS[0], *(pytest.param(each, marks=pytest.mark.long) for each in _EXTRAS[1:])])
def test_no_command_ends_in_a_traceback_with_one_extra_alone(extra: str, tmp_path: Path) -> None:
    blocked = [module for module in _MODULES if _MODULES[module] != extra]
    names = [name for name in _NEEDY if extra != "spark" or name not in ("run", "mirror run", "bench", "demo")]
    found = ran(tmp_path, blocked, names)
    assert [(command, status) for command, status, _ in found if isinstance(status, str)] == []


def test_submodules_belong_to_the_extra_of_their_package() -> None:
    assert extra_of("pyspark.sql.types") == extra_of("google.protobuf.message") == "spark"
    assert extra_of("google.crc32c") is None
    assert extra_of("einmal.no_such_module") is None
