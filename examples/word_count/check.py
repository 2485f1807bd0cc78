"""Compare the changes of the counts with an independent count of the text.

Reads the topic from stdin, as ``WORD COUNT`` lines in the topic's order. A batch has as many lines as
``maxOffsetsPerTrigger`` allows, and writes the count of each word that is in them.
"""

import argparse
import re
from collections import Counter, defaultdict
from pathlib import Path

from examples.program import difference, lines, run


def changes(text: list[str], batch: int) -> list[tuple[str, int]]:
    """Words and their new counts, batch by batch."""
    counts: Counter[str] = Counter()
    found = []
    for start in range(0, len(text), batch):
        words = [word for line in text[start : start + batch] for word in re.findall("[a-z]+", line.lower())]
        counts.update(words)
        found += [(word, counts[word]) for word in dict.fromkeys(words)]
    return found


def by_word(changes: list[tuple[str, int]]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for word, count in changes:
        found[word].append(count)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="The file that was produced, once.")
    parser.add_argument("--batch", type=int, default=50, help="maxOffsetsPerTrigger of the pipeline.")
    options = parser.parse_args()
    expected = changes(options.text.read_text().splitlines(), options.batch)
    found, torn = [], 0
    for line in lines():
        word, _, count = line.rstrip("\n").partition(" ")
        if count.isdecimal():
            found.append((word, int(count)))
        else:
            torn += 1
    lost, repeated, wrong = difference(Counter(expected), Counter(found))
    # Of a word, the last change is its count.
    late = 0 if lost or repeated or wrong else sum(each != sorted(each) for each in by_word(found).values())
    print(
        f"{len(expected):,} changes of {len(by_word(expected)):,} counts: {lost} lost, {repeated} repeated, "
        f"{wrong + torn} wrong, {late} late"
    )
    return 1 if lost or repeated or wrong or torn or late else 0


if __name__ == "__main__":
    run(main)
