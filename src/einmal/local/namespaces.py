"""Network namespaces of Linux for the brokers of a cluster: an address for each, and packets between two of them lost.

The namespaces hang on a bridge of this machine, in a network of RFC 2544 (198.18.0.0/15), which nobody routes. A packet
is lost where its sender has a wrong address of the receiver's interface: silently, as in a network that is cut, and in
one direction only, if asked for. Everything goes away with the process that has made it, however that ends.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

MACHINE: Final = 254
"""This machine on the bridge, where a node's id is asked for: the last byte of its address."""
_NETWORKS: Final = 256
_ATTEMPTS: Final = 20
_INTERFACE: Final = "eth0"
_NOBODY: Final = "02:00:00:00:00:00"
"""Address of an interface that no namespace has."""
_CALL_S: Final = 30.0


class NamespacesMissing(OSError):
    """This machine makes none for us. ``str()`` names what to do."""


class Namespaces:
    """One for each of the nodes 1 to ``count``. Raises NamespacesMissing."""

    def __init__(self, count: int) -> None:
        self._holders: dict[int, subprocess.Popen[bytes]] = {}
        self._network = self.bridge = ""
        self._guard: subprocess.Popen[bytes] | None = None
        try:
            self._make_bridge()
            for node_id in range(1, count + 1):
                self._make(node_id)
        except BaseException:
            self.close()
            raise

    @property
    def node_ids(self) -> Sequence[int]:
        return list(self._holders)

    def host(self, node_id: int) -> str:
        """Return the address of a node or of ``MACHINE``, which this machine and the nodes reach."""
        return f"{self._network}.{node_id}"

    def command(self, node_id: int) -> list[str]:
        """Return what comes before a command that runs in a node's namespace, as the same process."""
        return ["nsenter", f"--net=/proc/{self._holders[node_id].pid}/ns/net", "--"]

    def cut(self, sender: int, receiver: int) -> None:
        """Lose every packet of a node to another one, or to ``MACHINE``, also of open connections."""
        self._neighbour(sender, f"replace {self.host(receiver)} lladdr {_NOBODY} nud permanent")

    def restore(self, sender: int, receiver: int) -> None:
        """Let the packets of a node to another one pass again, if they were cut."""
        self._neighbour(sender, f"flush {self.host(receiver)} nud permanent")

    def close(self) -> None:
        """Remove all namespaces, once the brokers in them have ended, and the bridge."""
        for process in (*self._holders.values(), self._guard):
            if process is not None:
                with suppress(BrokenPipeError):
                    process.communicate()
        self._holders.clear()
        self._guard = None

    def _make_bridge(self) -> None:
        """Raises NamespacesMissing."""
        # Not from a seed: two runs at once must not have one network.
        for number in random.SystemRandom().sample(range(_NETWORKS), _ATTEMPTS):
            self._network, self.bridge = f"198.18.{number}", f"einmal{number}"
            try:
                _ip(f"link add {self.bridge} type bridge")
            except NamespacesMissing as error:
                if "File exists" in str(error):
                    continue
                raise
            # A namespace lives until its last connection has given up, which takes minutes.
            self._guard = _waiting(
                f"read _; for link in /sys/class/net/{self.bridge}-*; do ip link del ${{link##*/}}; done; "
                f"ip link del {self.bridge}"
            )
            _ip(f"addr add {self.host(MACHINE)}/24 dev {self.bridge}", f"link set {self.bridge} up")
            return
        raise NamespacesMissing(f"{_ATTEMPTS} networks within 198.18.0.0/16 are in use: see ip link")

    def _make(self, node_id: int) -> None:
        """Raises NamespacesMissing."""
        holder = self._holders[node_id] = _waiting("echo; read _", "unshare", "--net", "--")
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise NamespacesMissing(_missing("unshare --net has failed"))
        outside = f"{self.bridge}-{node_id}"
        _ip(
            f"link add {outside} type veth peer name {_INTERFACE} netns {holder.pid}",
            f"link set {outside} master {self.bridge} up",
        )
        _ip(
            "link set lo up",
            f"addr add {self.host(node_id)}/24 dev {_INTERFACE}",
            f"link set {_INTERFACE} up",
            inside=self.command(node_id),
        )

    def _neighbour(self, node_id: int, change: str) -> None:
        _ip(f"neigh {change} dev {_INTERFACE}", inside=self.command(node_id))


def _waiting(script: str, *inside: str) -> subprocess.Popen[bytes]:
    """A shell that waits for the end of its standard input: of ``communicate``, or of this process.

    Raises NamespacesMissing.
    """
    try:
        return subprocess.Popen(
            [*inside, "/bin/sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise NamespacesMissing(_missing(f"{inside[0] if inside else '/bin/sh'}: {error.strerror}")) from error


def _ip(*commands: str, inside: Sequence[str] = ()) -> None:
    """Run commands of ``ip``. Raises NamespacesMissing."""
    try:
        done = subprocess.run(
            [*inside, "ip", "-batch", "-"],
            input="".join(f"{command}\n" for command in commands),
            capture_output=True,
            text=True,
            timeout=_CALL_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise NamespacesMissing(_missing(f"{error.filename}: {error.strerror}")) from error
    if done.returncode:
        raise NamespacesMissing(
            _missing(done.stderr.strip().splitlines()[0] if done.stderr.strip() else "ip has failed")
        )


def _missing(why: str) -> str:
    return (
        f"no network namespaces: {why}\nhint: they need Linux, root (CAP_NET_ADMIN and CAP_SYS_ADMIN), and the "
        "programs ip (package iproute2), unshare and nsenter (util-linux)"
    )
