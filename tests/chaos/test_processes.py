"""Claims about processes that are started, found and killed by pid."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from einmal.chaos.instances import Instances
from einmal.chaos.processes import command_of, kill, kill_group, kill_session, launch, parent_of, session_of
from einmal.chaos.reporting import ProcessEnded, ReportingProcess
from einmal.chaos.waiting import holds_within

_PATIENCE_S = 120.0
_ECHO = """
import json, sys
print("no message", flush=True)
print(json.dumps({"ready": 1}), flush=True)
for line in sys.stdin:
    print(json.dumps({"heard": json.loads(line)}), flush=True)
    if "end" in line:
        sys.exit("ended as ordered")
"""


def test_session_of_a_process_has_its_children_and_dies_as_a_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = launch(["sh", "-c", "sleep 1000 & echo started; wait"], log)
    assert holds_within(_PATIENCE_S, lambda: "started" in log.read_text())
    leader, child = session_of(process.pid)
    assert (leader, parent_of(child)) == (process.pid, process.pid)
    assert holds_within(_PATIENCE_S, lambda: command_of(child).startswith("sleep"))
    kill_session(process.pid)
    assert process.wait(_PATIENCE_S) == -signal.SIGKILL
    assert holds_within(_PATIENCE_S, lambda: not command_of(child))


def test_group_is_killed_with_its_leader(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = launch(["sh", "-c", "sleep 1000 & echo started; wait"], log)
    assert holds_within(_PATIENCE_S, lambda: "started" in log.read_text())
    (child,) = (pid for pid in session_of(process.pid) if pid != process.pid)
    kill_group(process)
    assert process.returncode == -signal.SIGKILL
    assert holds_within(_PATIENCE_S, lambda: not command_of(child))
    # Without effect on a process that is gone.
    kill_group(process)
    kill(process.pid)
    assert (command_of(process.pid), parent_of(process.pid)) == ("", 0)


def test_processes_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from einmal.chaos.processes import launch
print(launch(["sleep", "1000"], Path({str(tmp_path / "child")!r})).pid, flush=True)
time.sleep(1000)
"""
    log = tmp_path / "log"
    parent = launch([sys.executable, "-c", program], log)
    assert holds_within(_PATIENCE_S, lambda: log.read_text().endswith("\n"))
    child = int(log.read_text())
    kill(parent.pid)
    parent.wait(_PATIENCE_S)
    assert holds_within(_PATIENCE_S, lambda: not command_of(child))


def test_pid_0_which_means_the_callers_group_is_refused() -> None:
    with pytest.raises(AssertionError):
        kill(0)


def test_instances_restart_a_program_only_when_all_of_its_processes_have_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    instances = Instances(lambda *arguments: launch(["sleep", *(arguments or ("1000",))], log), log)
    assert instances.log() == ""
    first, second = instances.start(), instances.start("2000")
    kill_group(first)
    instances.ensure()
    assert instances.running == [second]
    kill_group(second)
    instances.ensure()
    (third,) = instances.running
    instances.kill()
    assert third.returncode == -signal.SIGKILL
    assert instances.running == []


def test_released_instances_are_managed_no_longer(tmp_path: Path) -> None:
    log = tmp_path / "log"
    instances = Instances(lambda: launch(["sleep", "1000"], log), log)
    process = instances.start()
    assert instances.release() == [process]
    instances.kill()
    assert process.poll() is None
    kill_group(process)


def test_reporting_process_obeys_and_its_other_output_is_logged(tmp_path: Path) -> None:
    process = ReportingProcess([sys.executable, "-c", _ECHO], tmp_path / "log")
    assert process.next_message(_PATIENCE_S) == {"ready": 1}
    process.order(number=1)
    process.order(number=2)
    wanted = {"heard": {"number": 2}}
    assert process.next_message(_PATIENCE_S, lambda message: message == wanted) == wanted
    assert not process.wait_for(lambda: False, 0.01)
    with pytest.raises(TimeoutError, match="no message in 0 s"):
        process.next_message(0.01)
    process.order(end=True)
    with pytest.raises(ProcessEnded, match="(?s)no message.*ended as ordered"):
        process.next_message(_PATIENCE_S, lambda message: "never" in message)
    process.order(number=3)
    process.process.wait(_PATIENCE_S)
    process.close()
