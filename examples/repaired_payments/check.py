"""Compare loaded payments, which stdin has one a line, with clean ones. Exit status 1 if they differ."""

import argparse
import json
import sys
from collections import Counter

from examples.repaired_payments.generate import payments


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    wanted = Counter(json.dumps(each, sort_keys=True) for each in payments(parser.parse_args().seed))
    found = Counter(json.dumps(json.loads(line), sort_keys=True) for line in sys.stdin)
    lost, more = (wanted - found).total(), (found - wanted).total()
    print(f"{wanted.total():,} payments, {found.total():,} loaded: {lost} missing, {more} too many or wrong")
    return 1 if lost or more else 0


if __name__ == "__main__":
    sys.exit(main())
