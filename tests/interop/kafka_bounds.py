"""Ask Apache Kafka itself what it accepts for each setting, and write that down in tools/kafka_bounds.json.

Usage: python -m tests.interop.kafka_bounds

Needs Java and Maven, which fetches the release that the tests run. ``tools/list_bounds.py`` compares.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from tests.interop.apache_kafka import JVM, classpath, java

_PROGRAM: Final = Path(__file__).parent / "kafka" / "broker" / "Bounds.java"
FACTS: Final = Path(__file__).parent.parent.parent / "tools" / "kafka_bounds.json"
_QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"


def facts() -> str:
    """As JSON. Raises KafkaUnavailable."""
    command = [java(), *JVM, _QUIET, "-cp", classpath("broker"), str(_PROGRAM)]
    result = subprocess.run(command, capture_output=True, check=True, text=True, timeout=300)
    # A line for each setting.
    kinds = [
        f"{json.dumps(kind)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
        for kind, found in json.loads(result.stdout).items()
    ]
    return "{" + "\n},\n".join(kinds) + "\n}}\n"


if __name__ == "__main__":
    FACTS.write_text(facts())
