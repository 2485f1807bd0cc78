"""Settings of a session whose queries have a few rows: to compile each plan to Java costs more than to run it."""

from typing import Final

FEW_ROWS: Final = {
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
