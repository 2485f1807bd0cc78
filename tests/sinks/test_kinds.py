"""Claims about each sink with a type of its own, by its hooks: a new sink is tested here without being named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from einmal.options.values import OptionError
from einmal.sinks import kinds
from tests.sinks.hooks import HOOKS

_DESCRIBED = """\
import json, sys
sys.modules["pyspark"] = sys.modules["pyarrow"] = None
from einmal.sinks.kinds import new_sink

sink = new_sink(sys.argv[1], json.loads(sys.argv[2]))
assert sink.promises()
print(sink.committed())
"""


@pytest.mark.parametrize("kind", sorted(HOOKS))
def test_a_sink_describes_itself_where_neither_spark_nor_arrow_is_installed(kind: str, tmp_path: Path) -> None:
    """As ``einmal pipeline status`` does."""
    options = json.dumps(HOOKS[kind]().options(tmp_path))
    run = subprocess.run([sys.executable, "-c", _DESCRIBED, kind, options], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "{}\n"), run.stderr


def test_every_type_but_a_servers_has_hooks() -> None:
    assert set(kinds.KINDS) - set(HOOKS) == {"postgres"}


@pytest.mark.parametrize("kind", [*kinds._SPARKS_FILES, *kinds.KAFKA])
def test_no_sink_has_a_name_of_sparks_own(kind: str) -> None:
    assert kind not in kinds.KINDS


def test_spark_s_directories_of_files_are_refused_with_the_way_out() -> None:
    with pytest.raises(OptionError, match="no transaction.*\nhint: Spark's own sink.*or use parquet or delta"):
        kinds.sink_class("orc")


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_url_is_no_directory(kind: str) -> None:
    with pytest.raises(OptionError, match="not 's3://bucket/words'\nhint: name a directory.*mount"):
        kinds.new_sink(kind, {"path": "s3://bucket/words"})
