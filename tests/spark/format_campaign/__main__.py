"""``python -m tests.spark.format_campaign --kills 300 --seed 1``: exit code 0 where nothing is wrong."""

from __future__ import annotations

import sys

from tests.spark.campaign.command import run_campaign
from tests.spark.format_campaign.conductor import FormatCampaign

if __name__ == "__main__":
    sys.exit(
        run_campaign(
            "format-campaign",
            __doc__,
            lambda theatre, folder, seed, guarantee: FormatCampaign(theatre, folder, seed=seed, guarantee=guarantee),
        )
    )
