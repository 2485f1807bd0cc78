"""``python -m tests.spark.format_campaign --kills 300 --seed 1``: exit code 0 where nothing is wrong."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from tests.campaigns.command import parser, run_in_folder, with_keep
from tests.interop.cluster import einmal_cluster
from tests.spark.campaign.cluster import Theatre
from tests.spark.format_campaign.conductor import FormatCampaign, FormatReport
from tests.spark.standalone import StandaloneCluster


def main() -> int:
    options = with_keep(parser(__doc__, kills=300))
    options.add_argument("--local", action="store_true", help="no Spark cluster: drivers that are their own executors")
    options.add_argument("--guarantee", default="exactly_once_v2", help="at_least_once must come out red")
    asked = options.parse_args()

    def run(folder: Path) -> FormatReport:
        with contextlib.ExitStack() as stack:
            brokers = einmal_cluster(folder / "brokers")
            stack.callback(brokers.stop)
            brokers.start()
            spark = None if asked.local else stack.enter_context(StandaloneCluster(folder / "spark", cores=12))
            theatre = Theatre(folder, brokers, spark)
            theatre.prepare()
            return FormatCampaign(theatre, folder, seed=asked.seed, guarantee=asked.guarantee).run(asked.kills)

    return not run_in_folder("format-campaign", asked, run)


if __name__ == "__main__":
    sys.exit(main())
