"""Claims about a session's settings from elsewhere: spark-submit and spark-defaults.conf precede einmal's defaults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from pyspark.sql import SparkSession

from einmal.pipeline.errors import PipelineRefused
from einmal.spark import session
from einmal.spark.environment.java import use_java
from tests.suite.patience import patient

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM: Final = """
import json
from einmal.spark import session
spark = session("given", config={"spark.einmal.test.code": "code", "spark.einmal.test.both": "code"})
names = ("code", "both", "file")
settings = {name: spark.conf.get(f"spark.einmal.test.{name}", None) for name in names}
settings["partitions"] = spark.conf.get("spark.sql.shuffle.partitions")
settings["provider"] = spark.conf.get("spark.sql.streaming.stateStore.providerClass").rpartition(".")[2]
settings["java"] = spark._jvm.java.lang.System.getProperty("einmal.test")
settings["sum"] = spark.range(10).selectExpr("sum(id)").first()[0]
print(json.dumps({"master": spark.sparkContext.master, **settings}))
spark.stop()
"""
GIVEN: Final = {
    "spark.master": "local[3]",
    "spark.sql.shuffle.partitions": "7",
    "spark.driver.extraJavaOptions": "-Deinmal.test=given -XX:TieredStopAtLevel=1",
    "spark.einmal.test.both": "given",
    "spark.einmal.test.file": "given",
}


def printed(command: list[str], folder: Path, **environment: str) -> Any:
    # As in a terminal: not with what this process's own session has set.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    done = subprocess.run(
        command,
        cwd=folder,
        env=inherited | {"JAVA_HOME": str(use_java()), "PYSPARK_PYTHON": sys.executable} | environment,
        capture_output=True,
        text=True,
        timeout=patient(300),
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


@pytest.mark.long
@pytest.mark.parametrize("way", ["spark-submit", "spark-defaults.conf"])
def test_a_program_has_the_settings_of_its_submission(tmp_path: Path, way: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    if way == "spark-submit":
        confs = [
            part for name, value in GIVEN.items() if name != "spark.master" for part in ("--conf", f"{name}={value}")
        ]
        submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
        found = printed([submit, "--master", GIVEN["spark.master"], *confs, "program.py"], tmp_path)
    else:
        text = "# Ours.\n" + "".join(f"{name}   {value} \n" for name, value in GIVEN.items())
        (tmp_path / "spark-defaults.conf").write_text(f"{text}not.sparks 1\n")
        found = printed([sys.executable, "program.py"], tmp_path, SPARK_CONF_DIR=str(tmp_path))
    assert found == {
        "master": "local[3]",
        "partitions": "7",
        "java": "given",
        "file": "given",
        # As in Spark, a program's own settings come first.
        "code": "code",
        "both": "code",
        # A default that nobody has overruled.
        "provider": "RocksDBStateStoreProvider",
        "sum": 45,
    }


@pytest.fixture
def unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_bytes(b"spark.x \xff")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


@pytest.mark.usefixtures("unreadable")
def test_defaults_that_cannot_be_read_are_refused_with_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests of this process may have a session.
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(PipelineRefused, match=r"spark-defaults\.conf cannot be read"):
        session("refused")


@pytest.mark.usefixtures("unreadable")
def test_a_session_that_runs_is_found_whatever_the_defaults_are_now(spark: SparkSession) -> None:
    assert session("found").sparkContext is spark.sparkContext
