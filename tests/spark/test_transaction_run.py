"""What a user reads of a run's end, by the sink that it wrote to."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from einmal.commit_protocol.batch_plan import BATCH_WRITES
from einmal.commit_protocol.run_state import Query
from einmal.options.values import Options
from einmal.pipeline.errors import PipelineFenced
from einmal.sinks.sink import Opening
from einmal.sinks.sqlite import SQLiteSink
from einmal.spark.protocol.run import SinkBatch
from einmal.spark.protocol.transaction_run import NoAdditions, TransactionRun
from einmal.spark.sinks.kafka.commit_point import KafkaFrameCommitPoint


def test_a_run_that_a_database_has_fenced_does_not_hear_of_the_brokers_timeouts(tmp_path: Path) -> None:
    sink = SQLiteSink(Options({"path": str(tmp_path / "rows.sqlite"), "table": "rows"}))
    query = Query(
        transactional_id="rows", query_id=BATCH_WRITES, checkpoint="", is_fresh=False, stateful=False, version=1
    )
    older = TransactionRun(sink.commit_point(Opening(name="rows")), query, NoAdditions(), lambda _: None)
    older.start()
    with closing(sink.commit_point(Opening(name="rows"))) as newer:
        newer.acquire(None)
    with pytest.raises(PipelineFenced) as caught:
        # It is fenced before it looks at the rows.
        older.write(SinkBatch(1, cast(Any, None)))
    older.close()
    assert "use one per pipeline" in caught.value.hint
    assert "transaction.timeout.ms" not in caught.value.hint
    assert "transaction.timeout.ms" in KafkaFrameCommitPoint.fenced_hint
