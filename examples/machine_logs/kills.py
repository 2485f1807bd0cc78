"""Write logs and ingest them; kill the ingester with -9 at random moments until all lines are written.

Prints what happens, and writes the counts over time as JSON, for ``draw``.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from examples.program import fail, refuse_second_run, run

from einmal.client import Consumer

TOPIC = "machine-logs"
FOLDER = "build/examples/logs"
SERVERS = os.environ.get("KAFKA_BROKERS", "127.0.0.1:9092")
_LIMIT_S = 300
_INGEST = ("einmal", "ingest", "machine", "--file", str(Path(__file__).parent / "logs.toml"))


def start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=20_000, help="Of each of three services.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, required=True, help="File for the counts over time.")
    options = parser.parse_args()
    refuse_second_run(SERVERS, [TOPIC], [FOLDER])
    chance, began = random.Random(options.seed), time.monotonic()
    samples: list[tuple[float, int]] = []
    kills: list[float] = []
    total = 3 * options.lines
    writer = start("examples.machine_logs.write", FOLDER, f"--lines={options.lines}")
    ingester = start(*_INGEST)
    settings = {"bootstrap.servers": SERVERS, "group.id": "look", "auto.offset.reset": "earliest"}
    try:
        with Consumer({**settings, "isolation.level": "read_committed"}) as consumer:
            consumer.subscribe([TOPIC])
            seen, before, due = 0, 0, began + 3
            while seen < total:
                if ingester.poll() is not None:
                    fail(f"the ingester has ended by itself, with status {ingester.poll()}; its own error is above.")
                if time.monotonic() - began > _LIMIT_S:
                    fail(f"{seen:,} of {total:,} lines are in the topic after {_LIMIT_S} s.")
                seen += len(consumer.poll(100))
                now = time.monotonic()
                samples.append((round(now - began, 2), seen))
                # On a slow machine, too, each ingester gets as far as its first lines.
                if now > due and seen > before and writer.poll() is None:
                    ingester.kill()
                    ingester.wait()
                    kills.append(round(now - began, 2))
                    print(f"{now - began:5.1f} s  kill -9: ingester; {seen:,} lines in the topic")
                    ingester = start(*_INGEST)
                    before, due = seen, now + chance.uniform(2, 4)
            # Whatever would come twice has come by then.
            until = time.monotonic() + 2
            while time.monotonic() < until:
                seen += len(consumer.poll(100))
        samples.append((round(time.monotonic() - began, 2), seen))
    finally:
        for process in (writer, ingester):
            process.kill()
            process.wait()
    options.log.write_text(json.dumps({"samples": samples, "kills": kills, "total": total}))
    print(f"{len(kills)} kills in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    run(main)
