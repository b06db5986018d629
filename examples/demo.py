"""The life of a training job in two minutes: trained, profiled, killed, resumed, hung, and accounted for.

Starts `train_digits.py`, has it profiled from outside while it trains, kills it without warning, and starts the same
command again, which goes on from the last checkpoint. Then it asks where the time went, what the run did and why a step
takes its time. Then one of the two processes of `hang_demo.py` stops, and the report names it. Last, it draws all of
that. Everything stays under `out/`; no cloud is used.
"""

import argparse
import contextlib
import datetime
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_cloud_mldiagnostics.cli
import ml_goodput_measurement.cli
import ml_goodput_measurement.report
import xprofiler.cli
from ml_diagnostics_common.command.plotting import FAINT, INK, new_figure, save_figure
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import log_directory

TRAINING_SCRIPT = Path(__file__).with_name("train_digits.py")
HANG_SCRIPT = Path(__file__).with_name("hang_demo.py")
PROFILE_MS = 1000
LINE_WIDTH, LINE_INCHES = 125, 0.21


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


def draw_all(run: str, hang: str, folder: Path) -> None:
    """Draw the timeline and the curves of a run, and the report of a hang, each as PNG and SVG, in light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    report = ml_goodput_measurement.report.report(run)
    for style in ("", "-dark"):
        for kind in ("png", "svg"):
            report.plot(folder / f"timeline{style}.{kind}", dark=bool(style))
            picture_of_text(hang, folder / f"hang{style}.{kind}", dark=bool(style))
            options = ["--plot", str(folder / f"curves{style}.{kind}"), *(["--dark"] if style else []), "--quiet"]
            answer(google_cloud_mldiagnostics.cli.main, "metrics", run, "loss", "step_time", *options)


def answer(command: Callable[[Sequence[str]], int], *arguments: str) -> Any:
    """Run one of our commands for data instead of text.

    Raises:
        RuntimeError: It failed.
    """
    with contextlib.redirect_stdout(io.StringIO()) as output:
        if exit_code := command([*arguments, "--format", "json"]):
            raise RuntimeError(f"{' '.join(arguments)}: exit code {exit_code}")
    return json.loads(output.getvalue())


def picture_of_text(text: str, picture: Path, *, dark: bool) -> None:
    """Draw the output of `tpu-stacks show`: a sentence above the stacks, in which the job's own lines stand out."""
    title, *stacks = (block.splitlines() for block in text.strip().split("\n\n"))
    title[:1] = textwrap.wrap(title[0], LINE_WIDTH)
    height = LINE_INCHES * (len(title) + max(map(len, stacks), default=0) + 3)
    figure = new_figure(12, height)
    for column, block in enumerate([title, *stacks]):
        top = 1 if block is title else len(title) + 2
        for number, line in enumerate(block, start=top):
            is_own = not line.startswith(("    ", "(")) or HANG_SCRIPT.name in line
            figure.text(
                0.035 + max(0, column - 1) * 0.93 / max(2, len(stacks)),
                1 - LINE_INCHES * number / height,
                line,
                color=INK if is_own else FAINT,
                family="monospace",
                fontsize=10.5,
                parse_math=False,
                va="top",
            )
    save_figure(figure, picture, dark=dark)


def picture_of_the_profiles(folder: Path, picture: Path, *, dark: bool = False) -> str:
    """Serve a folder of profiles for a moment, and take a picture of the first screen of its summary page.

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
            flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,800"]
            flags += ["--force-device-scale-factor=1.5", *(["--force-dark-mode"] if dark else [])]
            with tempfile.TemporaryDirectory() as profile:
                flags += [f"--user-data-dir={profile}", f"--screenshot={picture.resolve()}"]
                taken = subprocess.run([browser, *flags, url], capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            return f"no picture: {browser} did not end within a minute"
        finally:
            server.terminate()  # A script's background jobs ignore SIGINT, and so do their children.
    return "" if picture.exists() else f"no picture: {browser} printed {taken.stderr.strip()[-200:]}"


def hang_report(folder: Path) -> tuple[str, int]:
    """Run a job of two processes, one of which stops, and print what is reported of it.

    Returns:
        The report, in which the first line names the process that stopped, without folders; and the exit code.
    """
    command = [sys.executable, str(HANG_SCRIPT), "--ranks", "2", "--out", str(folder)]
    report: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            print(f"  {line}", end="", flush=True)
            if report or " waits in " in line:
                report.append(re.sub(r"\(/.*/", "(", line))
    return "".join(report) or "no process was found to wait for another", job.returncode


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
    parser.add_argument(
        "--pictures", type=Path, metavar="FOLDER", help="folder for the pictures (default: OUT/pictures)"
    )
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

    print_paragraph(
        f"Training {run} (examples/{TRAINING_SCRIPT.name}), to be killed after step {arguments.kill_after}:"
    )
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
    exit_code = ml_goodput_measurement.cli.main(["report", run])
    print_paragraph(f"What the run did (mldiagnostics show {run}):\n")
    exit_code = google_cloud_mldiagnostics.cli.main(["show", run]) or exit_code
    root, profiles = diagnostics_directory(), arguments.out / "profiles" / run
    print_paragraph(f"Why a step takes its time (xprofiler summary {os.path.relpath(profiles)}):\n")
    exit_code = xprofiler.cli.main(["summary", str(profiles)]) or exit_code

    print_paragraph("Why a job hangs (examples/hang_demo.py --ranks 2):\n")
    hang, hang_exit_code = hang_report(arguments.out)
    exit_code = hang_exit_code or exit_code

    pictures = arguments.pictures or arguments.out / "pictures"
    draw_all(run, hang, pictures)
    for style in ("", "-dark"):
        if no_picture := picture_of_the_profiles(profiles, pictures / f"profile{style}.png", dark=bool(style)):
            print(f"The page of the profiles: {no_picture}", file=sys.stderr)
            break

    report = ml_goodput_measurement.report.report(run).data
    [disruption] = report.disruptions
    metrics = {each["metric"]: each for each in answer(google_cloud_mldiagnostics.cli.main, "show", run)["metrics"]}
    step = answer(xprofiler.cli.main, "summary", str(profiles))["headline"]
    journals = [log_directory(root, log) for log in (f"goodput_{run}", "ml_diagnostics_metric")]
    print_paragraph(
        "In short\n\n"
        f"Job       {report.steps_kept} steps in {report.wall_ns / 1e9:.0f} s, profiled, killed and resumed: "
        f"loss {metrics['loss']['max']:.2f} to {metrics['loss']['last']:.2f}\n"
        f"Goodput   {report.goodput_percent:.1f} %; the kill cost {disruption.cost_ns / 1e9:.1f} s, "
        f"with {disruption.steps_lost} steps computed twice\n"
        f"Step      {step}\n"
        f"Hang      {hang.splitlines()[0]}\n\n"
        f"Pictures  {os.path.relpath(pictures)}\n"
        f"Profiles  xprofiler serve -l {os.path.relpath(profiles)}\n"
        f"Live      tensorboard --logdir {os.path.relpath(arguments.out / 'tensorboard')}\n"
        f"Journal   {os.path.relpath(journals[0])}\n"
        f"          {os.path.relpath(journals[1])}"
    )
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
