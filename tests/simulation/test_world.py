"""Loop, network, disk and clock of the simulated world."""

from __future__ import annotations

import asyncio
import random
from pathlib import PurePosixPath

import pytest

from einmal.simulation.clock import EPOCH_MS, SimulatedClock
from einmal.simulation.disk import DiskFaults, SimulatedDisk
from einmal.simulation.loop import Host, SimulatedLoop, Stuck
from einmal.simulation.network import NetworkFaults, SimulatedNetwork
from einmal.simulation.trace import Trace

_DATA = PurePosixPath("/data")
_FILE = PurePosixPath("/data/file")


# --- loop ------------------------------------------------------------------------------------------------------


def test_time_is_virtual_and_timers_run_in_order() -> None:
    loop = SimulatedLoop()  # type: ignore[abstract]
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, loop.time()))

    async def main() -> None:
        await asyncio.gather(*(sleeper(name, seconds) for name, seconds in (("c", 3600), ("a", 1), ("b", 1))))

    loop.run_until_complete(main())
    assert seen == [("a", 1.0), ("b", 1.0), ("c", 3600.0)]


def test_time_limits_of_asyncio_are_virtual_too() -> None:
    async def main() -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(100)

    loop = SimulatedLoop()  # type: ignore[abstract]
    with pytest.raises(TimeoutError):
        loop.run_until_complete(main())
    assert loop.time() == 5.0


def test_a_world_in_which_nothing_can_happen_any_more_is_stuck() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        SimulatedLoop().run_until_complete(main())  # type: ignore[abstract]


def test_nothing_of_a_killed_host_runs_any_more() -> None:
    loop = SimulatedLoop()  # type: ignore[abstract]
    host = Host("victim")
    seen: list[str] = []

    async def victim() -> None:
        try:
            loop.call_later(2, seen.append, "timer")
            await asyncio.sleep(1)
            seen.append("woke")
        finally:
            seen.append("finally")

    async def main() -> None:
        task = loop.create_task(victim(), context=host.context)
        await asyncio.sleep(0.5)
        loop.kill(host)
        await asyncio.sleep(5)
        assert not task.done()

    loop.run_until_complete(main())
    assert seen == []


def test_a_paused_host_resumes_with_everything_that_became_ready() -> None:
    loop = SimulatedLoop()  # type: ignore[abstract]
    host = Host("sleeper")
    seen: list[tuple[str, float]] = []

    async def sleeper() -> None:
        for name in "ab":
            await asyncio.sleep(1)
            seen.append((name, loop.time()))

    async def main() -> None:
        task = loop.create_task(sleeper(), context=host.context)
        await asyncio.sleep(0.5)
        loop.pause(host)
        await asyncio.sleep(10)
        loop.resume(host)
        await task

    loop.run_until_complete(main())
    assert seen == [("a", 10.5), ("b", 11.5)]


def test_clocks_are_skewed_and_drift_but_the_monotonic_one_does_not_jump() -> None:
    loop = SimulatedLoop()  # type: ignore[abstract]
    clock = SimulatedClock(loop, skew_ms=-100, drift=0.01, boot_ms=7)

    async def main() -> None:
        await asyncio.sleep(10)

    loop.run_until_complete(main())
    assert clock.now() == (EPOCH_MS + 10_100 - 100, 10_107)
    clock.jump(-60_000)
    assert clock.now() == (EPOCH_MS + 10_100 - 60_100, 10_107)


# --- network ---------------------------------------------------------------------------------------------------


class _Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.lost: list[Exception | None] = []
        self.pauses = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def pause_writing(self) -> None:
        self.pauses += 1

    def resume_writing(self) -> None:
        self.pauses -= 1


class _World:
    def __init__(self, seed: int = 1, faults: NetworkFaults | None = None) -> None:
        self.loop = SimulatedLoop()  # type: ignore[abstract]
        self.trace = Trace(keep=True)
        self.network = SimulatedNetwork(self.loop, random.Random(seed), self.trace, faults or NetworkFaults())
        self.server, self.client = Host("server"), Host("client")
        self.accepted: list[_Recorder] = []

    def accept(self) -> _Recorder:
        self.accepted.append(_Recorder())
        return self.accepted[-1]

    async def connect(self) -> tuple[asyncio.Transport, _Recorder]:
        if not self.accepted:
            await self.network.of(self.server).listen(self.accept, "server", 9092)
        transport, protocol = await self.network.of(self.client).connect(_Recorder, "server", 9092)
        assert isinstance(protocol, _Recorder)
        return transport, protocol


def test_bytes_of_a_connection_arrive_in_order_however_they_are_cut_and_delayed() -> None:
    world = _World(faults=NetworkFaults(spike=0.3, stall=0.2, split=0.5))

    async def main() -> None:
        transport, _ = await world.connect()
        for number in range(200):
            transport.write(b"%d," % number)
        await asyncio.sleep(200)

    world.loop.run_until_complete(main())
    assert world.accepted[0].data == b"".join(b"%d," % number for number in range(200))


def test_order_holds_over_a_cut_network() -> None:
    world = _World()

    async def main() -> None:
        transport, _ = await world.connect()
        world.network.cut("server", "client")
        world.network.cut("client", "server")
        for number in range(40):
            transport.write(b"%d," % number)
            await asyncio.sleep(0.03)
            if number == 30:
                assert not world.accepted[0].data
                world.network.heal()
        await asyncio.sleep(5)

    world.loop.run_until_complete(main())
    assert world.accepted[0].data == b"".join(b"%d," % number for number in range(40))


def test_connections_to_a_closed_port_are_refused() -> None:
    world = _World()

    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.network.of(world.client).connect(_Recorder, "server", 1)
        await world.connect()
        world.loop.kill(world.server)
        world.network.lose(world.server)
        with pytest.raises(ConnectionRefusedError):
            await world.network.of(world.client).connect(_Recorder, "server", 9092)

    world.loop.run_until_complete(main())


def test_a_killed_process_resets_its_peers_after_what_it_had_sent() -> None:
    world = _World()

    async def main() -> _Recorder:
        _, near = await world.connect()
        await asyncio.sleep(0.1)
        far = world.accepted[0]
        assert isinstance(far.transport, asyncio.Transport)
        far.transport.write(b"last words")
        world.loop.kill(world.server)
        world.network.lose(world.server)
        await asyncio.sleep(1)
        return near

    near = world.loop.run_until_complete(main())
    assert near.data == b"last words"
    assert isinstance(near.lost[0], ConnectionResetError)
    assert not world.accepted[0].lost


def test_a_sender_that_gives_up_leaves_a_late_request() -> None:
    world = _World(faults=NetworkFaults(give_up=1.0, late_max=60.0))

    async def main() -> None:
        transport, near = await world.connect()
        transport.write(b"late")
        await asyncio.sleep(0.01)
        assert isinstance(near.lost[0], ConnectionResetError)
        assert world.accepted[0].data == b""
        await asyncio.sleep(61)
        assert world.accepted[0].data == b"late"
        assert world.accepted[0].lost

    world.loop.run_until_complete(main())


def test_a_full_pipe_pauses_the_writer_until_it_drains() -> None:
    world = _World()

    async def main() -> None:
        transport, near = await world.connect()
        transport.write(bytes(1_000_000))
        assert near.pauses == 1
        await asyncio.sleep(1)
        assert near.pauses == 0

    world.loop.run_until_complete(main())


def test_a_reader_that_paused_gets_its_bytes_later() -> None:
    world = _World()

    async def main() -> None:
        transport, _ = await world.connect()
        await asyncio.sleep(0.1)
        far = world.accepted[0]
        assert isinstance(far.transport, asyncio.Transport)
        far.transport.pause_reading()
        transport.write(b"later")
        await asyncio.sleep(1)
        assert far.data == b""
        far.transport.resume_reading()
        await asyncio.sleep(0.01)
        assert far.data == b"later"

    world.loop.run_until_complete(main())


# --- disk ------------------------------------------------------------------------------------------------------


def _disk(seed: int, faults: DiskFaults | None = None) -> tuple[SimulatedLoop, SimulatedDisk, Host]:
    loop = SimulatedLoop()  # type: ignore[abstract]
    disk = SimulatedDisk(loop, random.Random(seed), Trace(), faults or DiskFaults())
    return loop, disk, Host("machine")


def test_a_power_cut_keeps_what_is_synced_and_no_more_than_was_written() -> None:
    outcomes: dict[bytes, None] = {}
    for seed in range(60):
        _, disk, host = _disk(seed)
        view = disk.view(host)
        view.make_directory(_DATA)
        view.sync_directory(PurePosixPath("/"))
        file = view.open(_FILE, create=True)
        view.sync_directory(_DATA)
        file.append(b"durable")
        file.sync()
        file.append(b"-perhaps")
        disk.cut_power()
        found = disk.view(Host("next")).read_file(_FILE)
        assert found.startswith(b"durable")
        tail = found[len(b"durable") :]
        assert b"-perhaps".startswith(tail.rstrip(b"\x00")) and len(tail) <= 8
        outcomes[found] = None
    assert b"durable" in outcomes and b"durable-perhaps" in outcomes and len(outcomes) > 4


def test_names_that_were_not_synced_may_be_lost_even_when_their_file_was() -> None:
    found: dict[bool, None] = {}
    for seed in range(20):
        _, disk, host = _disk(seed)
        view = disk.view(host)
        view.make_directory(_DATA)
        view.sync_directory(PurePosixPath("/"))
        view.open(_FILE, create=True).sync()
        disk.cut_power()
        found[disk.view(Host("next")).exists(_FILE)] = None
    assert set(found) == {True, False}


def test_a_truncation_that_was_not_synced_may_be_undone() -> None:
    found: dict[bytes, None] = {}
    for seed in range(40):
        _, disk, host = _disk(seed)
        view = disk.view(host)
        view.make_directory(_DATA)
        view.sync_directory(PurePosixPath("/"))
        file = view.open(_FILE, create=True)
        view.sync_directory(_DATA)
        file.append(b"0123456789")
        file.sync()
        file.truncate(4)
        file.append(b"ab")
        disk.cut_power()
        found[disk.view(Host("next")).read_file(_FILE)] = None
    assert b"0123456789" in found and b"0123" in found and b"0123ab" in found


def test_a_sync_that_failed_leaves_its_pages_lost_for_good() -> None:
    _, disk, host = _disk(1, DiskFaults(sync_error=1.0))
    view = disk.view(host)
    view.make_directory(_DATA)
    view.sync_directory(PurePosixPath("/"))
    file = view.open(_FILE, create=True)
    view.sync_directory(_DATA)
    file.append(b"gone")
    with pytest.raises(OSError):
        file.sync()
    disk.faults = DiskFaults()
    file.sync()
    disk.cut_power()
    assert disk.view(Host("next")).read_file(_FILE) == b""


def test_a_dead_process_cannot_write() -> None:
    loop, disk, host = _disk(1)
    view = disk.view(host)
    view.make_directory(_DATA)
    file = view.open(_FILE, create=True)
    loop.kill(host)
    with pytest.raises(OSError):
        file.append(b"x")
    with pytest.raises(OSError):
        view.remove(_FILE)


def test_files_keep_their_content_over_rename_and_an_old_handle() -> None:
    _, disk, host = _disk(1)
    view = disk.view(host)
    view.make_directory(_DATA)
    file = view.open(_FILE, create=True)
    assert [file.append(b"abc"), file.append(b"de"), file.size()] == [0, 3, 5]
    view.rename(_FILE, _DATA / "other")
    assert view.list_directory(_DATA) == ["other"]
    assert file.read(1, 10) == b"bcde"
    with pytest.raises(FileNotFoundError):
        view.open(_FILE)


def test_background_work_takes_virtual_time() -> None:
    loop, disk, host = _disk(1, DiskFaults(sync_min=3.0, sync_max=3.0))
    assert loop.run_until_complete(disk.view(host).in_background(lambda: "done")) == "done"
    assert loop.time() == 3.0


def test_a_full_disk_writes_nothing() -> None:
    _, disk, host = _disk(1, DiskFaults(full=1.0))
    view = disk.view(host)
    view.make_directory(_DATA)
    file = view.open(_FILE, create=True)
    with pytest.raises(OSError, match="no space"):
        file.append(b"x")
    assert file.size() == 0
