"""``einmal start --brokers N``: a cluster of real processes, started together and stopped together.

Where they are goes to stdout, what happens to one of them later too in JSON, else to stderr. Their logs go to files.
"""

from __future__ import annotations

import queue
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import einmal
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format
from einmal.local.layout import BrokerPlan, LayoutError, moved_brokers, plan_cluster, write_properties
from einmal.local.processes import BrokerFailed, BrokerProcess, LocalCluster

_Event = tuple[BrokerProcess, int] | None
"""A broker that has ended, with its status; None: stop."""
_INTERRUPTED: Final = 130


def run(
    folder: Path,
    count: int,
    *,
    host: str,
    port: int,
    settings: Mapping[str, str],
    output: Format,
    options: Sequence[str] = (),
) -> int:
    """Supervise until a signal; the exit status.

    ``folder`` is there, and nobody else's. ``settings``: under Kafka's names, for all of them. ``options``: more of
    ``einmal start``, for each.
    """
    try:
        plans = plan_cluster(folder, count, host=host, first_port=port)
        for wanted, plan in moved_brokers(plans, port):
            print(f"warning: {_port_is_taken(wanted, plan)}", file=sys.stderr)
        write_properties(plans, settings)
    except LayoutError as error:
        return _fail(str(error), "start as many as there are, or choose another folder with --data-dir")
    except OSError as error:
        return _fail(f"cannot write to {folder}: {error.strerror}", "choose another folder with --data-dir")
    cluster = LocalCluster(plans, options)
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    try:
        ready = cluster.start()
        _on_signals(events)
        _announce(cluster, ready, output)
        cluster.watch(lambda broker, status: events.put((broker, status)))
        return _supervise(cluster, events, output)
    except BrokerFailed as error:
        return _fail(str(error), "see its messages above")
    except KeyboardInterrupt:
        cluster.kill()
        return _INTERRUPTED


def _port_is_taken(wanted: int, plan: BrokerPlan) -> str:
    what = f"broker {plan.node_id} listens on port {plan.port} (others of its ports may differ, too)"
    return f"not all of the ports {wanted} to {wanted + 2} are free: {what}"


def _supervise(cluster: LocalCluster, events: queue.SimpleQueue[_Event], output: Format) -> int:
    left = len(cluster.brokers)
    while left:
        event = events.get()
        if event is None:
            cluster.stop()
            return 0
        left -= 1
        _report(*event, left, output)
    return _fail("no broker is left", f"see {next(iter(cluster.brokers.values())).plan.log}")


def _on_signals(events: queue.SimpleQueue[_Event]) -> None:
    def stop(_number: int, _frame: object) -> None:
        events.put(None)
        # The second one is for impatient people.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


# --- messages ----------------------------------------------------------------------------------------------------


def start_again(plan: BrokerPlan) -> str:
    """The command that starts one broker again."""
    return f"einmal start --config {shlex.quote(str(plan.properties))}"


def _announce(cluster: LocalCluster, ready: Sequence[Mapping[str, Any]], output: Format) -> None:
    plans = [broker.plan for broker in cluster.brokers.values()]
    bootstrap_servers = ",".join(broker["bootstrap_servers"] for broker in ready)
    if output.is_document:
        brokers = [
            {
                "node_id": plan.node_id,
                "bootstrap_server": broker["bootstrap_servers"],
                "controller": plan.controller_address,
                "pid": broker["pid"],
                "data_dir": str(plan.data),
                "config": str(plan.properties),
                "log": str(plan.log),
                **({"metrics": broker["metrics"]} if "metrics" in broker else {}),
            }
            for plan, broker in zip(plans, ready, strict=True)
        ]
        _say(
            output,
            event="ready",
            bootstrap_servers=bootstrap_servers,
            cluster_id=ready[0]["cluster_id"],
            flush=ready[0]["flush"],
            version=einmal.__version__,
            brokers=brokers,
        )
        return
    print(f"einmal {einmal.__version__}: {len(plans)} brokers, cluster {ready[0]['cluster_id']}")
    rows = [("broker", "address", "controller", "pid", "data")]
    for plan, broker in zip(plans, ready, strict=True):
        controller = plan.controller_address or "-"
        rows.append((str(plan.node_id), broker["bootstrap_servers"], controller, str(broker["pid"]), str(plan.data)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    metrics = [broker["metrics"] for broker in ready if "metrics" in broker]
    if metrics:
        print(f"  metrics  {' '.join(metrics)}")
    print(f"  try  export KAFKA_BROKERS={bootstrap_servers}")
    print(f"einmal is ready: bootstrap.servers={bootstrap_servers}", flush=True)


def _report(broker: BrokerProcess, status: int, left: int, output: Format) -> None:
    plan = broker.plan
    if output.is_document:
        again = start_again(plan)
        _say(output, event="broker_ended", node_id=plan.node_id, pid=broker.pid, status=status, start_again=again)
        return
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    print(f"broker {plan.node_id} (pid {broker.pid}) {how}; {left} left. Its log: {plan.log}", file=sys.stderr)
    print(f"  start it again: {start_again(plan)}", file=sys.stderr, flush=True)


def _say(output: Format, **fields: Any) -> None:
    print(encoded(fields, output), flush=True)


def _fail(message: str, hint: str) -> int:
    print(f"error: {message}\nhint: {hint}", file=sys.stderr)
    return 1
