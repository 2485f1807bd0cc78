"""Run shop, mirror and billing, kill the mirror with -9 again and again, and move the billing to the second cluster.

Prints what happens, and writes the counts over time as JSON, for ``draw``.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

from examples.program import fail, refuse_second_run, run
from examples.two_clusters.billing import GROUP
from examples.two_clusters.shop import BILLS, FIRST, ITEMS, ORDERS, SECOND

from einmal.client import Consumer

_LIMIT_S = 400
_MIRROR = Path(__file__).parent / "mirror.toml"
TOPICS = {"ordered": (FIRST, ORDERS), "copied": (SECOND, f"A.{ORDERS}"), "billed in A": (FIRST, BILLS),
          "billed in B": (SECOND, BILLS)}  # fmt: skip


class Story:
    """The processes, and how many records a reader of each topic sees."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.samples: list[tuple[float, ...]] = []
        self.events: list[tuple[float, str]] = []
        self._consumers = {name: _reader(*where) for name, where in TOPICS.items()}
        self._seen = dict.fromkeys(TOPICS, 0)

    def now(self) -> float:
        return round(time.monotonic() - self._began, 2)

    def tell(self, what: str) -> None:
        self.events.append((self.now(), what))
        print(f"{self.now():5.1f} s  {what}; " + ", ".join(f"{count:,} {name}" for name, count in self._seen.items()))

    def start(self, name: str, *command: str) -> None:
        self.running[name] = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL)

    def start_mirror(self) -> None:
        self.start("mirror", "einmal", "mirror", "A->B", "--file", str(_MIRROR))

    def end(self, name: str, *, kill: bool = False) -> None:
        process = self.running.pop(name)
        process.kill() if kill else process.terminate()
        process.wait(_LIMIT_S)

    def look(self, seconds: float) -> dict[str, int]:
        """Count for a while."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name, process in self.running.items():
                if process.poll() or (process.poll() == 0 and name != "shop"):
                    fail(f"the {name} has ended by itself, with status {process.poll()}; its own error is above.")
            for name, consumer in self._consumers.items():
                self._seen[name] += len(consumer.poll(25))
            self.samples.append((self.now(), *self._seen.values()))
        return self._seen

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()
        for name in list(self.running):
            self.end(name, kill=True)


def _reader(servers: str, topic: str) -> Consumer:
    settings = {"bootstrap.servers": servers, "group.id": f"look-{topic}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "metadata.max.age.ms": 500})
    consumer.subscribe([topic])
    return consumer


def play(story: Story, orders: int, seed: int) -> None:
    chance = random.Random(seed)
    story.start("shop", "examples.two_clusters.shop", f"--orders={orders}")
    story.start("billing", "examples.two_clusters.billing", FIRST)
    story.start_mirror()
    has_moved, before = False, 0
    while (seen := story.look(chance.uniform(2.5, 4)))["ordered"] < orders and story.now() < _LIMIT_S:
        if not has_moved and seen["ordered"] > orders / 2:
            has_moved = True
            story.end("billing")
            story.end("mirror", kill=True)
            command = ["mirror", "failover", "A->B", "--group", GROUP, "--file", str(_MIRROR)]
            failover = subprocess.run(
                [sys.executable, "-m", "einmal", *command], check=False, stdout=subprocess.DEVNULL
            )
            if failover.returncode:
                fail(f"the failover has ended with status {failover.returncode}; its own error is above.")
            story.start_mirror()
            story.start("billing", "examples.two_clusters.billing", SECOND, "--prefix=A.")
            story.tell("the billing has moved to the second cluster")
            continue
        # On a slow machine, too, each mirror gets as far as its first orders.
        if seen["copied"] > before:
            before = seen["copied"]
            story.end("mirror", kill=True)
            story.tell("kill -9: mirror")
            story.start_mirror()
    while min(seen["copied"], seen["billed in A"] + seen["billed in B"]) < orders and story.now() < _LIMIT_S:
        story.look(0.5)
    if story.now() >= _LIMIT_S:
        fail(f"not every order is billed after {_LIMIT_S} s.")
    story.look(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, required=True, help="File for the counts over time.")
    options = parser.parse_args()
    refuse_second_run(FIRST, [ORDERS, ITEMS, BILLS])
    refuse_second_run(SECOND, [BILLS])
    story = Story()
    try:
        play(story, options.orders, options.seed)
    finally:
        story.close()
    options.log.write_text(json.dumps({"samples": story.samples, "events": story.events}))
    kills = sum("kill" in what for _, what in story.events)
    print(f"{kills} kills in {story.now():.0f} s")


if __name__ == "__main__":
    run(main)
