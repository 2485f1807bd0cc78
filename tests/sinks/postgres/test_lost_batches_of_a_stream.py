"""A query whose database has lost batches that its checkpoint has: a standby that lagged was promoted."""

from __future__ import annotations

from pathlib import Path

import pytest

from einmal.pipeline.errors import PipelineRefused
from einmal.spark import write_stream
from tests.sinks.postgres.rig import NAME, Rig, replace, standby_of
from tests.sinks.postgres.server import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.long
def test_a_promoted_standby_that_lags_is_refused_by_the_checkpoint_of_a_new_process(own: Rig, tmp_path: Path) -> None:
    def run_until(batch_id: int) -> None:
        numbers = own.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
        writer = write_stream(numbers.selectExpr("value AS n")).format("postgres").options(**own.options())
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).option("transactional.id", NAME)
        query = writer.trigger(processingTime="50 milliseconds").start()
        try:
            until(lambda: (own.committed_batch() or 0) >= batch_id or not query.isActive, "batches are committed")
        finally:
            query.stop()
        query.awaitTermination()

    run_until(1)
    with standby_of(own) as standby:
        standby.catch_up()
        standby.pause()
        before = own.committed_batch()
        assert before is not None
        run_until(before + 2)
        replace(own.server, standby)
        standby.promote()
        with pytest.raises(PipelineRefused, match=f"but the last committed batch is {before}"):
            run_until(before + 9)
        assert standby.rows("SELECT count(*), max(n) FROM numbers", database=own.database) == [
            (5 * (before + 1), 5 * (before + 1) - 1)
        ]
