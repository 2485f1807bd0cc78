from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark


def test_a_session_that_has_lost_the_lookup_of_sources_finds_ours_once_it_is_registered() -> None:
    """Spark looks once per JVM, and takes the death of the worker that looks for "there are none"."""
    program = [sys.executable, "-W", "ignore", "-m", "tests.spark.programs.lookup_killed"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(ended.stdout.splitlines()[-1]) == {"killed": False, "again": False, "registered": True}
