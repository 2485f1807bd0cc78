"""``python -m tests.mutation``: a sampled mutation run; prints the score and the survivors."""

from __future__ import annotations

import argparse

from tests.mutation.run import MACHINES, run, sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tested at the same time")
    parser.add_argument("--only", choices=[machine.name for machine in MACHINES], help="one machine")
    options = parser.parse_args()
    machines = [machine for machine in MACHINES if options.only in (None, machine.name)]
    run(sample(machines, options.count, options.seed), options.jobs)


if __name__ == "__main__":
    main()
