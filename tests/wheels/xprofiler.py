"""Run in an empty environment with the wheel and common: the command, and its messages without its extras."""

import subprocess
import sys
import tempfile
from pathlib import Path

import xprofiler
from xprofiler.cli import COMMAND_NAMES

assert "site-packages" in xprofiler.__file__

COMMAND = str(Path(sys.executable).with_name("xprofiler"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


assert run("--version").stdout == f"xprofiler {xprofiler.__version__}\n"
for name in COMMAND_NAMES:
    assert name in run("--help").stdout
    assert run(name, "--help").returncode == 0

package = Path(xprofiler.__file__).parent
for beside in (
    "gcloud/compute_api.json",
    "gcloud/hypercomputecluster_api.json",
    "gcloud/tpu_api.json",
    "serve/static/page.css",
    "serve/static/profile_summary.js",
    "viewers/startup/gke_manifest.yaml",
    "viewers/startup/startup_script.sh",
):
    assert (package / beside).stat().st_size, beside

with tempfile.TemporaryDirectory() as folder:
    missing = run("capture", "-o", "local", "-f", "jax", "-n", "127.0.0.1:1", "-l", folder, "-d", "100")
    assert missing.returncode == 1, missing
    assert "127.0.0.1:1" in missing.stderr, missing.stderr
    session = Path(folder, "plugins", "profile", "s")
    session.mkdir(parents=True)
    (session / "h.xplane.pb").write_bytes(b"\x0a\x00")
    for command in (["serve", "-l", folder], ["summary", folder]):
        missing = run(*command)
        assert missing.returncode == 1, missing
        assert "cloud-diagnostics-xprof[serve]" in missing.stderr, missing.stderr

print("xprofiler: prints help, reports a missing host, and names its extras")
