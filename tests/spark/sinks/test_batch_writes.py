"""``write(df).format(...)`` into each sink: a version is written once, whatever the sink."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from einmal.spark import OptionError, PipelineRefused, Written, write
from einmal.testing.sinks.driving import rows_of
from tests.sinks.hooks import HOOKS, frame_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KINDS = [kind if kind in ("sqlite", "delta") else pytest.param(kind, marks=pytest.mark.long) for kind in HOOKS]
"""One of each family: databases of one file, lake tables."""


def written(spark: SparkSession, kind: str, location: Path, version: int, mark: str) -> Written:
    writer = write(frame_of(spark, rows_of(version, mark))).format(kind).options(**HOOKS[kind]().options(location))
    return writer.option("transactional.id", "daily").option("txnVersion", version).save()


@pytest.mark.representatives(1)
@pytest.mark.parametrize("kind", KINDS)
def test_version_that_is_written_again_is_there_once(kind: str, tmp_path: Path, spark: SparkSession) -> None:
    for version in (1, 2):
        assert written(spark, kind, tmp_path, version, "first") == Written(records=5, already_in=False)
        assert written(spark, kind, tmp_path, version, "again") == Written(records=5, already_in=True)
    with pytest.raises(PipelineRefused, match="comes after"):
        written(spark, kind, tmp_path, 1, "late")
    hooks = HOOKS[kind]()
    assert sorted(hooks.rows(tmp_path)) == rows_of(1, "first") + rows_of(2, "first")
    assert hooks.staged(tmp_path) == []
    assert [each.record and each.record.batch_id for each in hooks.sink(tmp_path).committed().values()] == [2]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("kind", KINDS)
def test_write_without_a_name_leaves_rows_and_no_record(kind: str, tmp_path: Path, spark: SparkSession) -> None:
    hooks = HOOKS[kind]()
    for mark in ("one", "two"):
        write(frame_of(spark, rows_of(0, mark))).format(kind).options(**hooks.options(tmp_path)).save()
    assert sorted(hooks.rows(tmp_path)) == sorted(rows_of(0, "one") + rows_of(0, "two"))
    assert dict(hooks.sink(tmp_path).committed()) == {}
    assert hooks.staged(tmp_path) == []


@pytest.mark.representatives(1)
@pytest.mark.parametrize("kind", KINDS)
def test_misspelt_option_is_refused_with_a_suggestion(kind: str, tmp_path: Path, spark: SparkSession) -> None:
    options = HOOKS[kind]().options(tmp_path)
    name, value = options.popitem()
    with pytest.raises(OptionError, match=f'did you mean "{name}"'):
        write(frame_of(spark, [])).format(kind).options(**options, **{f"{name}x": value}).save()
