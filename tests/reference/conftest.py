"""Reference tests use the tiny networks of the criteria's own tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "criteria"))
sys.path.insert(0, str(Path(__file__).parent))
