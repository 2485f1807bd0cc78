"""The proxy of the fixture ``kafka_proxy``: the frame proxy with the faults that tests of applications want most."""

from __future__ import annotations

from einmal.chaos.proxy.rules import Rule
from einmal.chaos.proxy.server import KafkaProxy
from einmal.client import Producer


class ApplicationProxy(KafkaProxy):
    """An application under test connects to ``bootstrap_servers``; ``on`` has all faults of single requests."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self._upstream = bootstrap_servers

    def drop_next_answer(self, *apis: str, transactional_id: str | None = None) -> Rule:
        """Let the brokers carry out the next such request, and lose its answer: ``on(...).drop_answer().once()``.

        The client notices by its request timeout, so set a short one.
        """
        return self.on(*apis, transactional_id=transactional_id).drop_answer().once()

    def fence(self, transactional_id: str) -> None:
        """Fence the current owner of a transactional id, as a second instance of the application does."""
        settings = {"bootstrap.servers": self._upstream, "transactional.id": transactional_id}
        with Producer(settings) as successor:
            successor.init_transactions()
