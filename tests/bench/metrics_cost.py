"""What metrics cost: ``einmal bench`` beside a broker of ours that serves them, and is scraped as Prometheus does.

    python -m tests.bench.metrics_cost throughput

All further arguments are those of ``einmal bench``. In its ratios the fresh broker has no metrics, and the one beside
it has: 1.02 means that metrics cost 2 %.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import urllib.request
from typing import Final

from einmal.bench.server import FreshBrokers
from einmal.local.ports import free_ports

_SCRAPE_S: Final = 5.0
"""Three times as often as Prometheus by default."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _, more = parser.parse_known_args()
    (port,) = free_ports([("127.0.0.1", 0)])
    ended = threading.Event()
    with FreshBrokers([f"metrics.listeners=127.0.0.1:{port}"]).running() as cluster:
        scraping = threading.Thread(target=_scrape, args=(port, ended))
        scraping.start()
        try:
            command = [sys.executable, "-m", "einmal", "bench", "--beside", cluster.bootstrap_servers]
            return subprocess.run([*command, *more], check=False).returncode
        finally:
            ended.set()
            scraping.join()


def _scrape(port: int, ended: threading.Event) -> None:
    while not ended.wait(_SCRAPE_S):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"einmal_" in answer.read()


if __name__ == "__main__":
    sys.exit(main())
