"""Run shop, ingester and pipeline, and kill with -9 again and again, until the copy has caught up.

The ingester and the pipeline are processes of this program. The broker and both servers are killed and started again by
shell commands in the environment (RESTART_BROKER, RESTART_SHOP, RESTART_REPORTS), if they are there. Prints what
happens, and writes the rows over time as JSON, for ``draw``.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psycopg
from examples.program import fail, run
from examples.replicated_orders.check import rows
from examples.replicated_orders.databases import REPORTS, SHOP, WAYS_OUT, connect

_FILE = str(Path(__file__).with_name("replica.toml"))
_PROGRAMS = {
    "shop": ["examples.replicated_orders.shop"],
    "ingester": ["einmal", "ingest", "orders", "--file", _FILE],
    "pipeline": ["einmal", "run", _FILE],
}
_RESTARTS = {"broker": "RESTART_BROKER", "shop's server": "RESTART_SHOP", "reports' server": "RESTART_REPORTS"}
_COUNT = "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM order_items), (SELECT max(id) FROM orders)"
_LIMIT_S = 600


class Story:
    """The processes, and what both databases have meanwhile."""

    def __init__(self, folder: Path) -> None:
        """``folder``: of the processes' logs."""
        self._folder = folder
        self._began = time.monotonic()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.samples: list[tuple[float, int | None, int | None]] = []
        self.kills: list[tuple[float, str]] = []
        self._last = dict.fromkeys((SHOP, REPORTS), (0, 0))

    def now(self) -> float:
        return round(time.monotonic() - self._began, 2)

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", *_PROGRAMS[name]], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """Kill it with everything that it has started, and start it again."""
        if name in _RESTARTS:
            subprocess.run(os.environ[_RESTARTS[name]], shell=True, check=True, stdout=subprocess.DEVNULL)
        else:
            self._end(name)
            self.start(name)
        self.kills.append((self.now(), name))
        shop, reports = (self._last[url][0] for url in (SHOP, REPORTS))
        print(f"{self.now():5.1f} s  kill -9: {name}; {shop:,} rows in the shop, {reports:,} in the copy", flush=True)

    def _end(self, name: str) -> None:
        process = self._running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def look(self, seconds: float) -> None:
        """Count rows for a while, and start again what has ended because a server was gone."""
        until = time.monotonic() + seconds
        while True:
            shop, reports = _counted(SHOP), _counted(REPORTS)
            self.samples.append((self.now(), shop and shop[0], reports and reports[0]))
            self._last |= {url: found for url, found in ((SHOP, shop), (REPORTS, reports)) if found is not None}
            for name in [name for name, process in self._running.items() if process.poll() is not None]:
                print(f"{self.now():5.1f} s  {name} has ended, and is started again", flush=True)
                self._end(name)
                self.start(name)
            if time.monotonic() > until:
                return
            time.sleep(0.2)

    def last_order(self, url: str) -> int:
        return self._last[url][1]

    def stop_shop(self) -> None:
        process = self._running.pop("shop")
        process.terminate()
        process.wait()

    def close(self) -> None:
        for name in list(self._running):
            self._end(name)


def _counted(url: str) -> tuple[int, int] | None:
    """Rows of both tables, and the last order; None while the server is gone."""
    try:
        with connect(url) as connection:
            count, order = connection.execute(_COUNT).fetchone() or (0, 0)
            return count, order or 0
    except psycopg.OperationalError:
        return None


def _is_equal() -> bool:
    with suppress(psycopg.OperationalError):
        return rows(SHOP) == rows(REPORTS)
    return False


def play(story: Story, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    victims = ["ingester", "pipeline", *(name for name, command in _RESTARTS.items() if command in os.environ)]
    for name in _PROGRAMS:
        story.start(name)
    awaited = dict.fromkeys(victims, 0)
    for number in range(kills):
        if number % len(victims) == 0:
            chance.shuffle(victims)
        victim = victims[number % len(victims)]
        story.look(chance.uniform(1, 5))
        # A kill may hit the recovery from those of others. From its own, the copy recovers first.
        while story.last_order(REPORTS) <= awaited[victim] and story.now() < _LIMIT_S:
            story.look(0.5)
        story.kill(victim)
        awaited[victim] = story.last_order(SHOP)
    story.look(5)
    story.stop_shop()
    while not _is_equal():
        if story.now() > _LIMIT_S:
            fail(f"the copy has not caught up after {_LIMIT_S} s; the processes' logs are beside the file of --log.")
        story.look(1)
    story.look(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, required=True, help="File for the rows over time.")
    options = parser.parse_args()
    # Both servers must be there at the beginning, with their tables; later they may be gone for a while.
    rows(SHOP), rows(REPORTS)
    story = Story(options.log.parent)
    try:
        play(story, options.kills, options.seed)
    finally:
        story.close()
    options.log.write_text(json.dumps({"samples": story.samples, "kills": story.kills}))
    print(f"{len(story.kills)} kills in {story.now():.0f} s")


if __name__ == "__main__":
    run(main, WAYS_OUT)
