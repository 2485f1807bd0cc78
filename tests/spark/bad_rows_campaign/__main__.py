"""``python -m tests.spark.bad_rows_campaign --rows 1000000 --kills 100``: exit code 0 where nothing is wrong."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import running
from tests.spark.bad_rows_campaign.conductor import Conductor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="einmal-bad-rows-"))
    print(f"seed {asked.seed}, {asked.rows} rows, {asked.kills} kills, in {directory}", flush=True)
    broker = EinmalBroker(directory / "broker")
    broker.start()
    try:
        with running() as server:
            run = Conductor(broker.bootstrap, server, directory, rows=asked.rows, kills=asked.kills, seed=asked.seed)
            report = run.run()
    finally:
        broker.stop()
    print(
        f"seed {asked.seed}: {report.rows:,} rows, {report.dead_letters:,} dead letters, {report.replayed:,} replayed, "
        f"{report.kills.total()} kills in {report.lives} drivers and a replay, {report.seconds:.0f} s"
    )
    print(", ".join(f"{moment} {count}" for moment, count in sorted(report.kills.items())))
    for wrong in report.wrong:
        print(f"WRONG: {wrong}")
    if report.wrong:
        print(f"kept: {directory}")
    else:
        shutil.rmtree(directory)
        print("nothing is wrong: each good row once, each bad row one dead letter, and after the repair all rows once")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
