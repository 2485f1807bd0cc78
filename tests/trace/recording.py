"""Frames of a proxy in a file, so that a diagram can be made of what real clients and brokers sent.

Usage: python -m tests.trace.recording HOST:PORT FILE COMMAND ARGS...

``{bootstrap}`` in an argument is the proxy's address. Records the frames that a trace looks at.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from einmal.chaos.proxy.frames import AnswerFrame, RequestFrame
from einmal.chaos.proxy.server import KafkaProxy
from einmal.trace.exchanges import Exchange
from einmal.trace.recorder import ExchangeRecorder

_APIS: Final = frozenset(
    ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "Produce", "EndTxn", "Fetch")
)


class FrameFile:
    """A proxy's observer that keeps frames as JSON, a line each."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: dict[RequestFrame, int] = {}

    def saw_request(self, at: float, request: RequestFrame) -> None:
        if request.api not in _APIS | {"Metadata", "ApiVersions"}:
            return
        self._numbers[request] = len(self.lines)
        self._keep(at=at, connection=request.connection, broker=request.broker, frame=request.frame.hex())

    def saw_answer(self, at: float, answer: AnswerFrame) -> None:
        if answer.request.api in _APIS | {"Metadata"}:
            self._keep(at=at, of=self._numbers[answer.request], frame=answer.frame.hex())

    def _keep(self, **fields: Any) -> None:
        self.lines.append(json.dumps(fields))


def replayed(path: Path) -> list[Exchange]:
    """The exchanges of a file."""
    recorder = ExchangeRecorder()
    requests: dict[int, RequestFrame] = {}
    for number, line in enumerate(path.read_text().splitlines()):
        fields = json.loads(line)
        frame = bytes.fromhex(fields["frame"])
        if "of" in fields:
            recorder.saw_answer(fields["at"], AnswerFrame(requests[fields["of"]], frame))
        else:
            requests[number] = RequestFrame(frame, fields["connection"], fields["broker"])
            recorder.saw_request(fields["at"], requests[number])
    return recorder.exchanges()


def main(upstream: str, path: str, *command: str) -> None:
    frames = FrameFile()
    with KafkaProxy(upstream, observer=frames) as proxy:
        subprocess.run([each.replace("{bootstrap}", proxy.bootstrap_servers) for each in command], check=True)
    Path(path).write_text("".join(f"{line}\n" for line in frames.lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
