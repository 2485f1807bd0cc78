"""What a checkpoint is after a start that died, on files that are kept in memory: needs no Spark."""

from __future__ import annotations

import pytest

from einmal.spark.environment.hadoop_files import HadoopFiles
from einmal.spark.protocol.checkpoint import Checkpoint


class _Died(Exception):
    pass


class _InMemory(HadoopFiles):
    """Dies before its ``writes``-th file."""

    def __init__(self, files: dict[str, str], writes: int) -> None:
        self._files = files
        self._writes = writes
        self.uri = "memory:/"

    def read(self, name: str) -> str | None:
        return self._files.get(name)

    def names(self, directory: str) -> list[str]:
        return [name.removeprefix(f"{directory}/") for name in self._files if name.startswith(f"{directory}/")]

    def create(self, name: str, text: str) -> None:
        if not self._writes:
            raise _Died
        if name in self._files:
            raise FileExistsError(f"{name} exists already")
        self._writes -= 1
        self._files[name] = text


@pytest.mark.parametrize("writes", [0, 1])
def test_a_start_that_dies_while_it_makes_a_checkpoint_leaves_one_that_is_still_fresh(writes: int) -> None:
    files: dict[str, str] = {}
    with pytest.raises(_Died):
        Checkpoint(_InMemory(files, writes)).begin_at(({"t": {"0": 5}},), "v1\n{}")
    again = Checkpoint(_InMemory(files, 10))
    assert again.latest_batch_id() is None
    again.begin_at(({"t": {"0": 5}},), "v1\n{}")
    planned = again.offsets(0)
    assert planned is not None and planned.end == ({"t": {"0": 5}},)
    assert again.has_commit(0)
