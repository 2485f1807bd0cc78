"""What a test logs is captured as text, whichever libraries the tests before it have imported."""

from __future__ import annotations

import logging

import pytest
from pyspark.logger import PySparkLogger


def test_a_logger_of_pyspark_changes_the_form_of_no_captured_text(caplog: pytest.LogCaptureFixture) -> None:
    # As pytest does for a logger that does not propagate.
    logger = PySparkLogger("of PySpark")
    logger.addHandler(caplog.handler)
    logger.removeHandler(caplog.handler)
    logging.getLogger(__name__).warning("in %s", "words")
    assert caplog.text.rstrip().endswith("in words")
