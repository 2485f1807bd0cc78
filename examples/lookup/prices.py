"""The price list, a file that changes at any time. ``python -m examples.lookup.prices 31`` sets the price."""

import argparse
import json
from pathlib import Path

FILE = Path("build/examples/prices.json")
ITEM = "tea"


def price(file: str) -> int:
    """What the item costs now, as each task asks for each cart."""
    return int(json.loads(Path(file).read_text())[ITEM])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("price", type=int)
    options = parser.parse_args()
    # Renamed, so that a task reads the old list or the new one.
    changed = FILE.with_suffix(".new")
    FILE.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text(json.dumps({ITEM: options.price}))
    changed.replace(FILE)
    print(f"{ITEM} costs {options.price}")


if __name__ == "__main__":
    main()
