import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from einmal.bench.contenders import AT_LEAST_ONCE, CONNECTOR, EXACTLY_ONCE, failures_refused, ratios, turns
from einmal.bench.load import BenchRefused
from einmal.pipeline.errors import PipelineFailed


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), "Spark's JVM has ended"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (PySparkRuntimeError("[JAVA_GATEWAY_EXITED] no port"), "JAVA_GATEWAY_EXITED"),
        (PipelineFailed("TOPIC_AUTHORIZATION_FAILED (29): t"), "TOPIC_AUTHORIZATION_FAILED"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_of_spark_is_one_line_with_its_reason(error: Exception, reason: str) -> None:
    what = "at_least_once did not copy t"
    with pytest.raises(BenchRefused, match=f"{what}: .*{reason}") as refused, failures_refused(what):
        raise error
    assert "\n" not in str(refused.value)


def test_a_defect_is_not_reported_as_a_failure_of_spark() -> None:
    with pytest.raises(KeyError), failures_refused("exactly_once_v2 did not copy t"):
        raise KeyError("durationMs")


def test_ratios_compare_exactly_once_with_each_other_contender() -> None:
    found = list(ratios("1 KB", {EXACTLY_ONCE: 90.0, AT_LEAST_ONCE: 100.0, CONNECTOR: 60.0}))
    assert [(figure.name, figure.value) for figure in found] == [
        ("1 KB, exactly_once_v2 : at_least_once", 0.9),
        ("1 KB, exactly_once_v2 : spark's kafka connector", 1.5),
    ]


def test_contenders_take_turns_after_a_round_of_warm_up() -> None:
    said: list[str] = []
    found = list(turns(["a", "b"], "100 B", said.append))
    assert "".join(name for name, _ in found) == "baabbaab"
    assert [counts for _, counts in found] == [False] * 2 + [True] * 6
    assert said[0] == "100 B, round 0: b"


def test_at_a_long_trigger_there_is_one_round_that_counts() -> None:
    assert list(turns(["a", "b"], "30 seconds", lambda _text: None, 30.0)) == [("b", True), ("a", True)]
