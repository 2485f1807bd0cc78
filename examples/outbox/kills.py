"""Run the shop and both relays, and kill them with -9 at random moments, until the shop has placed its orders.

Prints what happens, and writes the counts over time as JSON, for ``draw``.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from examples.outbox.relay import servers
from examples.outbox.shop import TOPIC, connect
from examples.program import FRESH, fail, refuse_second_run, run

from einmal.client import Consumer

EVENTS = {"exactly once": TOPIC, "at least once": f"{TOPIC}-at-least-once"}
_LIMIT_S = 120


class Story:
    """The processes, and what readers of the topics and of the database see meanwhile."""

    def __init__(self, database: str, orders: int) -> None:
        self.path = database
        self._began = time.monotonic()
        self._programs = {
            "shop": ["shop", database, f"--orders={orders}"],
            "relay": ["relay", database],
            "at-least-once relay": ["relay", database, "--at-least-once"],
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.seen = dict.fromkeys(EVENTS, 0)
        self.samples: list[tuple[float, int, int, int]] = []
        self.kills: list[tuple[float, str]] = []

    def now(self) -> float:
        return round(time.monotonic() - self._began, 2)

    def start(self, name: str, *more: str) -> None:
        module, *arguments = self._programs[name]
        command = [sys.executable, "-m", f"examples.outbox.{module}", *arguments, *more]
        self.running[name] = subprocess.Popen(command)

    def kill(self, name: str, *more: str) -> None:
        """Kill a program, and start it again, with more arguments."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running.pop(name).wait()
        self.kills.append((self.now(), name))
        placed, once, repeated = self.samples[-1][1:] if self.samples else (0, 0, 0)
        print(
            f"{self.now():5.1f} s  kill -9: {name}; {placed:,} events in the outbox, {once:,} and {repeated:,} relayed"
        )
        self.start(name, *more)

    def look(self, consumer: Consumer, seconds: float) -> None:
        """Count what is visible, for a while."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for name, process in self.running.items():
                if process.poll():
                    fail(f"{name} has ended by itself, with status {process.poll()}; its own error is above.")
            for record in consumer.poll(50):
                self.seen[next(name for name, topic in EVENTS.items() if topic == record.topic)] += 1
            database = connect(self.path)
            (events,) = database.execute("SELECT count(*) FROM outbox").fetchone()
            database.close()
            self.samples.append((self.now(), events, *self.seen.values()))

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def play(story: Story, seed: int) -> None:
    chance = random.Random(seed)
    for name in ("shop", "relay", "at-least-once relay"):
        story.start(name)
    with Consumer(servers()) as consumer:
        partitions = [each for topic in EVENTS.values() for each in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while story.running["shop"].poll() is None and story.now() < _LIMIT_S:
            story.look(consumer, chance.uniform(0.5, 1.5))
            name = chance.choice(sorted(story.running))
            if story.running[name].poll() is None:
                story.kill(name)
        for name in ("relay", "at-least-once relay"):
            story.kill(name, "--ends")
        for name in ("shop", "relay", "at-least-once relay"):
            try:
                status = story.running[name].wait(_LIMIT_S)
            except subprocess.TimeoutExpired:
                fail(f"{name} has not ended after {_LIMIT_S} s.")
            if status:
                fail(f"{name} has ended with status {status}; its own error is above.")
        story.look(consumer, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("--orders", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, required=True, help="File for the counts over time.")
    options = parser.parse_args()
    if Path(options.database).exists():
        # A second run continues: shop and relays know their positions. They need the records of the first one.
        with Consumer(servers()) as consumer:
            partitions = [each for topic in EVENTS.values() for each in consumer.partitions_for_topic(topic)]
            if consumer.beginning_offsets(*partitions) == consumer.end_offsets(*partitions):
                fail(f"{options.database} is of an earlier run, and the topics are empty. {FRESH}")
    else:
        refuse_second_run(servers()["bootstrap.servers"], list(EVENTS.values()))
    story = Story(options.database, options.orders)
    try:
        play(story, options.seed)
    finally:
        story.end()
    options.log.write_text(json.dumps({"samples": story.samples, "kills": story.kills}))
    print(f"{len(story.kills)} kills in {story.now():.0f} s")


if __name__ == "__main__":
    run(main)
