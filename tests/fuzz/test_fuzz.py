"""A short run of the fuzzer; ``make fuzz`` is the long one."""

from pathlib import Path

import pytest

from tests.fuzz.run import fuzz
from tests.suite.patience import patient

FRAMES = 10_000
LATENCY_SECONDS_MAX = 5.0
"""Other tests share the machine; the long run has it for itself and allows one second."""


@pytest.mark.system
@pytest.mark.slow
def test_a_fuzzed_broker_lives_and_holds_up_no_other_client(tmp_path: Path) -> None:
    verdict = fuzz(tmp_path, FRAMES, seed=1, latency_seconds_max=patient(LATENCY_SECONDS_MAX))
    assert verdict.frames >= FRAMES
    assert not verdict.problems, str(verdict)
