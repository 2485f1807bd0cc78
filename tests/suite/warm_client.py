"""Becomes, as far as others see, a program that a warm process runs: ``python warm_client.py ADDRESS -m MODULE ...``.

It has the program's output, environment and working directory, ends as the program does, and with it where it is
asked to end. Started for each query of Spark's, so it imports next to nothing.
"""

import json
import os
import signal
import socket
import struct
import sys

_NUMBER = struct.Struct("!i")


def main() -> None:
    address, _m, *arguments = sys.argv[1:]
    status, theirs = os.pipe()
    request = {"arguments": arguments, "cwd": os.getcwd(), "env": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(address)
        socket.send_fds(asking, [json.dumps(request).encode()], [1, 2, theirs])
    os.close(theirs)
    pid = _read(status)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    code = _read(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _read(status: int) -> int:
    number = os.read(status, _NUMBER.size)
    if not number:
        sys.exit("the process that forks has ended")
    return int(_NUMBER.unpack(number)[0])


if __name__ == "__main__":
    main()
