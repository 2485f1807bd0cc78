"""The command line of a campaign: a seed, a folder that is kept where something is wrong, and the exit status."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from einmal.chaos.report import CampaignReport


def parser(doc: str | None, *, kills: int) -> argparse.ArgumentParser:
    """``kills``: the default."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--kills", type=int, default=kills)
    made.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    made.set_defaults(keep=False)
    return made


def with_keep(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    made.add_argument("--keep", action="store_true", help="keep logs and data also of a clean run")
    return made


def run_in_folder(
    name: str,
    asked: argparse.Namespace,
    run: Callable[[Path], CampaignReport],
    *,
    is_good: Callable[[CampaignReport], bool] = lambda report: not report.wrong,
) -> bool:
    """Run a campaign in a folder of its own, which is removed after a good run; whether it was good."""
    folder = Path(tempfile.mkdtemp(prefix=f"einmal-{name}-"))
    # PostgreSQL's user must be able to pass.
    folder.chmod(0o711)
    print(f"{name}: seed {asked.seed}, {asked.kills} kills, in {folder}", flush=True)
    report = run(folder)
    print(report, flush=True)
    good = is_good(report)
    if asked.keep or not good:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return good
