"""``python -m tests.spark.campaign --kills 300 --seed 1``: exit code 0 where nothing is wrong."""

from __future__ import annotations

import sys

from tests.spark.campaign.command import run_campaign
from tests.spark.campaign.conductor import PipelinesCampaign

if __name__ == "__main__":
    sys.exit(
        run_campaign(
            "campaign",
            __doc__,
            lambda theatre, folder, seed, guarantee: PipelinesCampaign(theatre, folder, seed=seed, guarantee=guarantee),
        )
    )
