"""Write a batch of squares into the directory: ``python -m examples.own_target.write DIRECTORY VERSION``."""

from __future__ import annotations

import sys

from einmal.spark import session, write


def main(directory: str, version: str) -> None:
    spark = session("own-target", quick=True)
    first = int(version) * 1_000
    squares = spark.range(first, first + 1_000, 1, 2).selectExpr("id", "id * id AS square")
    written = (
        write(squares)
        .format("examples.own_target.json_lines:JsonLines")
        .option("path", directory)
        .option("transactional.id", "squares")
        .option("txnVersion", version)
        .save()
    )
    print(written)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
