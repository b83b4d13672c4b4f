"""Where the tests of this folder find their instruments: `harness/` has no tests, and its modules are plain imports."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "harness"))
