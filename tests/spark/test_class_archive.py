"""Claims about the archive of Spark's classes: it fits what is installed, and a JVM never speaks of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

from einmal.spark.environment import class_archive
from einmal.spark.environment.java import classes_of, use_java
from einmal.spark.environment.spark_session import JVM_LOG


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # use_java sets it.
    monkeypatch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))


@pytest.fixture
def spark_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Spark's own jar, in a Spark that can be installed again."""
    jar = tmp_path / "pyspark" / "jars" / "spark-core_2.13-4.3.0.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"jar")
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    return jar


@pytest.mark.parametrize("vector_module", [True, False])
def test_the_classes_of_java_are_found_through_our_script(vector_module: bool) -> None:
    assert classes_of(use_java(vector_module=vector_module)).stat().st_size > 1_000_000


def test_another_installation_at_the_same_location_has_another_archive(spark_core: Path) -> None:
    use_java(vector_module=False)
    first = class_archive.archive()
    assert class_archive.archive() == first
    os.utime(spark_core, ns=(1, 1))
    installed_again = class_archive.archive()
    spark_core.write_bytes(b"another jar")
    os.utime(spark_core, ns=(1, 1))
    assert len({first, installed_again, class_archive.archive()}) == 3


def test_an_archive_of_another_java_at_the_same_location_is_not_used(
    spark_core: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    modules = tmp_path / "jdk" / "lib" / "modules"
    for file in (modules, tmp_path / "jdk" / "bin" / "java"):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    class_archive.archive().write_bytes(b"archive")
    assert class_archive.options()
    modules.write_bytes(b"17.0.16, later")
    assert class_archive.options() == []


def test_archives_of_what_was_installed_before_are_removed_and_no_others(spark_core: Path) -> None:
    use_java(vector_module=False)
    before = class_archive.archive()
    before.write_bytes(b"archive")
    elsewhere = before.with_name("spark-classes-0123456789abcdef-0123456789abcdef.jsa")
    elsewhere.write_bytes(b"archive")
    os.utime(spark_core, ns=(1, 1))
    class_archive.archive().write_bytes(b"archive")
    assert class_archive.build() == class_archive.archive()
    assert {*before.parent.glob("*.jsa")} == {class_archive.archive(), elsewhere}


@pytest.mark.parametrize("log", [(), JVM_LOG], ids=["as-java-does", "as-our-sessions-do"])
def test_a_jvm_logs_nothing_about_an_archive_that_does_not_fit(log: tuple[str, ...], tmp_path: Path) -> None:
    java = use_java(vector_module=False) / "bin" / "java"
    jar = tmp_path / "py4j.jar"
    shutil.copy(next(Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")), jar)

    def run(*options: str) -> tuple[str, str]:
        """A server that ends at once, because its port is no number."""
        command = [str(java), *options, "-cp", str(jar), "py4j.GatewayServer", "none"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        return ended.stdout, ended.stderr

    expected = run()
    run(f"-XX:ArchiveClassesAtExit={class_archive.archive()}")
    os.utime(jar, ns=(1, 1))
    loud = run(*JVM_LOG, f"-XX:SharedArchiveFile={class_archive.archive()}")
    assert "archive" in loud[1]
    assert run(*log, *class_archive.options()) == expected
