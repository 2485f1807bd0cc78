"""Claims about examples/replicated_orders, by its README's own commands, while everything in it is killed."""

from __future__ import annotations

import json
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.examples.readme import ROOT, Reader
from tests.interop.einmal_broker import EinmalBroker
from tests.sinks.postgres.server import PASSWORD, PostgresServer, running

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "replicated_orders"
QUERIES = (
    "SELECT * FROM orders ORDER BY id",
    "SELECT * FROM order_items ORDER BY order_id, item",
    "SELECT * FROM revenue ORDER BY customer",
)
_ASK = "import socket; s = socket.create_connection(('127.0.0.1', {port})); s.sendall(b'{name}\\n'); assert s.recv(4)"


@contextmanager
def restarting(actions: Mapping[str, Callable[[], None]]) -> Iterator[dict[str, str]]:
    """Shell commands that have this process carry out an action; by their names."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            actions[self.rfile.readline().decode().strip()]()
            self.wfile.write(b"done")

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        try:
            yield {name: f'python -c "{_ASK.format(port=port, name=name)}"' for name in actions}
        finally:
            server.shutdown()


def restart(server: PostgresServer | EinmalBroker) -> Callable[[], None]:
    def kill_and_start() -> None:
        server.kill()
        server.start()

    return kill_and_start


def test_the_copy_and_its_view_equal_the_shops_whatever_is_killed(tmp_path: Path) -> None:
    broker = EinmalBroker(tmp_path / "broker")
    broker.start()
    try:
        with running(wal_level="logical") as shop, running() as reports:
            reader = Reader(tmp_path / "reader", broker.bootstrap)
            actions = {"broker": restart(broker), "shop": restart(shop), "reports": restart(reports)}
            with restarting(actions) as commands:
                reader.environment |= {f"RESTART_{name.upper()}": command for name, command in commands.items()}
                reader.environment |= {
                    "SHOP_URL": shop.url, "REPORTS_URL": reports.url, "POSTGRES_PASSWORD": PASSWORD
                }  # fmt: skip
                reader.follow(EXAMPLE / "README.md")
            for query in QUERIES:
                assert (rows := shop.rows(query)) == reports.rows(query) and rows, query
    finally:
        broker.stop()
    kills = Counter(name for _, name in json.loads((reader.folder / "build/examples/kills.json").read_text())["kills"])
    assert kills == dict.fromkeys(("ingester", "pipeline", "broker", "shop's server", "reports' server"), 3)
    assert "15 kills" in (reader.folder / "build/examples/replicated.svg").read_text()
