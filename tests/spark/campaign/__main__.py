"""``python -m tests.spark.campaign --kills 300 --seed 1``: exit code 0 where nothing is wrong."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.interop.cluster import einmal_cluster
from tests.spark.campaign.cluster import Theatre
from tests.spark.campaign.conductor import Conductor
from tests.spark.campaign.table import in_words
from tests.spark.standalone import StandaloneCluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--local", action="store_true", help="no Spark cluster: drivers that are their own executors")
    parser.add_argument("--guarantee", default="exactly_once_v2", help="at_least_once must come out red")
    parser.add_argument("--keep", action="store_true", help="keep logs, data and checkpoints also of a clean run")
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="einmal-campaign-"))
    print(f"seed {asked.seed}, {asked.kills} kills, in {directory}", flush=True)
    brokers = einmal_cluster(directory / "brokers")
    with contextlib.ExitStack() as stack:
        stack.callback(brokers.stop)
        brokers.start()
        spark = None
        if not asked.local:
            (directory / "spark").mkdir()
            spark = stack.enter_context(StandaloneCluster(directory / "spark", cores=12))
        theatre = Theatre(directory, brokers, spark)
        theatre.prepare()
        report = Conductor(theatre, directory, seed=asked.seed, guarantee=asked.guarantee).run(asked.kills)
    print(in_words(report, asked.seed), flush=True)
    if report.wrong or asked.keep:
        print(f"kept: {directory}")
    else:
        shutil.rmtree(directory)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
