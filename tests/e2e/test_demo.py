"""The demo ends however it was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ..xprofiler.made_profiles import tpu_session

pytest.importorskip("xprof")

_EXAMPLES = Path(__file__).parents[2] / "examples"
_BROWSER = """\
#!{python}
import sys, urllib.request
(picture,) = [word.partition("=")[2] for word in sys.argv if word.startswith("--screenshot=")]
page = urllib.request.urlopen(sys.argv[-1], timeout=60).read()
open(picture, "wb").write(page)
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_the_viewer_ends_where_sigint_is_ignored_as_in_a_scripts_background_job(tmp_path: Path) -> None:
    tpu_session(tmp_path / "logs")
    browser = tmp_path / "bin" / "chromium"
    browser.parent.mkdir()
    browser.write_text(_BROWSER.format(python=sys.executable))
    browser.chmod(0o755)
    program = f"""
        import pathlib, sys
        sys.path.insert(0, {str(_EXAMPLES)!r})
        import demo
        print(demo.picture_of_the_profiles(pathlib.Path({str(tmp_path / "logs")!r}), pathlib.Path("picture.png")))
    """
    # A shell without job control starts a background job with SIGINT ignored.
    script = '"$@" & wait $!'
    with subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{browser.parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            output, errors = job.communicate(timeout=80)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            raise
    assert (job.returncode, output) == (0, "\n"), errors
    assert b"TPU v5p" in (tmp_path / "picture.png").read_bytes()
