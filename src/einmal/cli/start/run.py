"""``einmal start``: one broker process, from its options to its last flush; or several, see ``local_cluster``.

The only module that chooses the event loop, the real clock, network and disk, and real randomness. The broker's address
goes to stdout, all later messages to stderr.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import einmal
from einmal import otlp
from einmal.broker.config import (
    SETTINGS,
    BrokerConfig,
    ConfigError,
    Endpoint,
    ListenerSetting,
    broker_config,
)
from einmal.broker.kafka_settings import warnings_of
from einmal.broker.listeners import Audience, NamedListener, endpoints_of
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, LogFormat
from einmal.cli.printing.log_formats import JsonFormatter, TextFormatter
from einmal.cli.printing.messages import is_quiet
from einmal.cli.start.broker_settings import StartError, values_of
from einmal.cli.start.file_descriptors import raised_limit, shares
from einmal.cli.start.garbage import collect_in_time
from einmal.cli.start.log_limits import LimitedHandler
from einmal.compiled import execution
from einmal.event_log import EventLog
from einmal.seams import ListenError
from einmal.security.errors import SecuritySettingError
from einmal.security.properties import read_file, resolved

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from einmal.broker.node import Node

log = EventLog(__name__)

_PAGE_SECONDS: Final = 60.0
_LOCK_FILE: Final = ".lock"
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""From glibc's malloc.h."""
_MAPPED_BYTES: Final = 8 * 1024 * 1024
_INTERRUPTED: Final = 130
_OF_SEVERAL: Final[Mapping[str, str]] = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
"""Kafka's defaults, where there are several voters: what coordinators know must survive a broker."""
_OF_EACH: Final = frozenset(
    {
        "node.id",
        "broker.id",
        "process.roles",
        "controller.quorum.voters",
        "controller.listener.names",
        "listeners",
        "advertised.listeners",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "einmal.cluster.secret.file",
        "log.dirs",
        "log.dir",
    }
)
"""Settings that the brokers of a cluster on this machine cannot have in common."""
_METRICS: Final = "metrics.listeners"
_BOOTSTRAP_SERVERS: Final = "controller.quorum.bootstrap.servers"


def run(
    *,
    port: int | None,
    host: str | None,
    data_dir: Path | None,
    assignments: Sequence[str],
    config_file: Path | None,
    output: Format,
    brokers: int,
    stops_with_stdin: bool,
    log_format: LogFormat | None,
) -> int:
    """Serve until a signal; the exit status."""
    # Modules and what they hold stay: looking through them while they come costs a tenth of the start.
    gc.disable()
    _set_up_logging(log_format)
    descriptors = raised_limit()
    _have_memory_returned()
    try:
        # A broker of a cluster on this machine has in its file what the environment sets for all of them.
        values = values_of(config_file, {} if stops_with_stdin else os.environ, assignments)
        if brokers > 1:
            options = () if log_format is None else ("--log-format", log_format.value)
            return _run_cluster(brokers, port, host, data_dir, values, output, options)
        if otlp.receiver() is not None:
            # What is pushed is measured, and can be read here, too.
            values = {_METRICS: "0", **values}
        config = _config(port, host, data_dir, values)
        _refuse_cluster(Path(config.log_dirs))
        with _lock(Path(config.log_dirs)), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(config, descriptors, output, stops_with_stdin))
    except ConfigError as error:
        return _fail(str(error), "correct it in -X, the environment or the --config file; names and values are Kafka's")
    except StartError as error:
        return _fail(str(error), error.hint)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _fail(message: str, hint: str) -> int:
    print(f"error: {message}\nhint: {hint}", file=sys.stderr)
    return 1


# --- settings ----------------------------------------------------------------------------------------------------


def _resolved(values: Mapping[str, str]) -> dict[str, str]:
    """The settings without references to files and to the environment. Raises StartError."""
    try:
        return {key: resolved(key, value, os.environ, read_file) for key, value in values.items()}
    except SecuritySettingError as error:
        raise StartError(error.meaning, error.hint) from error


def _config(port: int | None, host: str | None, data_dir: Path | None, values: Mapping[str, str]) -> BrokerConfig:
    values = _resolved(values)
    config, unknown = broker_config(values)
    if len(config.quorum_voters) > 1:
        config, unknown = broker_config({**_OF_SEVERAL, **values})
    if "," in values.get(_BOOTSTRAP_SERVERS, "") and not config.quorum_voters:
        # Each of them would be a cluster of its own.
        raise ConfigError(f"{_BOOTSTRAP_SERVERS}: name every controller in controller.quorum.voters=id@host:port,...")
    _warn_of_unknown(unknown)
    if port is not None or host is not None:
        config = replace(config, listeners=_listeners_at(config, host, port))
    _check_secret_file(config.einmal_cluster_secret_file)
    config.check_roles()
    folder = data_dir or Path(config.log_dirs or _default_data_dir())
    return replace(config, log_dirs=str(folder.expanduser().absolute()))


def _warn_of_unknown(keys: Sequence[str]) -> None:
    for warning in warnings_of(keys, SETTINGS):
        log.warning("unknown_setting", "%(warning)s", warning=warning)


def _listeners_at(config: BrokerConfig, host: str | None, port: int | None) -> str:
    """The listeners, with another address for clients. Raises ConfigError."""
    clients = config.named_listeners.first
    if not config.is_broker:
        raise ConfigError("--host and --port are for clients, and this process is no broker: use -X listeners=...")
    endpoints = endpoints_of("listeners", config.listeners)
    declared = clients.endpoint
    endpoints[clients.name] = Endpoint(declared.host if host is None else host, declared.port if port is None else port)
    return ",".join(f"{name}://{endpoint}" for name, endpoint in endpoints.items())


def _check_secret_file(file: str) -> None:
    """Raises ConfigError where others than the owner may read it. What is not there is reported when it is read."""
    if not file or os.name != "posix":
        return
    try:
        mode = Path(file).stat().st_mode & 0o777
    except OSError:
        return
    if mode & 0o077:
        raise ConfigError(f"einmal.cluster.secret.file={file} can be read by others (mode {mode:o}): chmod 600 {file}")


def _run_cluster(
    count: int,
    port: int | None,
    host: str | None,
    data_dir: Path | None,
    values: Mapping[str, str],
    output: Format,
    options: Sequence[str],
) -> int:
    from einmal.cli.start.local_cluster import run as run_cluster

    # Their files have the references, not the secrets behind them.
    config, unknown = broker_config(_resolved(values))
    _warn_of_unknown(unknown)
    for key in values:
        if key in _OF_EACH and key != "listeners":
            chosen = "%(setting)s is chosen for each of the %(brokers)d brokers: the configured value is ignored"
            log.warning("setting_ignored", chosen, setting=key, brokers=count)
    folder = (data_dir or _default_data_dir() / f"cluster-of-{count}").expanduser().absolute()
    declared = config.named_listeners.first.endpoint
    # A second one would write down other ports for the brokers of the first.
    with _lock(folder):
        return run_cluster(
            folder,
            count,
            host=declared.host if host is None else host,
            port=declared.port if port is None else port,
            settings={key: value for key, value in values.items() if key not in _OF_EACH and key not in unknown},
            output=output,
            options=options,
        )


def _refuse_cluster(folder: Path) -> None:
    """Raises StartError for the folder of several brokers: each has one of its own in it."""
    from einmal.local.layout import brokers_in

    # Without it they are partitions of a topic named ``broker``.
    is_cluster = (folder / "broker-1.properties").exists() and not (folder / "meta.properties").exists()
    if is_cluster and (count := brokers_in(folder)):
        raise StartError(
            f"{folder} has the data of a cluster of {count} brokers",
            f"start all of them with --brokers {count}, or one with --config {folder / 'broker-1.properties'}",
        )


def _default_data_dir() -> Path:
    """Where the platform keeps a user's application data. Raises StartError."""
    import platformdirs

    folder = platformdirs.user_data_path("einmal", appauthor=False)
    if not folder.is_absolute():
        raise StartError(f"this user has no home directory: data cannot be in {folder}", "name one with --data-dir")
    former = Path("~/Library/Application Support/einmal").expanduser()
    # Former versions did not look at XDG_DATA_HOME on macOS.
    return former if sys.platform == "darwin" and former.exists() and not folder.exists() else folder


# --- the process -------------------------------------------------------------------------------------------------


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _share_descriptors(config: BrokerConfig, limit: int) -> tuple[BrokerConfig, int]:
    """The settings, with no more connections than ``limit`` descriptors allow; and how many files of logs have."""
    wanted = {
        listener.name: config.of_listener(listener.name).max_connections for listener in config.named_listeners.all
    }
    files, allowed = shares(limit, list(wanted.values()))
    own = {listener.full_key: listener for listener in config.of_listeners}
    for (name, count), most in zip(wanted.items(), allowed, strict=True):
        if count > most:
            lowered = ListenerSetting(name.lower(), "max.connections", most)
            own[lowered.full_key] = lowered
    return replace(config, of_listeners=tuple(own.values())), files


def _log_descriptors(wanted: BrokerConfig, config: BrokerConfig, limit: int, files: int) -> None:
    most = {listener.name: config.of_listener(listener.name).max_connections for listener in config.named_listeners.all}
    log.info(
        "file_descriptors_shared",
        "%(limit)d file descriptors: up to %(files)d for files of logs, %(connections)d for connections",
        limit=limit,
        files=files,
        connections=sum(most.values()),
    )
    for name, count in most.items():
        configured = wanted.of_listener(name)
        if count < configured.max_connections and "max.connections" in configured.given:
            log.warning(
                "max_connections_lowered",
                "listener %(listener)s has up to %(count)d connections, not max.connections=%(configured)d: the limit "
                "of file descriptors (ulimit -Hn) is %(limit)d",
                listener=name,
                count=count,
                configured=configured.max_connections,
                limit=limit,
            )


def _have_memory_returned() -> None:
    """Let glibc return what large requests and batches have taken, which it keeps otherwise, in each thread's arena.

    After a hostile minute a broker that holds 40 MB would stay at 150, and slowly grow. Other C libraries have no
    ``mallopt``.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_ARENA_MAX, 1)
    # Once set, it does not follow the largest block that was ever freed. Answers of some MB stay below it: to map and
    # to clear new memory for each would halve their rate.
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _MAPPED_BYTES)


class _lock:
    """The data folder, kept from a second broker. Raises StartError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None

    def __enter__(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = (self._folder / _LOCK_FILE).open("wb")
        except OSError as error:
            raise StartError(
                f"cannot write to {self._folder}: {error.strerror}", "choose another folder with --data-dir"
            ) from error
        try:
            import fcntl
        except ImportError:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartError(
                f"another broker uses {self._folder}", "stop it, or choose another folder with --data-dir"
            ) from error

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()


async def _serve(wanted: BrokerConfig, descriptors: int, output: Format, stops_with_stdin: bool) -> None:
    from einmal.broker.node import Node
    from einmal.broker.resources.supervision import log_defect
    from einmal.log.disk import OsDisk
    from einmal.log.errors import LogCorruption
    from einmal.seams import SystemClock, TcpNetwork

    asyncio.get_running_loop().set_exception_handler(log_defect)
    stopping = asyncio.Event()
    _on_signals(stopping)
    if stops_with_stdin:
        _on_end_of_stdin(stopping)
    config, open_files = _share_descriptors(wanted, descriptors)
    disk, network = OsDisk(open_files), TcpNetwork()
    node = Node(config, clock=SystemClock(), network=network, disk=disk, random=random.SystemRandom())
    try:
        if not await _started(node, stopping):
            return
    except LogCorruption as error:
        raise StartError(str(error), "the data is damaged: restore it, or start with another --data-dir") from error
    except OSError as error:
        raise _explain(error, config) from error
    collecting = collect_in_time()
    push = _pushing(node)
    _announce(node, output, push)
    _log_descriptors(wanted, config, descriptors, open_files)
    _warn_of_impersonation(config)
    await stopping.wait()
    collecting.cancel()
    log.info("broker_stopping", "stopping")
    if push is not None:
        await asyncio.to_thread(push.close)
    try:
        await node.stop()
    except OSError as error:
        raise StartError(
            f"stopped, but not everything could be written: {error}",
            "make room on the disk; the next start recovers what was acknowledged from the logs",
        ) from error


def _pushing(node: Node) -> otlp.Push | None:
    """Push the node's metrics from now on, where somebody asks for it."""
    monitoring, loop = node.monitoring, asyncio.get_running_loop()
    push = None if monitoring is None else otlp.wanted_push("einmal-broker", instance=str(node.endpoint))
    if monitoring is None or push is None:
        return None

    def collect() -> Iterable[Metric]:
        from prometheus_client.parser import text_string_to_metric_families

        page = asyncio.run_coroutine_threadsafe(monitoring.page(), loop).result(_PAGE_SECONDS)
        return text_string_to_metric_families(b"".join(page).decode())

    push.start(collect)
    return push


def _warn_of_impersonation(config: BrokerConfig) -> None:
    """Warn of what whoever reaches a listener can do, where several processes are one cluster and do not
    authenticate."""
    if config.is_alone:
        return
    open_to_all = [listener.name for listener in config.named_listeners.between_nodes if not listener.authenticates]
    if config.clients_may_act_as_brokers:
        problem = f"clients and brokers share the listener {open_to_all[-1]}, where any client can act as a broker"
    elif open_to_all:
        problem = (
            f"nobody authenticates on {' and '.join(open_to_all)}: who reaches it can act as a broker or controller"
        )
    else:
        return
    log.warning(
        "cluster_unprotected",
        "%(problem)s: acknowledge records that no replica has, end transactions, take over the metadata. Set "
        "inter.broker.listener.name, listener.security.protocol.map and einmal.cluster.secret.file "
        "(docs/security.md), or let only trusted hosts reach the ports",
        problem=problem,
    )


async def _started(node: Node, stopping: asyncio.Event) -> bool:
    """Start; False: a signal came while it waited for the others of its cluster, and it has stopped again."""
    starting = asyncio.ensure_future(node.start())
    stop = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await node.stop()
        return False
    starting.result()
    return True


def _on_signals(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        # The second one is for impatient people.
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _on_end_of_stdin(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stopping.set()

    loop.add_reader(0, read)


def _another_address(listener: NamedListener) -> str:
    voters = ", and in every controller.quorum.voters" if listener.audience is Audience.CONTROLLERS else ""
    return f"choose another address for {listener.name}:// in listeners{voters}"


def _explain(error: OSError, config: BrokerConfig) -> StartError:
    if not isinstance(error, ListenError):
        return StartError(f"cannot use {config.log_dirs}: {error}", "choose another folder with --data-dir")
    address = Endpoint(error.host, error.port)
    listeners = config.named_listeners
    is_clients = config.is_broker and address == listeners.first.endpoint
    own = next((listener for listener in listeners.all if listener.endpoint == address), None)
    if own is None and address == config.metrics_endpoint:
        other = "choose another address in metrics.listeners"
    else:
        other = _another_address(own or listeners.first)
    if error.errno == errno.EADDRINUSE:
        hint = "take another port with --port, or any free one with --port 0" if is_clients else other
        return StartError(f"{address} is in use", hint)
    if error.errno == errno.EACCES:
        hint = "take a port above 1023 with --port" if is_clients else other
        return StartError(f"no permission to listen on {address}", hint)
    hint = "choose an address of this machine with --host" if is_clients else other
    return StartError(f"cannot listen on {address}: {error.strerror}", hint)


# --- messages ----------------------------------------------------------------------------------------------------

_DURABILITY: Final = {
    False: "page cache: survives kill -9; a power cut may lose the last writes (-X log.flush.interval.messages=1)",
    True: "every write is on the disk before it is answered (log.flush.interval.messages=1)",
}


def _announce(node: Node, output: Format, push: otlp.Push | None) -> None:
    bootstrap = str(node.endpoint)
    is_broker = node.config.is_broker
    flush_each = node.config.flush_each
    metrics = None if node.monitoring is None else f"http://{node.monitoring.endpoint}/metrics"
    if output.is_document:
        print(
            encoded(
                {
                    "event": "ready",
                    "bootstrap_servers" if is_broker else "controller": bootstrap,
                    "cluster_id": node.identity.cluster_id,
                    "data_dir": node.config.log_dirs,
                    "flush": "every_write" if flush_each else "page_cache",
                    **({} if metrics is None else {"metrics": metrics}),
                    **({} if push is None else {"metrics_pushed_to": push.endpoint}),
                    "pid": os.getpid(),
                    "version": einmal.__version__,
                },
                output,
            ),
            flush=True,
        )
        return
    print(f"einmal {einmal.__version__} ({execution()})")
    print(f"  listening on  {bootstrap}")
    print(f"  cluster id    {node.identity.cluster_id}")
    print(f"  data          {node.config.log_dirs}")
    print(f"  durability    {_DURABILITY[flush_each]}")
    if metrics is not None:
        print(f"  metrics       {metrics}")
    if push is not None:
        print(f"                {push.described}")
    if is_broker:
        print(f"  try           export KAFKA_BROKERS={bootstrap}")
        print(f"einmal is ready: bootstrap.servers={bootstrap}", flush=True)
    else:
        print(f"einmal is ready: controller {bootstrap}", flush=True)


def _set_up_logging(wanted: LogFormat | None) -> None:
    """``wanted`` None: text on a terminal, JSON elsewhere. The level is INFO, but for -q and -vv."""
    handler = LimitedHandler(sys.stderr)
    is_text = sys.stderr.isatty() if wanted is None else wanted is LogFormat.TEXT
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    level = logging.WARNING if is_quiet() else min(logging.INFO, logging.getLogger().level)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
