"""What the property tests of the Spark package draw."""

from __future__ import annotations

from hypothesis import strategies as st

# Repeated: what Hypothesis draws byte by byte may have 8 KiB in all.
LARGE = st.binary(min_size=9, max_size=9).map(lambda part: part * 1_000)
