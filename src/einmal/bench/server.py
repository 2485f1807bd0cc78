"""The brokers under measurement: processes of their own, with a folder of their own."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from einmal.bench.load import BenchRefused
from einmal.local.processes import LocalCluster

TLS_CLIENTS: Final[Mapping[str, str]] = {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}
"""Settings of clients that trust any certificate: the records of a measurement are no secret."""


@dataclass(frozen=True, slots=True)
class FreshBrokers:
    """Brokers to start for a measurement. ``properties``: KEY=VALUE, for each of them. ``over_tls``: their clients'
    listener is encrypted, with a certificate of its own."""

    properties: Sequence[str] = ()
    count: int = 1
    over_tls: bool = False

    @contextmanager
    def running(self) -> Iterator[LocalCluster]:
        """The brokers, ready; their data ends with them. Raises BrokerFailed, BenchRefused."""
        with tempfile.TemporaryDirectory(prefix="einmal-bench-") as folder:
            settings = dict(item.partition("=")[::2] for item in self.properties)
            settings |= _tls_settings(Path(folder)) if self.over_tls else {}
            cluster = LocalCluster.on_loopback(Path(folder), self.count, settings)
            cluster.start()
            try:
                yield cluster
            finally:
                cluster.kill()


def _tls_settings(folder: Path) -> dict[str, str]:
    """Raises BenchRefused."""
    file = str(folder / "certificate.pem")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", file]
    try:
        subprocess.run(
            ["openssl", "req", "-x509", *key, "-subj", "/CN=einmal-bench", "-days", "2", "-out", file],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchRefused(f"no certificate for --tls: {error}\nhint: install openssl") from error
    return {
        "listener.security.protocol.map": "PLAINTEXT:SSL,INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": file,
    }
