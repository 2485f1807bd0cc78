"""A driver's side of the messages between a campaign and its drivers: reports out, orders in."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any


class Reporter:
    """Writes JSON lines to standard output, and obeys those from standard input."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin = threading.Event()
        self.stop = threading.Event()

    def listen(self) -> None:
        """Obey, in another thread, until the campaign ends."""
        threading.Thread(target=self._listen, daemon=True).start()

    def report(self, **line: Any) -> None:
        with self._lock:
            print(json.dumps(line), flush=True)
            print(time.strftime("%H:%M:%S"), line, file=sys.stderr, flush=True)

    def obey(self, order: dict[str, Any]) -> None:
        if "begin" in order:
            self.begin.set()
        elif "stop" in order:
            self.stop.set()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.obey(json.loads(line))
        # A driver without its campaign has nothing to do.
        os._exit(1)
