"""Claims about the words of a report on a pipeline of whose output ``--output-sql`` leaves something out."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from einmal.verify.pipeline.mapping import Projection, identity, projection
from einmal.verify.pipeline.run import PipelineOptions, PipelineRun
from einmal.verify.run import VerifyOptions, VerifyRun

CONFIG = {"bootstrap.servers": "127.0.0.1:1"}
SQL = "SELECT value FROM output"


def options(folder: Path, counted: Projection | None) -> PipelineOptions:
    return PipelineOptions(
        command="run", input="in", output="out", mapping=identity(), log=folder / "log", projection=counted
    )


@pytest.mark.parametrize(
    ("counted", "tested"),
    [
        (None, "pipeline: run (mapping: identity)"),
        (projection(SQL), f"pipeline: run (mapping: identity; --output-sql: {SQL})"),
    ],
    ids=["all of it", "a part"],
)
def test_a_report_claims_no_more_than_was_compared(tmp_path: Path, counted: Projection | None, tested: str) -> None:
    pipeline = options(tmp_path, counted)
    assert PipelineRun(pipeline, CONFIG, "127.0.0.1:1", random.Random(1)).client == tested
    verify = VerifyOptions(
        client="einmal", workloads=(), control=None, pipeline=pipeline, seconds=1.0, seed=1, config=CONFIG
    )
    run = VerifyRun(verify, "a", None, None, lambda _line: None)
    definition, holds = run._claim()
    assert ("--output-sql leaves out" in definition, "--output-sql leaves out" in holds) == (counted is not None,) * 2
    assert ("keys" in run._not_compared()) == (counted is None)
    assert all(part in run._not_compared() for part in ("headers", "timestamps", "order"))


def test_of_a_table_the_order_of_versions_is_compared(tmp_path: Path) -> None:
    pipeline = replace(options(tmp_path, None), database="postgresql://localhost/a")
    verify = VerifyOptions(
        client="einmal", workloads=(), control=None, pipeline=pipeline, seconds=1.0, seed=1, config=CONFIG
    )
    run = VerifyRun(verify, "a", None, None, lambda _line: None)
    definition, _ = run._claim()
    assert "in the order" in definition and "order" not in run._not_compared()
