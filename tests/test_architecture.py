"""The architecture's documentation agrees with the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPLANATION = ROOT / "docs" / "explanation"


def test_the_picture_is_drawn_from_its_source(tmp_path: Path) -> None:
    source = tmp_path / "draw_architecture.py"
    source.write_text((EXPLANATION / "draw_architecture.py").read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run([sys.executable, source], check=True)
    assert (tmp_path / "architecture.svg").read_text(encoding="utf-8") == (EXPLANATION / "architecture.svg").read_text(
        encoding="utf-8"
    )
