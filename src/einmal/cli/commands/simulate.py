"""``einmal simulate``: schedules of the simulation, one per seed; the result on stdout, progress on stderr.

The simulated code is single-threaded and deterministic; only here, outside of it, several processes share the seeds.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.messages import note
from einmal.compiled import PURE

if TYPE_CHECKING:
    from einmal.simulation.result import Result


_HASH_SEED: Final = "1"
_OTHER_HASH_SEED: Final = "4242"


class Workload(StrEnum):
    BROKER = "broker"
    CLUSTER = "cluster"
    DELAYED = "delayed"
    TWO_PHASE = "two-phase"
    PIPELINE = "pipeline"
    MIRROR = "mirror"
    INGEST = "ingest"


def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 100,
    start: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    workload: Annotated[
        Workload,
        typer.Option(
            help="A broker with its clients, a cluster with clients, a cluster with delayed requests, a database "
            "that is committed with a topic, the pipeline's commit protocol, a mirror between two clusters, or an "
            "ingester."
        ),
    ] = Workload.BROKER,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = min(2, os.cpu_count() or 1),
    rerun: Annotated[
        bool,
        typer.Option("--rerun", help="Run each seed again, interpreted and with another PYTHONHASHSEED, and compare."),
    ] = False,
    shrink: Annotated[
        int | None, typer.Option(min=0, help="Failing seed to shrink to a short list of faults that fails too.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Run the real broker and client code on virtual time, network and disk, with faults decided by a seed."""
    if shrink is not None:
        _shrink(workload, shrink)
        return
    results = _results(workload, range(start, start + seeds), jobs, _HASH_SEED)
    differing: list[int] = []
    if rerun:
        # For processes that start from now on.
        os.environ[PURE] = "1"
        again = _results(workload, range(start, start + seeds), jobs, _OTHER_HASH_SEED)
        differing = [one.seed for one, other in zip(results, again, strict=True) if one != other]
        for seed in differing:
            typer.echo(f"seed {seed} is another run in another process; again: {replay(workload, seed)}", err=True)
    failed = [result for result in results if result.anomalies]
    summary = {
        "schedules": len(results),
        "anomalies": sum(len(result.anomalies) for result in failed),
        "virtual_seconds": round(sum(result.virtual_seconds for result in results), 3),
        "trace_digest": hashlib.sha256("".join(result.trace_digest for result in results).encode()).hexdigest(),
    }
    if output.is_document:
        typer.echo(encoded({**summary, "failures": [asdict(result) for result in failed]}, output))
    else:
        for name, value in summary.items():
            typer.echo(f"{name:<16} {value}")
    raise typer.Exit(1 if failed or differing else 0)


def _results(workload: Workload, seeds: range, jobs: int, hash_seed: str) -> list[Result]:
    """Report progress and failures; ``hash_seed``: of the started processes."""
    results = []
    begun = reported = time.monotonic()
    for result in _run(workload, seeds, jobs, hash_seed):
        results.append(result)
        if result.anomalies:
            _tell(workload, result)
        now = time.monotonic()
        if now - reported >= _progress_interval() or len(results) == len(seeds):
            reported = now
            _progress(len(results), len(seeds), now - begun)
    return results


def _shrink(workload: Workload, seed: int) -> None:
    """Data on stdout: the faults, one per line."""
    from einmal.simulation.profile import cluster_profile_of, delayed_profile_of, profile_of, two_phase_profile_of
    from einmal.simulation.shrink import kinds_of, shrink

    profiles = {
        Workload.BROKER: profile_of,
        Workload.CLUSTER: cluster_profile_of,
        Workload.DELAYED: delayed_profile_of,
        Workload.TWO_PHASE: two_phase_profile_of,
    }
    if workload not in profiles:
        raise typer.BadParameter(f"schedules of {workload.value} are no lists of faults")
    profile = profiles[workload](seed)
    kinds = kinds_of(profile)
    if not kinds:
        typer.echo(f"seed {seed} does not fail", err=True)
        raise typer.Exit(1)
    short = shrink(profile, tried=lambda tries, candidate: _tell_short(tries, len(candidate.faults)))
    typer.echo(f"{', '.join(sorted(kinds))} with {len(short.faults)} of {len(profile.faults)} faults", err=True)
    for fault in short.faults:
        typer.echo(str(fault))


def _tell_short(tries: int, faults: int) -> None:
    typer.echo(f"after {tries} tries: {faults} faults", err=True)


def _tell(workload: Workload, result: Result) -> None:
    typer.echo(f"seed {result.seed} failed; again: {replay(workload, result.seed)}", err=True)
    for anomaly in result.anomalies:
        typer.echo(f"  {anomaly}", err=True)


def replay(workload: Workload, seed: int) -> str:
    """The command that runs one seed again."""
    return f"einmal simulate --workload {workload.value} --start {seed} --seeds 1"


def _progress_interval() -> float:
    """Seconds. A log file should not fill with lines."""
    return 0.2 if sys.stderr.isatty() else 30.0


def _progress(done: int, wanted: int, seconds: float) -> None:
    end = "\r" if sys.stderr.isatty() and done != wanted else "\n"
    note(f"{done}/{wanted} schedules, {done / max(seconds, 0.001):.1f} per second", end=end)


def _run(workload: Workload, seeds: range, jobs: int, hash_seed: str) -> Iterator[Result]:
    """The results, in the order of the seeds."""
    if (jobs == 1 or len(seeds) == 1) and hash_seed == _HASH_SEED:
        try:
            yield from (_one(workload, seed) for seed in seeds)
        except KeyboardInterrupt:
            # At a usual end, the interpreter would complain of each coroutine of the schedule that was broken off.
            os._exit(130)
        return
    # Only here: every command would wait for these modules.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # A fresh interpreter per process, on every platform: nothing of this one leaks into a schedule.
    context = multiprocessing.get_context("spawn")
    os.environ["PYTHONHASHSEED"] = hash_seed
    # A terminal's Ctrl-C reaches every process: these do not report it.
    at_once = (signal.SIGINT, signal.SIG_DFL)
    pool = ProcessPoolExecutor(min(jobs, len(seeds)), mp_context=context, initializer=signal.signal, initargs=at_once)
    try:
        yield from pool.map(_one, [workload] * len(seeds), seeds, chunksize=max(1, min(8, len(seeds) // jobs)))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _one(workload: Workload, seed: int) -> Result:
    return _runner(workload)(seed)


def _runner(workload: Workload) -> Callable[[int], Result]:
    if workload is Workload.PIPELINE:
        from einmal.simulation.protocols import commit_protocol

        return commit_protocol.run_seed
    if workload is Workload.MIRROR:
        from einmal.simulation.protocols import mirror_protocol

        return mirror_protocol.run_seed
    if workload is Workload.INGEST:
        from einmal.simulation.protocols import ingest_protocol

        return ingest_protocol.run_seed
    from einmal.simulation import run

    return {
        Workload.BROKER: run.run_seed,
        Workload.CLUSTER: run.run_cluster_seed,
        Workload.DELAYED: run.run_delayed_seed,
        Workload.TWO_PHASE: run.run_two_phase_seed,
    }[workload]
