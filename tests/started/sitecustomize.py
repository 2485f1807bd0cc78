"""What every Python process that a test starts begins with: it has no Hypothesis, as its user has none.

kio registers a strategy for each of its types wherever it can import Hypothesis, which takes a fifth of a second, in
every broker, client and Spark worker of the tests.
"""

import sys
from typing import Any

modules: dict[str, Any] = sys.modules
modules["hypothesis"] = None
