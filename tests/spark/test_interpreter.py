"""Claims about the Python that Spark's workers run on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from einmal.spark.environment.interpreter import worker_python
from tests.sinks.postgres.server import until
from tests.spark.topics import create
from tests.suite.shared import unique

PACKAGE = Path(pyspark.__file__).parent
ZIPS = [PACKAGE / "python/lib/pyspark.zip", PACKAGE / "python/lib/py4j-0.0-src.zip"]
JAR = PACKAGE / "jars/spark-core_2.13-4.3.0.jar"


def environment_of_a_worker(path: Sequence[Path | str]) -> dict[str, str]:
    """The interpreter, its PYTHONPATH and where it finds PySpark, for a worker that Spark starts with this path."""
    program = (
        "import json, os, pyspark, sys; print(json.dumps([sys.prefix, os.environ['PYTHONPATH'], pyspark.__file__]))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [worker_python(), "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return dict(zip(("prefix", "path", "pyspark"), json.loads(ended.stdout), strict=True))


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))


@pytest.mark.parametrize(
    "path", [[*ZIPS, JAR, Path("/mine")], [JAR, *ZIPS, JAR, Path("/mine")], [Path("/mine"), *ZIPS]]
)
def test_a_worker_takes_pyspark_from_where_it_is_installed(path: list[Path]) -> None:
    worker = environment_of_a_worker(path)
    assert worker == {"prefix": sys.prefix, "path": "/mine", "pyspark": pyspark.__file__}


@pytest.mark.parametrize("path", ["/mine:/other/pyspark.zip", "/a b:/*:/mine/spark-core_2.jar", "/a::/b", ""])
def test_a_path_without_the_zip_is_left_alone(path: str) -> None:
    assert environment_of_a_worker(path.split(":"))["path"] == path


def test_a_pyspark_that_is_not_installed_needs_the_zip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "spark" / "python" / "pyspark" / "__init__.py"))
    assert worker_python() == sys.executable


def test_a_pyspark_behind_a_symbolic_link_is_found_under_its_real_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = Path(pyspark.__file__).parent
    seen = tmp_path / "linked"
    seen.symlink_to(package.resolve().parent)
    monkeypatch.setattr(pyspark, "__file__", str(seen / "pyspark" / "__init__.py"))
    monkeypatch.setattr("site.getsitepackages", lambda: [str(seen)])
    for lib in (seen / "pyspark" / "python" / "lib", package.resolve() / "python" / "lib"):
        path = [lib / "pyspark.zip", lib / "py4j-0.0-src.zip", Path("/mine")]
        assert environment_of_a_worker(path)["path"] == "/mine"


@pytest.mark.spark
def test_the_process_that_plans_for_a_source_has_the_installed_pyspark(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic = unique("planned")
    create(bootstrap, topic)
    frame = spark.readStream.format("einmal").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    query = frame.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        until(planners_paths, "a process plans")
        paths = planners_paths()
    finally:
        query.stop()
    assert not any("pyspark.zip" in path for path in paths), paths


def planners_paths() -> list[str]:
    """PYTHONPATH of each process that plans for a source of this session."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "pyspark.sql.streaming.python_streaming_source_runner" in process.cmdline()[1:]:
                found.append(process.environ()["PYTHONPATH"])
    return found


@pytest.mark.spark
def test_workers_of_a_session_have_the_installed_pyspark(spark: SparkSession) -> None:
    def found_at(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert spark.sparkContext.parallelize([0], 1).map(found_at).collect() == [pyspark.__file__]
