"""A sample of mutants of the core machines, each against the fast tests of its own package.

A mutant that no test notices is a survivor: a rule that could be lost unnoticed, or a change that means nothing. The
sample depends on the seed and on the source only.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from einmal.compiled import PURE
from tests.mutation.operators import Mutation, mutations
from tests.mutation.plugin import VARIABLE

ROOT: Final = Path(__file__).parent.parent.parent
SOURCE: Final = ROOT / "src"
_SLOWER: Final = 4
_GRACE_S: Final = 5
"""A mutant hangs when it takes so many times as much processor time as the tests do, and so much more. Time on the
clock counts on a busy machine for all the others as well."""
_STUCK_S: Final = 1_800.0
"""Tests that wait for what never comes take no processor time."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Modules without I/O, and the fast tests that are to notice their defects; paths with wildcards."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def sources(self) -> list[Path]:
        found = [path for pattern in self.modules for path in SOURCE.glob(f"einmal/{pattern}")]
        return sorted(path for path in found if path.name != "__init__.py")

    def test_files(self) -> list[str]:
        return sorted(str(path.relative_to(ROOT)) for pattern in self.tests for path in ROOT.glob(pattern))


_CLIENT_PARTS: Final = (
    "client/cores/metadata_cache.py",
    "client/cores/pacing.py",
    "client/cores/partition_reading.py",
    "client/cores/producer_batch.py",
    "client/cores/record_router.py",
)
MACHINES: Final = (
    Machine("transactions", ("transactions/*.py",), ("tests/transactions", "tests/kips")),
    Machine("groups", ("groups/**/*.py",), ("tests/groups",)),
    Machine("quorum", ("quorum/*.py",), ("tests/quorum",)),
    Machine("replication", ("replication/*.py",), ("tests/replication",)),
    Machine("metadata", ("metadata/*.py",), ("tests/metadata",)),
    Machine("commit_protocol", ("commit_protocol/*.py",), ("tests/commit_protocol",)),
    Machine("client", ("client/cores/*_core.py", *_CLIENT_PARTS), ("tests/client/test_*.py", "tests/client/cores")),
    Machine("producer_state", ("log/producer_state.py",), ("tests/log",)),
)


class Mutant(NamedTuple):
    machine: Machine
    path: Path
    mutation: Mutation

    def __str__(self) -> str:
        where = f"{self.path.relative_to(ROOT)}:{self.mutation.line}"
        return f"{where}  {self.mutation.operator}: {self.mutation.before}  ->  {self.mutation.after}"


class Fate(Enum):
    CAUGHT = "caught"
    HUNG = "hung"
    SURVIVED = "survived"


def all_mutants(machines: Sequence[Machine]) -> Iterator[Mutant]:
    for machine in machines:
        for path in machine.sources():
            for mutation in mutations(path.read_text()):
                yield Mutant(machine, path, mutation)


def sample(machines: Sequence[Machine], count: int, seed: int) -> list[Mutant]:
    """So many different mutants; all of them where there are fewer."""
    found = list(all_mutants(machines))
    return random.Random(seed).sample(found, min(count, len(found)))


def run_tests(machine: Machine, mutant: Mutant | None, cpu_s: int, directory: str) -> Fate:
    """The machine's fast tests, with a mutant or without, in so much processor time."""
    environment = {**os.environ, PURE: "1", "HYPOTHESIS_STORAGE_DIRECTORY": directory}
    if mutant is not None:
        module = ".".join(mutant.path.relative_to(SOURCE).with_suffix("").parts)
        environment[VARIABLE] = f"{module},{mutant.path},{mutant.mutation.number}"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "tests.mutation.plugin", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", "--hypothesis-seed=0"]
    command += ["-m", "not (slow or spark or interop or system or long)", *machine.test_files()]
    limited = ["/bin/sh", "-c", f'ulimit -t {cpu_s} && exec "$@"', "sh", *command]
    try:
        done = subprocess.run(limited, cwd=ROOT, env=environment, capture_output=True, timeout=_STUCK_S)
    except subprocess.TimeoutExpired:
        return Fate.HUNG
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Fate.HUNG
    return Fate.SURVIVED if done.returncode == 0 else Fate.CAUGHT


def cpu_limits(machines: Sequence[Machine], directory: str) -> dict[Machine, int]:
    """Seconds of processor time for each machine's tests. Exits where they fail without a mutant."""
    found = {}
    for machine in machines:
        before = _children_s()
        if run_tests(machine, None, int(_STUCK_S), directory) is not Fate.SURVIVED:
            sys.exit(f"the tests of {machine.name} fail without a mutant: pytest -x {' '.join(machine.test_files())}")
        found[machine] = _GRACE_S + int(_SLOWER * (_children_s() - before))
    return found


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fate_of(mutant: Mutant, limits: dict[Machine, int], directory: str) -> Fate:
    return run_tests(mutant.machine, mutant, limits[mutant.machine], directory)


def run(mutants: Sequence[Mutant], jobs: int) -> list[Mutant]:
    """Print what becomes of each mutant, then the score. Returns the survivors."""
    survivors, hung = [], 0
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(jobs) as executor:
        limits = cpu_limits(list(dict.fromkeys(mutant.machine for mutant in mutants)), directory)
        fates = executor.map(partial(fate_of, limits=limits, directory=directory), mutants)
        for number, (mutant, fate) in enumerate(zip(mutants, fates, strict=True), start=1):
            print(f"{number:4} {fate.value:8} {mutant}", flush=True)
            hung += fate is Fate.HUNG
            if fate is Fate.SURVIVED:
                survivors.append(mutant)
    caught = len(mutants) - len(survivors)
    print(f"\n{caught} of {len(mutants)} mutants caught ({caught / len(mutants):.0%}), {hung} of them by hanging")
    if survivors:
        print("survivors:", *survivors, sep="\n  ")
    return survivors
