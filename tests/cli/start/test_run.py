import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from platformdirs.macos import MacOS

import einmal
from einmal.cli.start import run as start
from einmal.cli.start.broker_settings import StartError
from einmal.compiled import execution
from tests.cli.broker_process import BrokerProcess
from tests.cli.running import invoke
from tests.ports import loopback_ports
from tests.suite import warm
from tests.suite.patience import patient

pytestmark = pytest.mark.system


def connects(port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(2)
        return connection.connect_ex(("127.0.0.1", port)) == 0


def test_it_prints_its_address_and_stops_cleanly_on_sigterm(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data").wait_until_ready() as broker:
        assert connects(broker.port)
        text = "\n".join(broker.lines)
        assert broker.lines[-1] == f"einmal is ready: bootstrap.servers=127.0.0.1:{broker.port}"
        assert str(tmp_path / "data") in text
        assert "page cache" in text
        assert f"export KAFKA_BROKERS=127.0.0.1:{broker.port}" in text
        status, errors = broker.stop()
        assert status == 0
        assert "Traceback" not in errors
        assert not connects(broker.port)


def test_json_is_one_document_on_one_line(tmp_path: Path) -> None:
    options = ("--format", "json", "-X", "log.flush.interval.messages=1")
    with BrokerProcess(tmp_path, *options).wait_until_ready() as broker:
        ready = json.loads(broker.lines[-1])
        assert len(broker.lines) == 1
        assert ready["event"] == "ready"
        assert ready["bootstrap_servers"] == f"127.0.0.1:{broker.port}"
        assert ready["flush"] == "every_write"
        assert len(ready["cluster_id"]) == 22
        assert ready["pid"] == broker.process.pid


def test_metrics_are_announced_and_log_lines_have_the_wanted_format(tmp_path: Path) -> None:
    options = ("-X", "metrics.listeners=0", "-X", "unheard.of=1", "--log-format", "text")
    with BrokerProcess(tmp_path, *options).wait_until_ready() as broker:
        (line,) = [line for line in broker.lines if line.startswith("  metrics ")]
        with urlopen(line.split()[-1], timeout=180) as answer:
            assert b"\nkafka_server_replicamanager_leadercount 0\n" in answer.read()
        status, errors = broker.stop()
    assert status == 0
    assert " WARNING unknown setting unheard.of is ignored" in errors
    assert '"event"' not in errors


def test_an_address_of_metrics_in_use_is_reported_with_its_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = ["einmal", "start", "--data-dir", str(tmp_path), "--port", "0", "-X", f"metrics.listeners={address}"]
        ended = warm.run(command, timeout=180)
    assert ended.returncode == 1
    assert ended.stderr == f"error: {address} is in use\nhint: choose another address in metrics.listeners\n"


def test_any_port_is_a_free_one_and_no_other(tmp_path: Path) -> None:
    result = invoke(["start", "--any-port", "--port", "9092", "--data-dir", str(tmp_path)])
    assert (result.exit_code, "--any-port is --port 0" in result.stderr) == (2, True)
    command = [sys.executable, "-m", "einmal", "start", "--any-port", "--data-dir", str(tmp_path), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        bootstrap = json.loads(process.stdout.readline())["bootstrap_servers"]
        process.terminate()
        assert process.wait(patient(30)) == 0
    assert bootstrap.partition(":")[2] not in ("0", "9092")


def test_interrupt_stops_it_cleanly_too(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path).wait_until_ready() as broker:
        assert broker.end(signal.SIGINT)[0] == 0


def test_a_port_in_use_is_reported_with_a_hint_and_no_traceback(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with BrokerProcess(tmp_path, port=port) as broker:
            output, errors = broker.process.communicate(timeout=180)
    assert broker.process.returncode == 1
    assert output == ""
    assert errors.splitlines() == [
        f"error: 127.0.0.1:{port} is in use",
        "hint: take another port with --port, or any free one with --port 0",
    ]


def test_a_controller_port_in_use_is_reported_as_the_controllers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listeners = f"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://{address}"
        ended = warm.run(["einmal", "start", "--data-dir", str(tmp_path), "-X", listeners], timeout=180)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: {address} is in use\nhint: choose another address for CONTROLLER://")


def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path).wait_until_ready() as first:
        with BrokerProcess(tmp_path) as second:
            _output, errors = second.process.communicate(timeout=180)
        assert second.process.returncode == 1
        assert errors.startswith(f"error: another broker uses {tmp_path}\nhint: ")
        assert connects(first.port)


def test_an_unwritable_data_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with BrokerProcess(tmp_path / "file" / "data") as broker:
        _output, errors = broker.process.communicate(timeout=180)
    assert broker.process.returncode == 1
    assert errors.startswith("error: cannot write to ")
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-X", "num.partitions=none"), "num.partitions is a whole number, not 'none'"),
        pytest.param(("-X", "num.partitions=0"), "num.partitions is at least 1, not 0", marks=pytest.mark.long),
        (("-X", "num.partitions"), "-X takes key=value, not 'num.partitions'"),
        pytest.param(
            ("-X", "auto.create.topics.enable=perhaps"),
            "auto.create.topics.enable is true or false, not 'perhaps'",
            marks=pytest.mark.long,
        ),
        (
            ("--config", "/nowhere/server.properties"),
            "cannot read /nowhere/server.properties: No such file or directory\n",
        ),
        (("-X", "listeners=SSL://:1"), "listener SSL: a listener with SSL or SASL_SSL has no certificate"),
        pytest.param(
            ("-X", "authorizer.class.name=A"),
            "authorizer.class.name=A is not supported, for no class of your own runs",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("-X", "log.dirs=/a,/b", "-X", "num.partitions=1"),
            "log.dirs=/a,/b: one folder is supported",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("-X", "controller.quorum.bootstrap.servers=a:1,b:1"),
            "controller.quorum.bootstrap.servers: name every",
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_invalid_setting_is_reported(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    ended = warm.run(["einmal", "start", "--data-dir", str(tmp_path), *options], timeout=180)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: {message}")
    assert "hint: " in ended.stderr


def test_an_unresolvable_host_is_reported(tmp_path: Path) -> None:
    command = ["einmal", "start", "--data-dir", str(tmp_path), "--host", "no..host", "--port", "0"]
    ended = warm.run(command, timeout=180)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: cannot listen on no..host:0")


def test_server_properties_are_read_and_unknown_keys_only_warned_of(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"# a comment\nbroker.id=7\nlog.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\n"
        "zookeeper.connect=localhost\nlog.retention.hours=1\n"
    )
    command = [sys.executable, "-m", "einmal", "start", "--config", str(properties), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.terminate()
        _output, errors = process.communicate(timeout=180)
    assert ready["data_dir"] == str(tmp_path / "data")
    assert "node.id=7" in (tmp_path / "data" / "meta.properties").read_text()
    assert "unknown setting zookeeper.connect is ignored" in errors
    assert sum("can act as a broker" in line for line in errors.splitlines()) == 1


def test_a_start_that_waits_for_its_controllers_logs_it_and_ends_with_a_signal(tmp_path: Path) -> None:
    voter = f"9@127.0.0.1:{loopback_ports(1)[0]}"
    with BrokerProcess(tmp_path, "-X", "process.roles=broker", "-X", f"controller.quorum.voters={voter}") as broker:
        assert broker.process.stderr is not None
        said = next(line for line in broker.process.stderr if "waits for" in line)
        assert f"controller.quorum.voters={voter} must be up" in said
        status, errors = broker.stop()
    assert status == 0
    assert "Traceback" not in errors


def test_a_controller_only_process_prints_its_address(tmp_path: Path) -> None:
    address = f"127.0.0.1:{loopback_ports(1)[0]}"
    settings = {
        "node.id": 9,
        "process.roles": "controller",
        "controller.quorum.voters": f"9@{address}",
        "listeners": f"CONTROLLER://{address}",
    }
    assignments = [part for key, value in settings.items() for part in ("-X", f"{key}={value}")]
    command = [sys.executable, "-m", "einmal", "start", "--data-dir", str(tmp_path), "--format", "json", *assignments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.terminate()
        _output, errors = process.communicate(timeout=180)
    assert ready["controller"] == address
    assert "bootstrap_servers" not in ready
    assert "Traceback" not in errors


def test_data_of_another_node_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path).wait_until_ready() as broker:
        broker.stop()
    with BrokerProcess(tmp_path, "-X", "node.id=2") as broker:
        _output, errors = broker.process.communicate(timeout=180)
    assert "is of node.id=1, this broker is node.id=2" in errors


def test_the_folder_of_a_cluster_is_not_taken_for_damaged(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"broker-{number}").mkdir()
    # They may be partitions of a topic of that name.
    start._refuse_cluster(tmp_path)
    (tmp_path / "broker-1.properties").touch()
    with pytest.raises(StartError, match="has the data of a cluster of 2 brokers") as refused:
        start._refuse_cluster(tmp_path)
    assert refused.value.hint.startswith("start all of them with --brokers 2, or one with --config ")


def test_version_prints_the_version() -> None:
    ended = subprocess.run([sys.executable, "-m", "einmal", "--version"], capture_output=True, text=True, timeout=180)
    assert ended.stdout == f"einmal {einmal.__version__} ({execution()})\n"


def test_help_names_the_commands_and_imports_no_broker() -> None:
    program = (
        "import sys\nfrom einmal.cli.app import app\n"
        "app(['--help'], standalone_mode=False)\n"
        "print([name for name in sys.modules if name.startswith(('einmal.broker', 'kio', 'rich', 'pyspark'))])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert "start" in ended.stdout
    assert ended.stdout.rstrip().endswith("[]"), ended.stdout


def test_data_of_former_versions_is_found_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert start._default_data_dir() == tmp_path / ".local" / "share" / "einmal"
    assert MacOS("einmal", appauthor=False).user_data_path == tmp_path / "Library" / "Application Support" / "einmal"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert start._default_data_dir() == tmp_path / "data" / "einmal"
    former = tmp_path / "Library" / "Application Support" / "einmal"
    former.mkdir(parents=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert start._default_data_dir() == former


def test_a_user_without_a_home_directory_needs_data_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda *_, **__: Path("~/.local/share/einmal"))
    with pytest.raises(StartError, match="no home directory") as caught:
        start._default_data_dir()
    assert "--data-dir" in caught.value.hint
