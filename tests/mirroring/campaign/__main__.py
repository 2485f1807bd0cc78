"""Random kills of a mirror and of the brokers on both of its sides, while transactions are written at the source.

    python -m tests.mirroring.campaign --kills 200 --seed 1
    python -m tests.mirroring.campaign --kills 20 --source apache --peer

One topic cannot be created at the target; a broker of the source dies that alone has another one (``--nodes`` 3); the
target is away for minutes. Halfway the application moves to the target. Exit code 0 where nothing is wrong: the
target's records are the source's, in order; no state that a reader could see was torn; the application has processed
each record once, over both clusters together; and no ``failover`` has ended well unless the group resumes at the target
where it stands at the source. ``--peer``: MirrorMaker 2 on the same schedule, whose faults are counted, and are no
failure.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from einmal.chaos.campaign import RandomFaults
from einmal.chaos.processes import kill_group
from einmal.chaos.report import CampaignReport
from einmal.chaos.waiting import holds_within, wait_until
from einmal.client import Admin, Consumer
from einmal.client.errors import KafkaError
from einmal.client.records import OffsetAndMetadata
from einmal.types import TopicPartition
from tests.campaigns.command import parser
from tests.interop.cluster import Cluster, apache_cluster, einmal_cluster
from tests.mirroring.campaign.bank import BILLED, PARTITIONS, TRANSFERS, Billing, Ledger, Teller
from tests.mirroring.campaign.mirrors import LONELY, UNCOPIED, MirrorMaker, OurMirror
from tests.mirroring.campaign.verdict import compared

_FAULTS: Final = {
    "mirror": 5,
    "source": 3,
    "target": 3,
    "second mirror": 1,
    "pause": 1,
    "target away": 1,
    "no leader": 1,
    "failover": 2,
}
"""And how often each is chosen."""
_CALM_S: Final = (0.0, 1.5)
_PAUSES_S: Final = (0.5, 4.0)
_PROGRESS_S: Final = 180.0
_LEFT_OUT_S: Final = 90.0
_AUDITORS: Final = "auditors"
"""A group that never has a member, and that fails over again and again."""
_PEER_PAUSE_S: Final = 20.0
"""How long MirrorMaker 2 gets to synchronise a group before it moves."""
_TELLERS: Final = 3
_PREPARED: Final = ("PrepareCommit", "PrepareAbort")
_UNDECIDED: Final = (*_PREPARED, "Ongoing")


@dataclass(kw_only=True)
class MirrorReport(CampaignReport):
    """``torn``: transfers in states that a reader saw; ``lost``, ``doubled``, ``reordered``: at the end."""

    mirror: str
    kills: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_FAULTS, 0)))
    records: int = 0
    transfers: int = 0
    audits: int = 0
    torn: int = 0
    unbalanced: int = 0
    lost: int = 0
    doubled: int = 0
    surplus: int = 0
    reordered: int = 0
    billed_never: int = 0
    billed_twice: int = 0
    billed_wrong: int = 0
    failovers: int = 0
    ready: int = 0


class MirrorCampaign(RandomFaults[MirrorReport]):
    def __init__(self, clusters: tuple[Cluster, Cluster], mirror: OurMirror, seed: int, away_s: float) -> None:
        """``away_s``: how long the target is away at most."""
        source, target = clusters
        faults = dict(_FAULTS)
        if isinstance(mirror, MirrorMaker):
            del faults["failover"], faults["target away"], faults["no leader"]
        elif len(source.nodes) == 1:
            del faults["no leader"]
        super().__init__(MirrorReport(mirror=mirror.name), seed, faults, _CALM_S)
        self._away_s = away_s
        self._source, self._target = source, target
        self._mirror = mirror
        self._tellers = [Teller(source.bootstrap, f"t{each}", seed * 100 + each) for each in range(_TELLERS)]
        self._billing = Billing(source.bootstrap, TRANSFERS)
        self._origin = Ledger(source.bootstrap, TRANSFERS)
        self._copy = Ledger(target.bootstrap, f"A.{TRANSFERS}")

    def start(self) -> None:
        self._source.create_topic(TRANSFERS, PARTITIONS)
        self._source.create_topic(BILLED, 1)
        self._target.create_topic(BILLED, 1)
        for name in (UNCOPIED, LONELY):
            self._source.create_topic(name, 1, replicas=1)
        self._lonely = self._source.leader(LONELY)
        for worker in (*self._tellers, self._billing):
            worker.start()
        self._mirror.start()

    def disturb(self, kills: int) -> None:
        self._moves_after = kills // 2
        super().disturb(kills)

    def recovered(self, fault: str) -> None:
        if self.report.kills.total() == self._moves_after:
            self._move_the_application()

    def close(self) -> None:
        self._mirror.kill()
        for worker in (*self._tellers, self._billing):
            worker.stopping.set()

    # --- faults -------------------------------------------------------------------------------------------------

    def inject(self, fault: str) -> str:
        match fault:
            case "mirror":
                self._mirror.kill()
                self._audit()
                self._mirror.start()
            case "source":
                self._kill_a_node(self._source)
            case "target":
                self._kill_a_node(self._target)
            case "second mirror":
                # One of the two ends fenced.
                second = self._mirror.launch()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    second.wait(self.chance.uniform(*_PAUSES_S))
                kill_group(second)
            case "pause":
                self._mirror.ensure()
                (mirror,) = self._mirror.running
                mirror.send_signal(signal.SIGSTOP)
                time.sleep(self.chance.uniform(*_PAUSES_S))
                mirror.send_signal(signal.SIGCONT)
            case "target away":
                self._be_away()
            case "no leader":
                self._kill_the_only_replica()
            case "failover":
                self._mirror.kill()
                self._fail_over()
                self._mirror.start()
        return fault

    def _be_away(self) -> None:
        """Of the whole target. What ends by itself must not end well meanwhile."""
        nodes = list(self._target.nodes)
        for node in nodes:
            self._target.kill(node)
        started = time.monotonic()
        self._mirror.kill()
        if self._mirror.ask("run", "--available-now").returncode == 0:
            self.report.wrong.append("a mirror ended well while the target was away")
        if self._mirror.ask("failover", "--group", _AUDITORS).returncode == 0:
            self.report.wrong.append("a group was ready while the target was away")
        self._mirror.start()
        time.sleep(max(0.0, started + self.chance.uniform(self._away_s / 2, self._away_s) - time.monotonic()))
        for node in nodes:
            self._target.nodes[node].launch()
        for node in nodes:
            self._target.nodes[node].wait_until_ready()
            self._target.dead.pop(node)

    def _kill_the_only_replica(self) -> None:
        """The mirror copies all other topics, and names this one."""
        self._source.kill(self._lonely)
        try:
            self.await_progress()
            if not holds_within(_LEFT_OUT_S, self._names_the_topic, pause_s=0.0):
                self.report.wrong.append("status does not name the topic without a leader")
            # As long as it takes to leave the topic out, and more.
            for _ in range(10):
                self.await_progress()
                time.sleep(2.0)
        finally:
            self._source.start_node(self._lonely)

    def _names_the_topic(self) -> bool:
        return f'"{LONELY}"' in self._mirror.ask("status", "--format", "json").stdout

    def _fail_over(self) -> None:
        """A group without members stands somewhere at the source: if it is ready, it stands there at the target."""
        origin = Ledger(self._source.bootstrap, TRANSFERS)
        origin.read()
        offsets = {place: self.chance.randint(0, end) for place, end in origin.ends.items()}
        with Consumer({"bootstrap.servers": self._source.bootstrap, "group.id": _AUDITORS}) as consumer:
            consumer.assign(list(offsets))
            consumer.commit({place: OffsetAndMetadata(offset) for place, offset in offsets.items()})
        done = self._mirror.ask("failover", "--group", _AUDITORS)
        self.report.failovers += 1
        if self._mirror.ask("failover").returncode == 0:
            self.report.wrong.append("everything was ready although a topic cannot be copied")
        if done.returncode:
            print(f"not ready: {done.stderr[-500:]}", file=sys.stderr, flush=True)
            return
        self.report.ready += 1
        with Admin({"bootstrap.servers": self._target.bootstrap}) as admin:
            found = admin.list_group_offsets(_AUDITORS)
        copy = Ledger(self._target.bootstrap, f"A.{TRANSFERS}")

        def is_visible() -> bool:
            copy.read()
            return all(copy.ends.get(each, at.offset) >= at.offset for each, at in found.items())

        # The markers of the last transaction are written after its commit is answered: until then no reader sees it.
        if not holds_within(_PROGRESS_S, is_visible):
            self.report.wrong.append(f"the copy ends at {copy.ends}, and the group stands at {found}")
            return
        for place, offset in offsets.items():
            there = TopicPartition(f"A.{TRANSFERS}", place.partition)
            if there not in found or copy.before(there, found[there].offset) != origin.before(place, offset):
                self.report.wrong.append(f"a group at offset {offset} of {place} does not resume there: {done.stdout}")

    def _kill_a_node(self, cluster: Cluster) -> None:
        node = self.chance.choice(list(cluster.nodes))
        cluster.kill(node)
        time.sleep(self.chance.uniform(0.0, 1.0))
        cluster.start_node(node)

    def _move_the_application(self) -> None:
        self._billing.stop()
        print(f"{self._mirror.name}: the application moves to the target", file=sys.stderr, flush=True)
        if isinstance(self._mirror, MirrorMaker):
            time.sleep(_PEER_PAUSE_S)
        self._mirror.fail_over()
        self._billing = Billing(self._target.bootstrap, f"A.{TRANSFERS}")
        self._billing.start()

    # --- what readers see ---------------------------------------------------------------------------------------

    def await_progress(self) -> None:
        """Wait until the target has records that it did not have."""
        before = self._records()

        def has_progress() -> bool:
            if self._records() != before:
                return True
            self._mirror.ensure()
            return False

        wait_until(has_progress, _PROGRESS_S, lambda: f"nothing was copied: {self._mirror.log()[-2_000:]}")

    def _records(self) -> int:
        with contextlib.suppress(KafkaError):
            return self._copy.read()
        return sum(map(len, self._copy.values.values()))

    def _audit(self) -> None:
        """While no mirror writes, and what was decided has its markers: what is visible now stays as it is."""
        self._wait_for_markers(self._target, _PREPARED)
        self._copy.read()
        self.report.audits += 1
        self.report.torn += len(self._copy.torn)
        self.report.unbalanced += self._copy.balance != 0

    def _wait_for_markers(self, cluster: Cluster, states: tuple[str, ...]) -> None:
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            wait_until(
                lambda: not admin.list_transactions(states=states),
                _PROGRESS_S,
                lambda: f"transactions stay {states}",
                pause_s=0.05,
            )

    # --- the end ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Everything is quiet: the mirror copies the rest, the application bills it, and all is compared."""
        for teller in self._tellers:
            teller.stop()
        self._wait_for_markers(self._source, _UNDECIDED)
        total = self._origin.read()

        def is_copied() -> bool:
            self._mirror.ensure()
            return self._records() >= total

        holds_within(_PROGRESS_S, is_copied, pause_s=0.2)
        holds_within(_PROGRESS_S / 3, lambda: self._billed().total() >= total, pause_s=0.5)
        self._billing.stop()
        self._mirror.kill()
        self._audit()

    def _billed(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for cluster in (self._source, self._target):
            ledger = Ledger(cluster.bootstrap, BILLED, 1)
            ledger.read()
            found.update(value for values in ledger.values.values() for value in values)
        return found

    def check(self) -> None:
        report, origin = self.report, self._origin
        difference = compared(origin.values, self._copy.values, self._billed())
        for each in fields(difference):
            setattr(report, each.name, getattr(difference, each.name))
        report.transfers = len(origin.parts)
        report.wrong += difference.wrong
        acknowledged = {name for teller in self._tellers for name in teller.committed}
        if absent := acknowledged - origin.parts.keys():
            report.wrong.append(f"{len(absent)} acknowledged transfers are not at the source")
        if origin.torn or origin.doubled:
            report.wrong.append("the source itself is torn, or has a record twice")


def _cluster(kind: str, directory: Path, nodes: int) -> Cluster:
    if kind == "apache":
        return apache_cluster(
            directory, nodes, cluster_id=base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        )
    return einmal_cluster(directory, nodes)


def _run(arguments: argparse.Namespace, peer: bool) -> MirrorReport:
    with tempfile.TemporaryDirectory(prefix="einmal-mirror-", ignore_cleanup_errors=True) as folder:
        directory = Path(folder)
        source = _cluster(arguments.source, directory / "A", arguments.nodes)
        target = _cluster(arguments.target, directory / "B", arguments.nodes)
        try:
            source.start()
            target.start()
            kind = MirrorMaker if peer else OurMirror
            mirror = kind(directory, source.bootstrap, target.bootstrap)
            campaign = MirrorCampaign((source, target), mirror, arguments.seed, arguments.away)
            return campaign.run(arguments.kills)
        finally:
            source.stop()
            target.stop()


def main() -> None:
    options = parser(__doc__, kills=20)
    options.set_defaults(seed=1)
    options.add_argument("--source", choices=("einmal", "apache"), default="einmal")
    options.add_argument("--target", choices=("einmal", "apache"), default="einmal")
    options.add_argument("--nodes", type=int, default=1, help="of each cluster")
    options.add_argument("--away", type=float, default=150.0, help="seconds that the target is away at most")
    options.add_argument("--peer", action="store_true", help="then MirrorMaker 2, on the same schedule")
    arguments = options.parse_args()
    ours = _run(arguments, peer=False)
    print(json.dumps(vars(ours)))
    if arguments.peer:
        print(json.dumps(vars(_run(arguments, peer=True))))
    faults = (ours.torn, ours.unbalanced, ours.lost, ours.doubled, ours.surplus, ours.reordered)
    if any((*faults, ours.billed_never, ours.billed_twice, ours.billed_wrong, ours.wrong)):
        sys.exit(1)


if __name__ == "__main__":
    main()
