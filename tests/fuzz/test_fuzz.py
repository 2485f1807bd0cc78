"""A short run of the fuzzer; ``make fuzz`` is the long one."""

from pathlib import Path

import pytest

from tests.fuzz.run import fuzz

LATENCY_SECONDS_MAX = 30.0
"""Other tests share the machine; ``make fuzz`` has it for itself and allows half a second."""


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("frames", [400, pytest.param(30_000, marks=pytest.mark.long)])
def test_a_fuzzed_broker_lives_and_holds_up_no_other_client(tmp_path: Path, frames: int) -> None:
    verdict = fuzz(tmp_path, frames, seed=1, latency_seconds_max=LATENCY_SECONDS_MAX)
    assert verdict.frames >= frames
    assert not verdict.problems, str(verdict)
