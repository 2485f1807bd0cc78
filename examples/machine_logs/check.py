"""Compare the lines of the topic with the numbers that the services have written.

Reads the topic from stdin, as ``einmal topic consume --format json`` prints it.
"""

import argparse
import json
import sys
from collections import Counter

from examples.machine_logs.write import SERVICES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=20_000, help="Of each service.")
    lines = parser.parse_args().lines
    found = Counter(tuple(json.loads(line)["value"].split(" ")[:2]) for line in sys.stdin)
    expected = {(service, str(number)) for service in SERVICES for number in range(1, lines + 1)}
    lost, strange = len(expected - found.keys()), len(found.keys() - expected)
    repeated = sum(count - 1 for count in found.values())
    print(f"{len(expected):,} lines written: {lost} lost, {repeated} repeated, {strange} that nobody has written")
    sys.exit(1 if lost or repeated or strange else 0)


if __name__ == "__main__":
    main()
