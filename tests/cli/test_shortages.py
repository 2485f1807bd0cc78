"""A disk that is full, data that somebody deletes, and file descriptors that run out: reported in a sentence each."""

from __future__ import annotations

import asyncio
import re
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from einmal.types import ErrorCode
from tests.broker.nodes import Client, batch
from tests.cli.broker_process import BrokerProcess

pytestmark = [pytest.mark.system, pytest.mark.time_limit(90)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB of its own."""
    mount = tmp_path / "disk"
    mount.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", mount], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    yield mount
    subprocess.run(["umount", "--lazy", mount], check=True)


async def test_a_full_disk_loses_nothing_that_was_acknowledged_and_ends_in_a_sentence(small_disk: Path) -> None:
    data = small_disk / "data"
    acknowledged: list[bytes] = []
    topics: list[str] = ["t"]

    async def fill(port: int) -> list[ErrorCode]:
        async with Client.connect_to(port) as client:
            await client.create_topic("t", internal_segment_bytes="300000")
            errors: list[ErrorCode] = []
            while len(errors) < 20:
                value = b"%d " % len(acknowledged) + bytes(20_000)
                answer = await client.produce("t", batch(value))
                if answer.error_code is ErrorCode.none:
                    acknowledged.append(value)
                else:
                    errors.append(answer.error_code)
            (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free))
            assert await values_of(client) == acknowledged
            # The rest of a page is enough for the records of some.
            for number in range(60):
                name = f"late-{number}"
                topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
                made = (await client.call(19, 7, {"topics": [topic], "timeout": 2_000})).topics[0].error_code
                if made is not ErrorCode.none:
                    break
                topics.append(name)
            assert made is not ErrorCode.none
            return errors

    with BrokerProcess(data) as broker:
        broker.wait_until_ready()
        assert set(await fill(broker.port)) == {ErrorCode.kafka_storage_error}
        status, errors = broker.stop()
    assert status == 1, errors
    assert "Traceback" not in errors
    assert "error: stopped, but not everything could be written" in errors
    assert len(re.findall("t-0 cannot be written to, records are refused until it can", errors)) == 1
    enlarge(small_disk)
    with BrokerProcess(data) as broker:
        broker.wait_until_ready()
        async with Client.connect_to(broker.port) as client:
            assert await values_of(client) == acknowledged
            found = {topic.name for topic in (await client.call(3, 9, {"topics": None})).topics}
            # The last one may be in the metadata, and be refused because its partition could not be made.
            assert set(topics) <= found <= {*topics, f"late-{len(topics) - 1}"}
            assert (await client.produce("t", batch(b"again"))).error_code is ErrorCode.none
        assert broker.stop()[0] == 0


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)


async def values_of(client: Client) -> list[bytes]:
    from einmal.wire.record_batch import decode_records, iter_headers

    values: list[bytes] = []
    while records := bytes((await client.fetch("t", len(values))).records or b""):
        for position, header in iter_headers(records):
            values += [record.value or b"" for record in decode_records(records, position, header)]
    return values


@pytest.mark.long
def test_a_start_on_a_full_disk_ends_in_a_sentence(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(4 << 20)[: shutil.disk_usage(small_disk).free])
    with BrokerProcess(small_disk / "data") as broker:
        _output, errors = broker.process.communicate(timeout=180)
    assert broker.process.returncode == 1
    assert "Traceback" not in errors
    assert "No space left on device" in errors


async def test_a_data_directory_that_is_deleted_while_the_broker_runs_is_noticed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        broker.wait_until_ready()
        async with Client.connect_to(broker.port) as client:
            await client.create_topic("t")
            assert (await client.produce("t", batch(b"a"))).error_code is ErrorCode.none
            shutil.rmtree(tmp_path / "data")
            while (error := (await client.produce("t", batch(b"a"))).error_code) is ErrorCode.none:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert error in (ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower)
        _status, errors = broker.stop()
    assert "Traceback" not in errors
    assert "was deleted while the broker ran" in errors


_LONG: Final = [
    pytest.param(each, marks=pytest.mark.long) for each in (b"\xff\xfe", b"version=1\n", b"node.id=1\nnonsense")
]


@pytest.mark.parametrize("content", [b"", *_LONG])
def test_damaged_meta_properties_end_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.wait_until_ready()
        broker.stop()
    (tmp_path / "meta.properties").write_bytes(content)
    with BrokerProcess(tmp_path) as broker:
        _output, errors = broker.process.communicate(timeout=180)
    assert broker.process.returncode == 1
    assert "Traceback" not in errors
    assert "meta.properties" in errors and "Restore it from a backup" in errors


async def test_connections_beyond_the_file_descriptors_do_not_stop_the_others(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.wait_until_ready()
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (60, 60))
        with socket.create_connection(("127.0.0.1", broker.port)):
            opened = []
            for _ in range(100):
                connection = socket.socket()
                connection.settimeout(0.2)
                opened.append(connection)
                if connection.connect_ex(("127.0.0.1", broker.port)):
                    break
            before = cpu_seconds(broker.process.pid)
            await asyncio.sleep(1.0)
            # Nobody spins on the connection that cannot be accepted.
            assert cpu_seconds(broker.process.pid) - before < 0.5
            for connection in opened:
                connection.close()
        is_served = False
        while not is_served:
            # Until the broker has closed the others it resets what it cannot accept.
            with suppress(OSError, asyncio.IncompleteReadError):
                async with Client.connect_to(broker.port) as client:
                    await client.create_topic("t")
                    assert (await client.produce("t", batch(b"a"))).error_code is ErrorCode.none
                    is_served = True
        status, errors = broker.end(signal.SIGTERM)
    assert status == 0, errors
    assert "Traceback" not in errors
    assert errors.count("\n") < 100


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_the_soft_limit_of_file_descriptors_is_raised(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with BrokerProcess(tmp_path) as broker:
        broker.wait_until_ready()
        assert resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        broker.stop()
