from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import einmal.spark
from einmal.spark import SparkUnsupported
from einmal.spark.environment.spark_version import TESTED, problem_of


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5", "4.1.4", "4.1.0.dev1"])
def test_an_older_spark_is_refused_with_what_it_lacks_and_what_works(version: str) -> None:
    problem = problem_of(version) or ""
    assert version in problem
    assert "4.2 and 4.3" in problem
    assert "hint: pip install" in problem


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "4.10.1", pyspark.__version__])
def test_a_newer_spark_is_tried(version: str) -> None:
    assert problem_of(version) is None


def test_the_spark_of_these_tests_is_among_the_tested() -> None:
    assert pyspark.__version__.rpartition(".")[0] in TESTED


def test_every_entry_point_of_an_older_spark_ends_in_the_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    for name in ("session", "register", "write", "write_stream", "pipeline"):
        with pytest.raises(SparkUnsupported, match=r"found 4\.1\.4"):
            getattr(einmal.spark, name)


def test_an_older_spark_still_finds_the_other_data_sources(tmp_path: Path) -> None:
    """Spark imports every package ``pyspark_*``: one that fails would take all of them with it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import pyspark; pyspark.__version__ = '4.1.4'\n"
        "from pyspark_einmal import DefaultSource\n"
        "assert DefaultSource.name() == 'einmal'\n"
        "try: DefaultSource({})\n"
        "except ImportError as error: print(error)\n"
    )
    seen = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300, check=True)
    assert "found 4.1.4" in seen.stdout
