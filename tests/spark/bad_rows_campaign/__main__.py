"""``python -m tests.spark.bad_rows_campaign --rows 1000000 --kills 100``: exit code 0 where nothing is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.campaigns.command import parser, run_in_folder
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import running
from tests.spark.bad_rows_campaign.conductor import BadRowsCampaign, BadRowsReport


def main() -> int:
    options = parser(__doc__, kills=100)
    options.add_argument("--rows", type=int, default=1_000_000)
    asked = options.parse_args()

    def run(folder: Path) -> BadRowsReport:
        broker = EinmalBroker(folder / "broker")
        broker.start()
        try:
            with running() as server:
                campaign = BadRowsCampaign(broker.bootstrap, server, folder, rows=asked.rows, seed=asked.seed)
                return campaign.run(asked.kills)
        finally:
            broker.stop()

    return not run_in_folder("bad-rows", asked, run)


if __name__ == "__main__":
    sys.exit(main())
