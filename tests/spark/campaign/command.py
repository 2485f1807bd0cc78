"""The command line of the campaigns with four pipelines: brokers, a Spark cluster, and whatever kills in between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from einmal.chaos.report import CampaignReport
from tests.campaigns.command import parser, run_in_folder, with_keep
from tests.interop.cluster import Cluster, apache_cluster, einmal_cluster
from tests.spark.campaign.cluster import Theatre
from tests.spark.standalone import StandaloneCluster

CLUSTERS: Final[dict[str, Callable[[Path], Cluster]]] = {"einmal": einmal_cluster, "apache": apache_cluster}


class RunsCampaign(Protocol):
    def run(self, kills: int) -> CampaignReport: ...


def run_campaign(name: str, doc: str | None, make: Callable[[Theatre, Path, int, str], RunsCampaign]) -> int:
    """The exit status. ``make``: gets the seed and the processing guarantee, too."""
    options = with_keep(parser(doc, kills=300))
    options.add_argument("--local", action="store_true", help="no Spark cluster: drivers that are their own executors")
    options.add_argument("--guarantee", default="exactly_once_v2", help="at_least_once must come out red")
    options.add_argument("--cluster", choices=sorted(CLUSTERS), default="einmal", help="whose three brokers")
    asked = options.parse_args()

    def run(folder: Path) -> CampaignReport:
        with contextlib.ExitStack() as stack:
            brokers = CLUSTERS[asked.cluster](folder / "brokers")
            stack.callback(brokers.stop)
            brokers.start()
            spark = None if asked.local else stack.enter_context(StandaloneCluster(folder / "spark", cores=12))
            theatre = Theatre(folder, brokers, spark)
            theatre.prepare()
            return make(theatre, folder, asked.seed, asked.guarantee).run(asked.kills)

    return not run_in_folder(name, asked, run)
