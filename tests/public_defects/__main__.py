"""Run the scenarios of public defects on a cluster: ``python -m tests.public_defects [NAME ...]``.

``--cluster einmal|kafka`` starts one, of ``--transaction-version 1`` or 2; ``--bootstrap-server`` takes one that is
there, of one node, which is not restarted; the topics are deleted there. NAME: a scenario, or a report, as KAFKA-17754.
Exit status 1: an outcome is not the right one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop import raw
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker
from tests.public_defects.scenario import TOPIC, Target, dialect_of
from tests.public_defects.table import SCENARIOS


def main() -> int:
    arguments = _parser().parse_args()
    names = arguments.names
    chosen = [each for each in SCENARIOS if not names or {each.name, *each.reports} & set(names)]
    if not chosen:
        sys.exit(
            f"no scenario has a name of {', '.join(names)}; there are: {', '.join(each.name for each in SCENARIOS)}"
        )
    is_right = True
    with _cluster(arguments) as target:
        for each in chosen:
            obstacle = each.obstacle(target)
            if each.is_slow and not names:
                obstacle = "it sends 32,766 requests; name it"
            if obstacle:
                seen = f"not run: {obstacle}"
            else:
                wrong = each.run(target)
                is_right = is_right and wrong is None
                seen = f"right: {each.right}" if wrong is None else f"WRONG: {wrong}"
            print(f"{', '.join(each.reports)} {each.name}: {seen}", flush=True)
    return 0 if is_right else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.public_defects", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cluster", choices=["einmal", "kafka"], default="einmal")
    where.add_argument("--bootstrap-server", metavar="HOST:PORT")
    parser.add_argument("--transaction-version", type=int, choices=[1, 2], default=2)
    return parser


@contextmanager
def _cluster(arguments: argparse.Namespace) -> Iterator[Target]:
    if arguments.bootstrap_server is not None:
        host, port = arguments.bootstrap_server.rsplit(":", 1)
        broker = Broker(host, int(port))
        try:
            yield Target(broker, dialect_of(broker))
        finally:
            _delete_topics(broker)
        return
    with tempfile.TemporaryDirectory() as directory:
        node: EinmalBroker | ApacheKafka
        if arguments.cluster == "kafka":
            node = ApacheKafka(Path(directory), transaction_version=arguments.transaction_version)
        else:
            node = EinmalBroker(Path(directory), version_settings(arguments.transaction_version))
        node.start()
        try:
            yield target_of(node)
        finally:
            node.stop()


def _delete_topics(broker: Broker) -> None:
    """Those that this process has created."""
    with broker.connect() as connection:
        found = connection.call(raw.METADATA, 12, topics=None, allow_auto_topic_creation=False).topics
        own = [each.name for each in found if each.name.startswith(f"{TOPIC}-{os.getpid()}-")]
        topics = [{"name": name, "topic_id": None} for name in own]
        connection.call(raw.DELETE_TOPICS, 6, topics=topics, timeout=60_000)


def version_settings(transaction_version: int) -> dict[str, str]:
    """Settings of our broker. The default level is not named: one that is cannot be changed by UpdateFeatures."""
    return {} if transaction_version == 2 else {"transaction.version": str(transaction_version)}


def target_of(node: EinmalBroker | ApacheKafka, *, may_restart: bool = True) -> Target:
    """The running node as a target."""

    def restart() -> None:
        node.kill()
        node.start()

    broker = Broker(node.host, node.port)
    return Target(broker, dialect_of(broker), restart if may_restart else None)


if __name__ == "__main__":
    sys.exit(main())
