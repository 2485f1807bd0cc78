"""``einmal bench --beside`` Apache Kafka, which is started for it: one node, or a cluster, also over TLS.

    python -m tests.bench.beside_apache --brokers 3 --tls client --scale 0.1

All further arguments are those of ``einmal bench``. A node has the heap, collector and compilers that Apache Kafka's
own start script sets.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.interop.apache_kafka import OF_A_WHOLE_RUN, ApacheKafka
from tests.interop.cluster import Cluster
from tests.ports import loopback_ports
from tests.security.certificates import Authority


class LongLivedKafka(ApacheKafka):
    options = ("-server", "-Xms1G", "-Xmx1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, default=1, help="nodes of either cluster (default: 1)")
    parser.add_argument("--tls", action="store_true", help="connect to both over TLS")
    arguments, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="einmal-bench-") as folder:
        cluster = _cluster(Path(folder), arguments.brokers, tls=arguments.tls)
        try:
            cluster.start()
            nodes = [node for node in cluster.nodes.values() if isinstance(node, ApacheKafka)]
            ports = [node.ports["TLS"] if arguments.tls else node.port for node in nodes]
            beside = ",".join(f"127.0.0.1:{port}" for port in ports)
            options = ["--beside", beside, "--brokers", str(arguments.brokers), *(["--tls"] if arguments.tls else [])]
            return subprocess.run([sys.executable, "-m", "einmal", "bench", *options, *more], check=False).returncode
        finally:
            cluster.stop()


def _cluster(folder: Path, count: int, *, tls: bool) -> Cluster:
    settings = dict(OF_A_WHOLE_RUN)
    if tls:
        store = Authority().issue(folder, "broker").store
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    ports = dict(enumerate(loopback_ports(count), start=1))
    return Cluster(
        {
            node_id: LongLivedKafka(
                folder / str(node_id),
                node_id=node_id,
                controller_ports=ports,
                settings=settings,
                listeners={"TLS": "SSL"} if tls else None,
            )
            for node_id in ports
        }
    )


if __name__ == "__main__":
    sys.exit(main())
