"""Compare the lines of the topic with the lines that the services have written, which their numbers determine.

Reads the topic from stdin, as ``einmal topic consume --format json`` prints it. The order of lines is not compared:
there is one inside of a file, and none between the files of a service.
"""

import argparse
from collections import Counter

from examples.machine_logs.write import SERVICES, line_of
from examples.program import difference, lines, record_values, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=20_000, help="Of each service.")
    numbers = range(1, parser.parse_args().lines + 1)
    found = Counter(record_values(lines()))
    expected = Counter(line_of(service, number) for service in SERVICES for number in numbers)
    lost, repeated, strange = difference(expected, found)
    print(
        f"{expected.total():,} lines written: {lost} lost, {repeated} repeated, "
        f"{strange} torn or that nobody has written"
    )
    return 1 if lost or repeated or strange else 0


if __name__ == "__main__":
    run(main)
