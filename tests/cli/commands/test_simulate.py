"""``einmal simulate``."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.running import invoke
from tests.simulation import mutants


def test_the_result_is_json_and_the_same_each_time_and_for_any_number_of_processes() -> None:
    outputs = [
        invoke(
            ["simulate", "--workload", workload, "--seeds", "3", "--start", "7", "--jobs", jobs, "--format", "json"],
        )
        for workload, jobs in (("pipeline", "1"), ("pipeline", "2"), ("broker", "1"))
    ]
    assert [output.exit_code for output in outputs] == [0, 0, 0]
    results = [json.loads(output.stdout) for output in outputs]
    assert results[0] == results[1]
    for result in results:
        assert (result["schedules"], result["anomalies"], result["failures"]) == (3, 0, [])
        assert result["virtual_seconds"] > 1
        assert len(result["trace_digest"]) == 64


def test_a_failing_seed_prints_the_line_that_runs_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.without_the_aborted_index(monkeypatch)
    output = invoke(["simulate", "--seeds", "4", "--jobs", "1"])
    assert output.exit_code == 1
    assert re.search(
        r"^ *seed (\d) failed; again: einmal simulate --workload broker --start \1 --seeds 1$", output.stderr, re.M
    )
    assert "G1a" in output.stderr
    assert "schedules        4" in output.stdout
