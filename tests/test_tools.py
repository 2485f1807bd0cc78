"""Claims about tools: parsing does not depend on what is collected, and a change is followed to its tests."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

from tools.changed_tests import distances_of, within
from tools.python_source import parse

from tests.suite.durations import Durations

SOURCE = Path(__file__).parent.parent / "src" / "einmal" / "quorum" / "raft.py"


class _Finalized:
    """In a cycle, so that the garbage collector ends it; parses, as the report of a task's lost exception does."""

    parsed = 0

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        ast.parse("a = b(c)")
        _Finalized.parsed += 1


def test_a_finalizer_that_parses_does_not_disturb_the_parser() -> None:
    thresholds = gc.get_threshold()
    text = SOURCE.read_text()
    gc.set_threshold(50)
    try:
        for _ in range(5):
            gc.collect()
            for _ in range(20):
                _Finalized()
            parse(text)
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert _Finalized.parsed == 100
    assert gc.isenabled()


# --- tools/changed_tests.py ------------------------------------------------------------------------------------------

TREE = {
    "tests/log/test_producer_state.py": "",
    "tests/log/test_recovery.py": "",
    "tests/cli/commands/test_topic.py": "",
    "tests/spark/test_source.py": "",
    "tests/spark/test_sink.py": "",
    "tests/interop/test_groups.py": "reads pom.xml",
}
IMPORTERS = {
    "einmal.log.producer_state": ["einmal.log.partition_log", "tests.log.test_producer_state"],
    "einmal.log.partition_log": ["tests.log.test_recovery", "einmal.broker.node"],
    "einmal.spark.source.planner": ["tests.spark.conftest"],
}


def distances(*changed: str) -> dict[str, int]:
    return distances_of(changed, TREE, lambda module: IMPORTERS.get(module, ()), TREE.__getitem__)


def test_a_test_is_as_far_as_there_are_imports_between_and_its_mirror_is_nearest() -> None:
    assert distances("src/einmal/log/producer_state.py") == {
        "tests/log/test_producer_state.py": 0,
        "tests/log/test_recovery.py": 2,
    }


def test_a_test_that_reaches_a_module_through_a_process_is_found_by_its_name() -> None:
    assert distances("src/einmal/cli/commands/topic.py") == {"tests/cli/commands/test_topic.py": 0}


def test_a_conftest_affects_its_folder_and_a_package_its_mirror() -> None:
    assert distances("src/einmal/spark/source/planner.py") == {
        "tests/spark/test_source.py": 1,
        "tests/spark/test_sink.py": 3,
    }


def test_a_changed_test_affects_itself_and_a_file_that_is_no_module_the_tests_that_name_it() -> None:
    assert distances("tests/log/test_recovery.py") == {"tests/log/test_recovery.py": 0}
    assert distances("tests/interop/kafka/pom.xml") == {"tests/interop/test_groups.py": 1}
    assert distances("src/einmal/nobody.py", "README.md") == {}


def test_the_nearest_tests_fit_into_the_budget_and_the_first_always_does() -> None:
    found = {"far": 3, "near and long": 1, "near": 1, "nearest": 0}
    durations = Durations({"far": 1.0, "near": 2.0, "near and long": 50.0, "nearest": 20.0})
    assert within(found, durations, 30) == ["nearest", "near", "far"]
    assert within(found, durations, 100) == ["nearest", "near", "near and long", "far"]
    assert within(found, durations, 1) == ["nearest"]
