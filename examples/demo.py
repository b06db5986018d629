"""The life of a training job in a minute: trained, profiled, killed, resumed, and accounted for.

Starts `train_digits.py`, has it profiled from outside while it trains, kills it without warning, and starts the same
command again, which goes on from the last checkpoint. Then it asks where the time went, what the run did and why a step
takes its time, and opens the profiles in a browser. Everything stays under `out/`; no cloud is used.
"""

import argparse
import contextlib
import datetime
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import google_cloud_mldiagnostics.cli
import ml_goodput_measurement.cli
import xprofiler.cli
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import log_directory

TRAINING_SCRIPT = Path(__file__).with_name("train_digits.py")
PROFILE_MS = 1000


def train(command: list[str], at_steps: Mapping[int, Callable[[subprocess.Popen[str]], object]]) -> int:
    """Run the training job, and act on it as soon as it has printed a step.

    Returns:
        Its exit code; the signal's number, negative, if it was killed.
    """
    waiting = dict(sorted(at_steps.items()))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            print(f"  {line}", end="", flush=True)
            done = re.match(r"step +(\d+)", line)
            while done and waiting and int(done[1]) >= min(waiting):
                waiting.pop(min(waiting))(job)
    return job.returncode


def picture_of_the_profiles(folder: Path, picture: Path) -> str:
    """Serve a folder of profiles for a moment, and take a picture of its summary page.

    Returns:
        Why there is no picture; empty if there is one.
    """
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        return "no picture: there is no Chromium on this machine"
    command = [
        str(Path(sys.executable).with_name("xprofiler")),
        "serve",
        "-l",
        str(folder),
        "--port",
        "0",
        "--no-browser",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,1600"]
            with tempfile.TemporaryDirectory() as profile:
                flags += [f"--user-data-dir={profile}", f"--screenshot={picture.resolve()}"]
                taken = subprocess.run([browser, *flags, url], capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            return f"no picture: {browser} did not end within a minute"
        finally:
            server.terminate()  # A script's background jobs ignore SIGINT, and so do their children.
    return "" if picture.exists() else f"no picture: {browser} printed {taken.stderr.strip()[-200:]}"


def print_paragraph(text: str) -> None:
    """Prints a headline."""
    print(f"\n{text}", flush=True)


def main() -> int:
    """Runs the demo; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help="of training, in all (default: %(default)s)")
    parser.add_argument("--profile-at", type=int, default=40, metavar="STEP", help="default: %(default)s")
    parser.add_argument("--profile-after", type=int, default=120, metavar="STEP", help="default: %(default)s")
    parser.add_argument("--kill-after", type=int, default=260, metavar="STEP", help="default: %(default)s")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for all that is written (default: out)")
    arguments = parser.parse_args()

    # The job and the reports below find each other by this folder; cloud detection is off.
    os.environ["ML_DIAGNOSTICS_DIR"] = str(arguments.out.resolve() / "ml-diagnostics")
    os.environ["ML_DIAGNOSTICS_BACKEND"] = "local"
    run = f"digits-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    command = [sys.executable, str(TRAINING_SCRIPT), "--run-name", run]
    command += ["--steps", str(arguments.steps), "--checkpoint-every", str(arguments.checkpoint_every)]
    command += ["--profile-at", str(arguments.profile_at)]
    command += ["--print-every", "20", "--checkpoint-dir", str(arguments.out / "checkpoints")]
    command += ["--tensorboard-dir", str(arguments.out / "tensorboard"), "--gcs-path", str(arguments.out / "profiles")]

    print_paragraph(f"Training {run}, to be killed after step {arguments.kill_after}:")
    commands: list[subprocess.Popen[bytes]] = []

    def profile(_: subprocess.Popen[str]) -> None:
        command = ["mldiagnostics", "profile", run, "--duration", str(PROFILE_MS)]
        print_paragraph(f"$ {' '.join(command)}  (in another terminal)")
        commands.append(subprocess.Popen([str(Path(sys.executable).with_name(command[0])), *command[1:]]))

    def kill(job: subprocess.Popen[str]) -> None:
        for command in commands:
            command.wait()
        job.send_signal(signal.SIGKILL)

    at_steps = {arguments.profile_after: profile, arguments.kill_after: kill}
    if train(command, at_steps) != -signal.SIGKILL:
        print("the job was to be killed, but ended by itself: choose a smaller --kill-after", file=sys.stderr)
        return 1
    print_paragraph("Killed (SIGKILL). The same command again:")
    if exit_code := train(command, {}):
        return exit_code

    print_paragraph(f"Where the time went (goodput report {run}):\n")
    timeline, curves = arguments.out / f"{run}-timeline.png", arguments.out / f"{run}-curves.png"
    exit_code = ml_goodput_measurement.cli.main(["report", run, "--plot", str(timeline)])
    print_paragraph(f"What the run did (mldiagnostics show {run}):\n")
    exit_code = google_cloud_mldiagnostics.cli.main(["show", run]) or exit_code
    with contextlib.redirect_stdout(io.StringIO()):  # The table; `show` has it already.
        exit_code = (
            google_cloud_mldiagnostics.cli.main(["metrics", run, "loss", "step_time", "--plot", str(curves)])
            or exit_code
        )

    root, profiles = diagnostics_directory(), arguments.out / "profiles" / run
    print_paragraph(f"Why a step takes its time (xprofiler summary {os.path.relpath(profiles)}):\n")
    exit_code = xprofiler.cli.main(["summary", str(profiles)]) or exit_code
    summary = arguments.out / f"{run}-profiles.png"
    no_picture = picture_of_the_profiles(profiles, summary)
    journals = [log_directory(root, log) for log in (f"goodput_{run}", "ml_diagnostics_metric")]
    print_paragraph(
        f"Timeline  {os.path.relpath(timeline)}\n"
        f"Curves    {os.path.relpath(curves)} (mldiagnostics metrics {run} loss step_time --plot ...)\n"
        f"Goodput   tensorboard --logdir {os.path.relpath(arguments.out / 'tensorboard')}\n"
        f"Profiles  {no_picture or os.path.relpath(summary)} (xprofiler serve -l {os.path.relpath(profiles)})\n"
        f"Journal   {os.path.relpath(journals[0])}\n"
        f"          {os.path.relpath(journals[1])}"
    )
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
