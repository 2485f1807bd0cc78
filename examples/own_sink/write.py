"""Write a batch of squares into a directory. A batch whose version is in the directory already is not written again."""

from __future__ import annotations

import argparse

from einmal.spark import session, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("version", type=int, help="The number of the batch, greater than that of the one before.")
    options = parser.parse_args()
    spark = session("own-sink", quick=True)
    first = options.version * 1_000
    squares = spark.range(first, first + 1_000, 1, 2).selectExpr("id", "id * id AS square")
    written = (
        write(squares)
        .format("examples.own_sink.json_lines:JsonLines")
        .option("path", options.directory)
        .option("transactional.id", "squares")
        .option("txnVersion", str(options.version))
        .save()
    )
    print(written)
    spark.stop()


if __name__ == "__main__":
    main()
