from pathlib import Path
from typing import Any

import pytest

from einmal.bench.load import BenchRefused
from einmal.bench.pipeline_cases import PipelineCases, trigger_seconds
from einmal.bench.workloads import WORKLOADS


@pytest.mark.parametrize(("trigger", "seconds"), [("100 milliseconds", 0.1), ("1 second", 1), ("2 minutes", 120)])
def test_a_trigger_is_spelt_as_for_spark(trigger: str, seconds: float) -> None:
    assert trigger_seconds(trigger) == pytest.approx(seconds)


@pytest.mark.parametrize("trigger", ["1s", "0 seconds", "soon", "1 fortnight"])
def test_another_trigger_is_refused(trigger: str) -> None:
    with pytest.raises(BenchRefused, match=r"invalid trigger .*\nhint: "):
        PipelineCases(triggers=("1 second", trigger))


def test_an_unknown_workload_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(BenchRefused, match="no workload '1 MB'\nhint: there are ") as refused:
        PipelineCases(workloads=("1 KB", "1 MB"))
    assert all(repr(name) in str(refused.value) for name in WORKLOADS)


def test_the_jars_of_the_connector_are_those_of_its_directory(tmp_path: Path) -> None:
    with pytest.raises(BenchRefused, match="no jars in "):
        PipelineCases(tmp_path)
    for name in ("b.jar", "a.jar", "pom.xml"):
        (tmp_path / name).touch()
    assert PipelineCases(tmp_path).jars == [str(tmp_path / "a.jar"), str(tmp_path / "b.jar")]
    assert PipelineCases().jars == []


@pytest.mark.parametrize("others", [{"workloads": ("1 KB",)}, {"connector": Path()}])
def test_a_trigger_excludes_what_it_does_not_measure(others: dict[str, Any]) -> None:
    with pytest.raises(BenchRefused, match="--trigger excludes --workload and --connector"):
        PipelineCases(triggers=("1 second",), **others)
