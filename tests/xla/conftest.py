"""These tests need torch_xla, in an environment of its own: `make test-xla`."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("WORKBENCH_XLA") else ["test_cores.py", "test_xla.py"]
