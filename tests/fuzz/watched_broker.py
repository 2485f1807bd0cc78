"""``einmal start`` with a thread that notes where the broker's event loop is when it lags.

``python -m tests.fuzz.watched_broker STALLS start ...``: a line of JSON in STALLS for each stall, with the stacks that
were seen during it. What slows the thread itself down (a collection of garbage, a machine that does not schedule the
process) shows as its own delay.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from einmal.broker.node import Node
from einmal.cli.app import main

STALL_SECONDS: Final = 0.1
_BEAT_SECONDS: Final = 0.01
_LOOK_SECONDS: Final = 0.02
_FRAMES: Final = 8


class Watch:
    def __init__(self, report: Path) -> None:
        self._report = report
        self._beat_at = time.monotonic()
        self._loop_thread = threading.get_ident()
        self._samples: list[dict[str, Any]] = []
        self._collecting_since = 0.0
        self._collecting = 0.0

    def start(self) -> None:
        """In the thread of the running loop."""
        gc.callbacks.append(self._collected)
        self._beat()
        threading.Thread(target=self._look, daemon=True).start()

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)

    def _collected(self, phase: str, _info: object) -> None:
        now = time.monotonic()
        if phase == "start":
            self._collecting_since = now
        else:
            self._collecting += now - self._collecting_since

    def _look(self) -> None:
        looked_at = time.monotonic()
        while True:
            time.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            own_delay, looked_at = now - looked_at - _LOOK_SECONDS, now
            lag = now - self._beat_at
            if lag > STALL_SECONDS:
                stack = traceback.extract_stack(sys._current_frames()[self._loop_thread])
                frames = [f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in reversed(stack)]
                self._samples.append({"lag": lag, "own_delay": own_delay, "stack": frames[:_FRAMES]})
            elif self._samples:
                stall = {"at": time.time(), "collecting": self._collecting, "samples": self._samples}
                with self._report.open("a") as report:
                    report.write(json.dumps(stall) + "\n")
                self._samples = []
            if not self._samples:
                self._collecting = 0.0


def watched(start: Callable[[Node], Any], report: Path) -> Callable[[Node], Any]:
    async def started(node: Node) -> None:
        Watch(report).start()
        await start(node)

    return started


def longest_stall(report: Path) -> str:
    """In words: how long, and the innermost frames that were seen most."""
    stalls = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    if not stalls:
        return f"none above {STALL_SECONDS * 1000:.0f} ms"
    longest = max(stalls, key=lambda stall: stall["samples"][-1]["lag"])
    last = longest["samples"][-1]
    where = ", called by ".join(last["stack"][:3])
    delay = max(sample["own_delay"] for sample in longest["samples"])
    return (
        f"{len(stalls)} above {STALL_SECONDS * 1000:.0f} ms, the longest {last['lag'] * 1000:.0f} ms in {where} "
        f"({longest['collecting'] * 1000:.0f} ms of it garbage collection, the process itself was held up for "
        f"{delay * 1000:.0f} ms)"
    )


if __name__ == "__main__":
    setattr(Node, "start", watched(Node.start, Path(sys.argv.pop(1))))  # noqa: B010
    main()
