"""Claims about what a Python worker keeps from task to task."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from einmal.client import PartitionWriter, RangeReader
from einmal.spark.environment import python_worker

CLIENT = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("use", "kind"),
    [(python_worker.range_reader, RangeReader), (python_worker.partition_writer, PartitionWriter)],
)
def test_the_same_settings_get_the_same_client_unless_it_has_failed(
    use: Callable[[Mapping[str, str]], AbstractContextManager[object]], kind: type[object]
) -> None:
    with use(CLIENT) as first:
        assert isinstance(first, kind)
        with use(CLIENT) as other:
            assert other is not first
    with use(CLIENT) as again:
        assert again is first
    with pytest.raises(KeyError), use(CLIENT) as again:
        raise KeyError
    with use(CLIENT) as fresh:
        assert fresh not in (first, other)
    with use(CLIENT | {"client.id": "another"}) as differing:
        assert differing is not fresh


@pytest.mark.parametrize("use", [python_worker.range_reader, python_worker.partition_writer])
def test_of_two_clients_with_the_same_settings_one_is_kept_and_the_other_is_closed(
    use: Callable[[Mapping[str, str]], AbstractContextManager[Any]],
) -> None:
    settings = CLIENT | {"client.id": "twice"}
    with use(settings) as outer, use(settings) as inner:
        threads = [_thread_of(outer), _thread_of(inner)]
    assert [thread.is_alive() for thread in threads] == [True, False]
    with use(settings) as again:
        assert again is outer


def _thread_of(client: RangeReader | PartitionWriter) -> threading.Thread:
    """In which its connections live."""
    return client._thread.call(lambda _: threading.current_thread())


def test_only_the_first_tasks_keep_what_they_leave_behind_for_ever() -> None:
    program = (
        "import gc\n"
        "from einmal.spark.environment.python_worker import settle\n"
        "kept = []\n"
        "for task in range(20):\n"
        "    left = [[] for _ in range(10_000)]\n"
        "    settle()\n"
        "    kept.append(gc.get_freeze_count())\n"
        "    del left\n"
        "print(kept[1] > 10_000, len(set(kept[10:])) == 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["True", "True"]
