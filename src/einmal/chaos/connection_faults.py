"""Faults in the connections of clients, drawn by the seed or stated by rules: the frame proxy before a cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from einmal.chaos.proxy.clients import settings_behind, upstream_tls
from einmal.chaos.proxy.rules import Rule, Trigger
from einmal.chaos.proxy.server import FaultRecord, KafkaProxy

_PARTITION_S: Final = (0.3, 8.0)
_DELAY_S: Final = (0.1, 4.0)
"""Shorter and longer than the request timeout of the workloads."""
_ABSENT_S: Final = 4.0
"""How long a fault waits for a request that gets it."""
_LOOK_S: Final = 0.05
_TIMES_MAX: Final = 3
_APIS: Final = (("EndTxn",), ("Produce",), ("TxnOffsetCommit", "OffsetCommit"))
_PARTITION: Final = "partition"
_WEIGHTS: Final = {"drop": 4, "disconnect": 3, "delay": 2, "duplicate": 2, _PARTITION: 2}


class _Proxied:
    """A proxy on the loopback interface. Other clients of the cluster, and its brokers, notice nothing.

    TLS reaches from the proxy to the brokers; clients connect to the proxy without it.
    """

    def __init__(self, config: Mapping[str, Any], port: int = 0) -> None:
        """``config``: of clients that connect to the cluster. ``port``: for the first bootstrap server; 0: any.

        Raises ConfigError; OSError for a port that is in use.
        """
        self._proxy = KafkaProxy(str(config["bootstrap.servers"]), port=port, upstream_tls=upstream_tls(config))
        self._proxy.start()
        self.config: Mapping[str, Any] = settings_behind(config, self._proxy.bootstrap_servers)
        """Settings of clients that get the faults."""

    def close(self) -> None:
        self._proxy.close()

    async def calm(self) -> None:
        """Let everything pass."""
        self._proxy.clear()
        self._proxy.heal()

    def _note(self, note: Callable[[str], None]) -> None:
        """Those that have occurred since the last time."""
        for fault in self._proxy.take_faults():
            note(_text(fault))


class RuledConnections(_Proxied):
    """The faults of the rules, whenever a request matches one."""

    calm_s: ClassVar = (0.0, 0.0)

    def __init__(self, config: Mapping[str, Any], rules: Sequence[Rule], port: int = 0) -> None:
        """Raises ConfigError; OSError for a port that is in use."""
        super().__init__(config, port)
        for rule in rules:
            self._proxy.add(rule)

    async def inject(self, _chance: random.Random, note: Callable[[str], None]) -> None:
        """Until cancelled."""
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                self._note(note)
        finally:
            self._note(note)


class ConnectionFaults(_Proxied):
    """Faults that a seed draws: lost and late answers, broken connections, requests sent twice, partitions."""

    calm_s: ClassVar = (1.0, 4.0)

    async def inject(self, chance: random.Random, note: Callable[[str], None]) -> None:
        """One fault, to its end."""
        (fault,) = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        if fault == _PARTITION:
            await self._partition(chance, note)
        else:
            await self._requests(fault, chance, note)

    async def _requests(self, fault: str, chance: random.Random, note: Callable[[str], None]) -> None:
        """Disturb the next few requests of one kind."""
        times = chance.randint(1, _TIMES_MAX)
        rule = _rule(self._proxy.on(*chance.choice(_APIS)), fault, chance).times(times)
        give_up_at = asyncio.get_running_loop().time() + _ABSENT_S
        try:
            while rule.fired < times and asyncio.get_running_loop().time() < give_up_at:
                await asyncio.sleep(_LOOK_S)
                self._note(note)
        finally:
            self._proxy.clear()
            self._note(note)

    async def _partition(self, chance: random.Random, note: Callable[[str], None]) -> None:
        brokers = self._proxy.brokers
        cut = [chance.choice(brokers)] if brokers and chance.random() < 0.75 else brokers
        requests, answers = chance.choice([(True, True), (True, False), (False, True)])
        what = "requests and answers" if requests and answers else "requests" if requests else "answers"
        note(f"partition: no {what} between clients and {_names(cut)}")
        self._proxy.partition(*cut, requests=requests, answers=answers)
        try:
            await asyncio.sleep(chance.uniform(*_PARTITION_S))
        finally:
            self._proxy.heal()
        note("the partition is healed")


def _rule(trigger: Trigger, fault: str, chance: random.Random) -> Rule:
    match fault:
        case "drop":
            return trigger.drop_answer()
        case "disconnect":
            return trigger.disconnect(after=chance.random() < 0.5)
        case "delay":
            return trigger.delay(round(chance.uniform(*_DELAY_S), 1))
        case _:
            return trigger.duplicate()


def _text(fault: FaultRecord) -> str:
    # Until metadata has named it.
    receiver = "a bootstrap server" if fault.broker is None else f"broker {fault.broker}"
    return f"{fault.what}: {fault.api}, {receiver}"


def _names(brokers: list[int]) -> str:
    return f"broker {brokers[0]}" if len(brokers) == 1 else "all brokers"
