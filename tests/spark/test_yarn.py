"""Claims about pipelines on YARN: a few kills of containers; ``make yarn-kills`` has many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.apache_kafka import KafkaUnavailable
from tests.spark.yarn.campaign import run

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_pipelines_whose_containers_are_killed_lose_and_repeat_nothing(tmp_path: Path) -> None:
    try:
        assert run(tmp_path, kills=6, seed=1) == []
    except KafkaUnavailable as error:
        pytest.skip(str(error))
