"""Spark prints the options of a source in plans, its UI and its event log; this hides those with secrets.

By default Spark redacts names and values with password, secret or token, which leaves a private key in PEM readable.
py4j, by which Python calls the JVM, logs the arguments and results of every call at DEBUG.
"""

from __future__ import annotations

import logging
from typing import Final

from pyspark.sql import SparkSession

from einmal.security.redaction import SECRET_NAMES

_SETTING: Final = "spark.sql.redaction.options.regex"
_SECRETS: Final = f"(?i:token|jaas|{SECRET_NAMES})"
"""Spark searches values too, where a token or a login module may be anywhere."""


def redact_plans(spark: SparkSession) -> None:
    """Extend ``spark.sql.redaction.options.regex`` of a session, once; what it hides already stays hidden.

    Limits py4j's log to INFO: options and keys are arguments of its calls.
    """
    logging.getLogger("py4j").setLevel(logging.INFO)
    existing = spark.conf.get(_SETTING, None)
    if not existing:
        spark.conf.set(_SETTING, _SECRETS)
    elif _SECRETS not in existing:
        spark.conf.set(_SETTING, f"{existing}|{_SECRETS}")
