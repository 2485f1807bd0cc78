"""What a destination answers before anything runs: its identity, its problems, its promises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from einmal.pipeline.reasons import Reason
from einmal.testing.targets.driving import RunUnderTest, frame_of, rows_of
from einmal.testing.targets.hooks import TargetHooks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DestinationTests(TargetHooks):
    def test_promises_are_known_without_asking_anybody(self, tmp_path: Path) -> None:
        destination = self.destination(tmp_path / "nothing here")
        promises = destination.promises()
        assert promises and all(isinstance(each, Reason) and each.text for each in promises)
        assert destination.table
        destination.close()

    def test_identity_stays_and_belongs_to_one_location(self, tmp_path: Path, spark: SparkSession) -> None:
        locations = [tmp_path / "one", tmp_path / "two"]
        identities = []
        for location in locations:
            location.mkdir()
            destination = self.destination(location)
            assert destination.problems("battery", frame_of(spark, rows_of(0)).schema) == []
            identities.append(destination.identity())
            destination.close()
            run = RunUnderTest(self, location, "battery", spark)
            run.start()
            run.write(0, rows_of(0))
            run.die()
        assert [self.destination(location).identity() for location in locations] == identities
        assert identities == [None, None] or len(set(identities)) == 2

    def test_problems_are_none_for_rows_that_were_written(self, tmp_path: Path, spark: SparkSession) -> None:
        schema = frame_of(spark, rows_of(0)).schema
        for batch_id in range(2):
            destination = self.destination(tmp_path)
            assert destination.problems("battery", schema) == []
            assert destination.problems("battery", None) == []
            destination.close()
            run = RunUnderTest(self, tmp_path, "battery", spark)
            run.start()
            run.write(batch_id, rows_of(batch_id))
            run.die()

    def test_problems_name_what_the_target_cannot_take(self, tmp_path: Path, spark: SparkSession) -> None:
        run = RunUnderTest(self, tmp_path, "battery", spark)
        run.start()
        run.write(0, rows_of(0))
        run.die()
        if self.wrong_schema is not None:
            destination = self.destination(tmp_path)
            problems = destination.problems("battery", spark.createDataFrame([], self.wrong_schema).schema)
            destination.close()
            assert problems and all(problem and hint for problem, hint in problems)

    def test_asking_before_the_first_run_finds_no_pipelines(self, tmp_path: Path) -> None:
        destination = self.destination(tmp_path)
        assert dict(destination.committed()) == {}
        destination.close()
