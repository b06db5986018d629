"""The life of a training job in half a minute: trained, killed, resumed, and accounted for.

Starts `train_digits.py`, kills it without warning in mid-training, starts the same command again, which goes on from
the last checkpoint, and then asks where the time went. Everything stays under `out/`; no cloud is asked for anything.
"""

import argparse
import datetime
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.journal import log_directory
from ml_goodput_measurement import cli

TRAINING_SCRIPT = Path(__file__).with_name("train_digits.py")


def train(command: list[str], kill_after_step: int | None = None) -> int:
    """Runs the training job; kills it as soon as it says that it has done a step, if one is given.

    Returns:
        Its exit code; the signal's number, negative, if it was killed.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            print(f"  {line}", end="", flush=True)
            done = re.match(r"step +(\d+)", line)
            if kill_after_step is not None and done and int(done[1]) >= kill_after_step:
                job.send_signal(signal.SIGKILL)
                break
    return job.returncode


def say(text: str) -> None:
    """Prints a headline."""
    print(f"\n{text}", flush=True)


def main() -> int:
    """Runs the demo; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help="of training, in all (default: %(default)s)")
    parser.add_argument("--kill-after", type=int, default=260, metavar="STEP", help="default: %(default)s")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for all that is written (default: out)")
    arguments = parser.parse_args()

    # The job and the report below find each other by this folder; nothing looks for a cloud.
    os.environ["ML_DIAGNOSTICS_DIR"] = str(arguments.out.resolve() / "ml-diagnostics")
    os.environ["ML_DIAGNOSTICS_BACKEND"] = "local"
    run_name = f"digits-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    command = [sys.executable, str(TRAINING_SCRIPT), "--run-name", run_name]
    command += ["--steps", str(arguments.steps), "--checkpoint-every", str(arguments.checkpoint_every)]
    command += ["--print-every", "20", "--checkpoint-dir", str(arguments.out / "checkpoints")]
    command += ["--tensorboard-dir", str(arguments.out / "tensorboard")]

    say(f"Training {run_name}, to be killed after step {arguments.kill_after}:")
    if train(command, kill_after_step=arguments.kill_after) != -signal.SIGKILL:
        print("the job was to be killed, but ended by itself: choose a smaller --kill-after", file=sys.stderr)
        return 1
    say("Killed (SIGKILL). The same command again:")
    if exit_code := train(command):
        return exit_code

    say(f"Where the time went (goodput report {run_name}):\n")
    picture = arguments.out / f"{run_name}.png"
    exit_code = cli.main(["report", run_name, "--plot", str(picture)])
    journal = log_directory(diagnostics_directory(), f"goodput_{run_name}")
    say(
        f"Timeline  {os.path.relpath(picture)}\nJournal   {os.path.relpath(journal)}\n"
        f"Curves    tensorboard --logdir {os.path.relpath(arguments.out / 'tensorboard')}"
    )
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
