"""One workload on a real cluster: its processes, restarted when they end, and replaced while they still run."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from einmal.checker.history import Anomaly, History, OpOutcome
from einmal.verify.clients.processes import ClientLibrary, LibraryProcess
from einmal.workloads.bank import Bank
from einmal.workloads.ledger import Ledger
from einmal.workloads.process import ClientProcess, Role
from einmal.workloads.reading import NotFinished
from einmal.workloads.recorder import Recorder

_RESTART_S: Final = 0.5
_RIVAL_S: Final = 3.0
"""How long two processes of one role run."""
_END_S: Final = 20.0
FINISH_S: Final = 120.0
_READ_PER_S: Final = 5_000
"""Records, of a slow library: so much longer the last reading may take."""


@dataclass(slots=True)
class WorkloadRun:
    """``name``: as users know it. ``gaps``: why evidence is missing. ``errors``: of processes, by their text."""

    name: str
    workload: Bank | Ledger
    library: ClientLibrary
    seed: str
    gaps: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    _is_read_to_the_end: bool = False
    _tasks: dict[Role[ClientProcess], list[asyncio.Task[None]]] = field(default_factory=dict)
    _count: int = 0
    _is_stopped: bool = False

    @property
    def client(self) -> str:
        return f"{self.library.name} {self.library.version}"

    @property
    def mistake(self) -> str:
        return self.workload.mistake

    @property
    def topics(self) -> Mapping[str, int]:
        return self.workload.topics

    @property
    def groups(self) -> tuple[str, ...]:
        return self.workload.groups

    @property
    def recorder(self) -> Recorder:
        return self.workload.recorder

    def start(self) -> None:
        for role in self.workload.roles:
            self._tasks[role] = []
            self._start(role)

    def replace(self, chance: random.Random) -> str:
        """Start another process of a role beside the one that runs, which ends soon; return the role's name."""
        role = chance.choice(list(self._tasks))
        previous = list(self._tasks[role])
        self._start(role)
        for task in previous:
            asyncio.get_running_loop().call_later(_RIVAL_S, task.cancel)
        return role.name

    async def stop(self) -> None:
        """Let every process end, cancel those that do not."""
        self._is_stopped = True
        self.workload.stop()
        running = [task for tasks in self._tasks.values() for task in tasks]
        if running:
            await asyncio.wait(running, timeout=_END_S)
        await self.cancel()

    async def cancel(self) -> None:
        self._is_stopped = True
        running = [task for tasks in self._tasks.values() for task in tasks]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def finish(self) -> None:
        """Read everything to its end; what prevents it becomes a gap."""
        if not self.acknowledged:
            self.gaps.append(f"{self.name}: nothing was acknowledged{self._most_frequent_error()}")
            return
        if not self.mistake and not self._has_committed():
            self.gaps.append(f"{self.name}: no transaction was committed{self._most_frequent_error()}")
        seconds = FINISH_S + self.recorder.sent / _READ_PER_S
        try:
            await asyncio.wait_for(self.workload.finish(self._process("last")), seconds)
            self._is_read_to_the_end = True
        except NotFinished as error:
            self.gaps.append(f"{self.name}: the end could not be read {error}")
        except TimeoutError:
            self.gaps.append(f"{self.name}: the end could not be read within {seconds:.0f} s")
        except Exception as error:  # noqa: BLE001 - whatever a library raises here, there is no verdict
            self.gaps.append(f"{self.name}: the end could not be read: {_text(error)}")

    @property
    def acknowledged(self) -> int:
        return self.recorder.count(OpOutcome.OK)

    @property
    def history(self) -> History:
        return self.recorder.history(is_read_to_the_end=self._is_read_to_the_end)

    def _has_committed(self) -> bool:
        """Whether the verdict is about transactions at all: a cluster without a coordinator takes plain records."""
        ops = self.recorder.history(is_read_to_the_end=False).ops
        return any(op.transactional and op.sends and op.outcome is OpOutcome.OK for op in ops)

    def anomalies(self) -> list[Anomaly]:
        return self.workload.anomalies()

    def _start(self, role: Role[ClientProcess]) -> None:
        task = asyncio.create_task(_run(role, self._process(role.name)))
        self._tasks[role].append(task)
        task.add_done_callback(lambda done: self._ended(role, done))

    def _ended(self, role: Role[ClientProcess], task: asyncio.Task[None]) -> None:
        self._tasks[role].remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors[_text(error)] += 1
        asyncio.get_running_loop().call_later(_RESTART_S, self._ensure, role)

    def _ensure(self, role: Role[ClientProcess]) -> None:
        if not self._is_stopped and not self._tasks[role]:
            self._start(role)

    def _process(self, name: str) -> LibraryProcess:
        self._count += 1
        source = random.Random(f"{self.seed}/{self.name}/{name}#{self._count}")
        return LibraryProcess(name, self._count, source, self.library)

    def _most_frequent_error(self) -> str:
        return f": {self.errors.most_common(1)[0][0]}" if self.errors else ""


async def _run(role: Role[ClientProcess], process: ClientProcess) -> None:
    await role.run(process)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
