"""A pipeline from topic to topic: einmal's sink beside Spark's own Kafka connector.

``contenders`` run it, ``backlog`` measures throughput, ``steady_load`` latency.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

from einmal.bench.backlog import overhead, throughput
from einmal.bench.cases import Figure
from einmal.bench.contenders import CONNECTOR, Contenders
from einmal.bench.pipeline_cases import PipelineCases, trigger_seconds
from einmal.bench.steady_load import latency
from einmal.bench.workloads import USUAL, WORKLOADS


def pipeline(bootstrap: str, scale: float, cases: PipelineCases, say: Callable[[str], None]) -> Iterator[Figure]:
    """The figures, as they come. Raises BenchRefused."""
    with tempfile.TemporaryDirectory(prefix="einmal-bench-") as folder:
        say("starting Spark")
        with Contenders(bootstrap, cases.jars, folder, cases.master) as contenders:
            if cases.triggers:
                for trigger in cases.triggers:
                    yield from _at_trigger(contenders, trigger, scale, say)
                return
            if CONNECTOR not in contenders.names:
                say("no jars of Spark's own connector (--connector): it is left out")
            for name in cases.workloads or USUAL:
                yield from throughput(contenders, WORKLOADS[name], scale, say)
            if not cases.workloads:
                yield from latency(contenders, "now", {"processingTime": "0 seconds"}, max(3.0, 10 * scale), say)


def _at_trigger(contenders: Contenders, trigger: str, scale: float, say: Callable[[str], None]) -> Iterator[Figure]:
    length_s = trigger_seconds(trigger)
    yield from overhead(contenders, trigger, length_s, scale, say)
    seconds = max(10.0, 3 * length_s) * min(scale, 1.0)
    yield from latency(contenders, f"trigger {trigger}", {"processingTime": trigger}, seconds, say, length_s)
