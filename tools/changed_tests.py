"""List the test files that a change can affect, the nearest first, within a budget of seconds.

A test file is affected by a module that it imports, directly or through others, and by the conftest.py of its folders.
Its distance is the number of imports between. A test may also reach a module through a process, which no import shows:
``tests/log/test_producer_state.py`` mirrors ``einmal/log/producer_state.py`` and is nearer than any other, and
``tests/spark/test_source.py`` mirrors the package of ``einmal/spark/source/planner.py``. A file that is no module
affects the tests whose text has its name.

The budget counts what the files took in recorded runs; what does not fit is named on standard error.

Usage: python -m tools.changed_tests [--base REVISION] [--seconds SECONDS]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import grimp
from tests.suite.durations import Durations

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("einmal", "tests", "tools")
_CONFTEST: Final = 2
"""Further away than an import: most tests of a folder use little of what its conftest.py has."""
_COLLECTION_S: Final = 0.3
"""Time to collect the tests of each file, beside what they take."""

Importers = Callable[[str], Iterable[str]]


def main() -> int:
    parser = argparse.ArgumentParser(description="List the test files that a change can affect, the nearest first.")
    parser.add_argument("--base", default="HEAD", help="the revision that the working tree is compared with")
    parser.add_argument("--seconds", type=float, default=90.0, help="the budget, in seconds of recorded runs")
    arguments = parser.parse_args()
    changed = changed_files(arguments.base)
    tests = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py"))
    distances = distances_of(changed, tests, imports(), lambda file: (ROOT / file).read_text())
    chosen = within(distances, Durations.load(ROOT / "tests" / "durations.json"), arguments.seconds)
    rest = f"; {len(distances) - len(chosen)} more are affected" if len(distances) > len(chosen) else ""
    print(
        f"{len(changed)} files changed since {arguments.base}, {len(chosen)} test files chosen{rest}", file=sys.stderr
    )
    print("\n".join(chosen))
    return 0


def imports() -> Importers:
    """Which modules import a module."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    return lambda name: graph.find_modules_that_directly_import(name) if name in graph.modules else ()


def changed_files(base: str) -> list[str]:
    """Files that differ from a revision, and files that git does not know, from the root of the repository."""
    different = _git("diff", "--name-only", "--no-renames", base, "--")
    return sorted({*different, *_git("ls-files", "--others", "--exclude-standard")})


def distances_of(
    changed: Iterable[str], tests: Collection[str], importers: Importers, text_of: Callable[[str], str]
) -> dict[str, int]:
    """How far each affected test file is from the change. 0: it has changed itself, or mirrors what has."""
    distances: dict[str, int] = {}
    modules = {path: module_of(path) for path in changed}
    for path, module in modules.items():
        for test in tests:
            if (distance := _by_name(test, path, module, text_of)) is not None:
                distances[test] = min(distance, distances.get(test, distance))
    for distance, module in _levels({name for name in modules.values() if name}, importers):
        folder = module.replace(".", "/").removesuffix("conftest")
        for test in tests:
            if module_of(test) == module:
                distances[test] = min(distance, distances.get(test, distance))
            elif folder.endswith("/") and test.startswith(folder):
                distances[test] = min(distance + _CONFTEST, distances.get(test, distance + _CONFTEST))
    return distances


def _by_name(test: str, path: str, module: str | None, text_of: Callable[[str], str]) -> int | None:
    """The distance of a test file that shows by its name, or its text, that it tests a file; None: it shows nothing."""
    if module is None:
        return 1 if PurePosixPath(path).name in text_of(test) else None
    if test == path or mirrors(test, module):
        return 0
    return 1 if mirrors(test, module.rpartition(".")[0]) else None


def _levels(modules: Collection[str], importers: Importers) -> Iterator[tuple[int, str]]:
    """Each module that imports one of these, directly or not, with its distance; these have 0."""
    seen, level, distance = set(modules), sorted(modules), 0
    while level:
        yield from ((distance, module) for module in level)
        level = sorted({importer for module in level for importer in importers(module)} - seen)
        seen.update(level)
        distance += 1


def module_of(path: str) -> str | None:
    """The name of a Python file as a module; None: it is none of our packages."""
    parts = PurePosixPath(path.removeprefix("src/")).with_suffix("").parts
    if not path.endswith(".py") or parts[0] not in PACKAGES:
        return None
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def mirrors(test: str, module: str) -> bool:
    """Whether a test file has the module's name and position in the tree of tests."""
    package, *parts = module.split(".")
    if package == "tests" or len(parts) < 2:
        return False
    folder, name = PurePosixPath("tests", *parts[:-1]), PurePosixPath(test)
    return name.stem == f"test_{parts[-1]}" and (name.parent == folder or name.parent in folder.parents)


def within(distances: Mapping[str, int], durations: Durations, seconds: float) -> list[str]:
    """The nearest files that fit into the budget; of equally near ones the short ones first. Never none."""
    chosen: list[str] = []
    for file in sorted(distances, key=lambda file: (distances[file], durations.of(file), file)):
        needed = durations.of(file) + _COLLECTION_S
        if needed <= seconds or not chosen:
            seconds -= needed
            chosen.append(file)
    return chosen


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", ROOT, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
