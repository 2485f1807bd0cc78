"""Executors that are cut off from their driver in mid-batch, some of them able to write to the broker meanwhile.

``make network-cuts`` is the whole of it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from einmal.local.namespaces import Namespaces, NamespacesMissing
from tests.spark.network_campaign.conductor import NetworkCampaign

pytestmark = [pytest.mark.spark, pytest.mark.long]

CUTS = 3
SEED = 7


def test_nothing_is_lost_or_written_twice_where_executors_are_cut_off_from_the_driver(tmp_path: Path) -> None:
    try:
        network = Namespaces(3)
    except NamespacesMissing as error:
        pytest.skip(str(error))
    with contextlib.closing(network):
        report = NetworkCampaign(network, tmp_path, seed=SEED).run(CUTS)
    print(report)
    assert report.wrong == []
    assert report.kills.total() == CUTS
