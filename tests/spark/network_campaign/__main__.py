"""``python -m tests.spark.network_campaign --kills 12 --seed 1``: exit code 0 where nothing is wrong. Needs root."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from einmal.local.namespaces import Namespaces, NamespacesMissing
from tests.campaigns.command import parser, run_in_folder, with_keep
from tests.spark.network_campaign.conductor import NetworkCampaign, NetworkReport

NODES = 3


def main() -> int:
    asked = with_keep(parser(__doc__, kills=12)).parse_args()

    def run(folder: Path) -> NetworkReport:
        with contextlib.closing(Namespaces(NODES)) as network:
            return NetworkCampaign(network, folder, seed=asked.seed).run(asked.kills)

    try:
        return not run_in_folder("network-campaign", asked, run)
    except NamespacesMissing as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
