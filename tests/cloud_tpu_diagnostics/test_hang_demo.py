"""The example of a job that hangs names the process that the others wait for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "examples" / "hang_demo.py"


def test_the_demo_names_the_process_that_the_others_wait_for(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--out", str(tmp_path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no progress") == 3
    assert "2 of 3 wait in all_reduce" in done.stdout
    assert "/2 waits in next_batch" in done.stdout
