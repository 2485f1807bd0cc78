"""The phases of a campaign, and the draw of its faults."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from einmal.chaos.report import CampaignReport

R = TypeVar("R", bound=CampaignReport)


class Campaign(ABC, Generic[R]):
    """A system that starts, has faults, comes undisturbed to its end, and is checked. ``chance``: draws by the seed."""

    def __init__(self, report: R, seed: int) -> None:
        self.report = report
        self.chance = random.Random(seed)

    def run(self, kills: int) -> R:
        began = time.monotonic()
        try:
            self.start()
            self.disturb(kills)
            self.finish()
            self.check()
        finally:
            self.close()
            self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    @abstractmethod
    def start(self) -> None:
        """Start all processes."""

    @abstractmethod
    def disturb(self, kills: int) -> None:
        """Inject so many faults, and note each in the report."""

    @abstractmethod
    def finish(self) -> None:
        """Let the system complete its work without a fault."""

    @abstractmethod
    def check(self) -> None:
        """Add to the report what is wrong."""

    @abstractmethod
    def close(self) -> None:
        """End all processes, also after an error in ``start``."""


class RandomFaults(Campaign[R]):
    """Draws each fault by its weight, after a calm; the next one comes when the system has made progress.

    ``calm_s``: bounds of the calm.
    """

    def __init__(self, report: R, seed: int, faults: Mapping[str, int], calm_s: tuple[float, float]) -> None:
        super().__init__(report, seed)
        self._faults = faults
        self._calm_s = calm_s

    def disturb(self, kills: int) -> None:
        self.await_progress()
        while self.report.kills.total() < kills:
            (fault,) = self.chance.choices(list(self._faults), list(self._faults.values()))
            self.calm()
            if name := self.inject(fault):
                self.await_progress()
                self.report.note(name)
                self.recovered(name)

    def calm(self) -> None:
        time.sleep(self.chance.uniform(*self._calm_s))

    @abstractmethod
    def inject(self, fault: str) -> str:
        """Return the name under which the fault is counted; empty if there was nothing to kill."""

    @abstractmethod
    def await_progress(self) -> None:
        """Wait until the system has completed more work than before. Raises Stalled."""

    def recovered(self, fault: str) -> None:
        """Called when a fault is counted. By default nothing."""
