"""Compare loaded payments, which stdin has one a line, with clean ones. Exit status 1 if they differ."""

import argparse
import json
from collections import Counter

from examples.program import FRESH, difference, lines, objects, run
from examples.repaired_payments.generate import payments


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    wanted = Counter(json.dumps(each, sort_keys=True) for each in payments(parser.parse_args().seed))
    loaded, torn = objects(lines())
    found = Counter(json.dumps(each, sort_keys=True) for each in loaded)
    lost, repeated, wrong = difference(wanted, found)
    print(
        f"{wanted.total():,} payments, {found.total() + torn:,} loaded: "
        f"{lost} missing, {repeated + wrong + torn} too many or wrong"
    )
    if found and set(found.values()) == {found.total() // wanted.total()} != {1}:
        print(f"Each payment is there {found.total() // wanted.total()} times: was it produced as often? {FRESH}")
    return 1 if lost or repeated or wrong or torn else 0


if __name__ == "__main__":
    run(main)
