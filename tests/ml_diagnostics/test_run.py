"""`ml-diagnostics run`: programs that were never instrumented have goodput, and notice nothing of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import ml_diagnostics
import pytest
from ml_diagnostics.cli import job_name_of, main
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_goodput_measurement.goodput import GoodputCalculator

from ..waiting import Child, wait_until
from .observed_programs import (
    ENVIRONMENT,
    JOB,
    RUN,
    TRAINER,
    activities,
    payloads,
    report,
    run,
    run_program,
    steps,
    write,
)

# --- The program notices nothing ----------------------------------------------------------------------


def test_arguments_output_and_exit_code_are_those_of_the_program(tmp_path: Path) -> None:
    program = write(tmp_path, "import sys; print(sys.argv[1:], sys.path[0]); sys.exit(7)")
    done = run(sys.executable, program, "--name", "x", "--", "-v")
    assert done.returncode == 7
    assert done.stdout == f"['--name', 'x', '--', '-v'] {tmp_path}\n"


def test_a_signal_reaches_the_program_and_its_end_by_a_signal_is_that_of_the_command(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(3)))
        print("ready", flush=True)
        time.sleep(60)
        """,
    )
    with subprocess.Popen([*RUN, sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        command.send_signal(signal.SIGTERM)
        assert command.stdout.read() == "saved\n"
        assert command.wait(30) == 3
    killed = run(sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


def test_a_program_that_does_not_exist_is_exit_code_127() -> None:
    done = run("no-such-program")
    assert (done.returncode, done.stdout) == (127, "")
    assert "cannot run 'no-such-program'" in done.stderr


def test_the_path_of_modules_is_as_without_it_and_an_own_sitecustomize_runs(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    write(own, "import sys; sys.was_customized = __file__", "sitecustomize.py")
    program = write(tmp_path, "import sys, sitecustomize; print(sys.path, sys.was_customized, sitecustomize.__file__)")
    environ = {**os.environ, "PYTHONPATH": str(own)}
    alone = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, env=environ)
    assert str(own / "sitecustomize.py") in alone.stdout
    assert run(sys.executable, program, environ={"PYTHONPATH": str(own)}).stdout == alone.stdout


def test_an_error_of_the_own_sitecustomize_is_shown_as_without_it(tmp_path: Path) -> None:
    write(tmp_path, "raise ValueError('mine')", "sitecustomize.py")
    done = run(sys.executable, "-c", "print('goes on')", environ={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "Error in sitecustomize" in done.stderr
    assert "ValueError: mine" in done.stderr


def test_a_program_without_a_framework_imports_none_and_records_nothing() -> None:
    done = run(sys.executable, "-c", "import sys; print([m for m in ('jax', 'torch', 'numpy') if m in sys.modules])")
    assert done.stdout == "[]\n"
    assert payloads() == []


def test_a_python_without_our_packages_runs_the_program(tmp_path: Path) -> None:
    done = run(sys.executable, "-I", "-c", "print('isolated')")
    assert (done.returncode, done.stdout) == (0, "isolated\n")


def test_a_trainer_in_a_shell_script_is_observed_and_its_own_children_are_not(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        TRAINER
        + """
import os, subprocess, sys
train(8)
child = "import os, sys; print(os.environ.get('PYTHONPATH'), 'ml_diagnostics' in sys.modules)"
subprocess.run([sys.executable, "-c", child], check=True)
""",
    )
    script = tmp_path / "run.sh"
    script.write_text(f"{sys.executable} {program}\n", encoding="utf-8")
    done = run("sh", script)
    assert (done.returncode, done.stdout) == (0, "None False\n"), done.stderr
    assert steps() == [*range(8)]


# --- What it records ----------------------------------------------------------------------------------


def test_a_function_that_is_not_fed_its_results_is_the_step_if_no_other_is(tmp_path: Path) -> None:
    run_program(tmp_path, TRAINER.replace("state, loss = train_step", "_, loss = train_step") + "train(5)")
    assert steps() == [*range(5)]
    assert activities()["step"] == ("calls of train_step", "low")


def test_steps_are_the_calls_of_the_function_that_is_fed_its_own_results(tmp_path: Path) -> None:
    timed = "train(1)\nstarted = time.monotonic()\ntrain(29, 1)\nprint(time.monotonic() - started)"
    seconds = float(run_program(tmp_path, TRAINER + timed).stdout)
    assert steps() == [*range(30)]
    assert activities()["step"] == ("calls of train_step", "medium")
    found = report()
    assert found["steps_kept"] == 30
    # The program waits for 10 ms between a result and the next step.
    steps_and_waits = [found["buckets"][name]["seconds"] for name in ("PRODUCTIVE", "DATA_LOADING_SYNC")]
    assert sum(steps_and_waits) == pytest.approx(seconds, rel=0.2)
    assert sum(bucket["seconds"] for bucket in found["buckets"].values()) == pytest.approx(found["wall_seconds"])


def test_evaluations_are_calls_of_another_function_between_some_steps(tmp_path: Path) -> None:
    done = run_program(tmp_path, TRAINER + "train(40, every=10); print(evaluated)")
    assert steps() == [*range(40)]
    assert activities()["evaluation"] == ("calls of eval_step between steps", "medium")
    assert report()["custom_events"]["EVALUATION"]["seconds"] == pytest.approx(float(done.stdout), rel=0.4)


def test_annotated_steps_are_the_steps_with_their_numbers(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        TRAINER
        + """
for step in range(100, 120):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        train(1)
""",
    )
    assert steps() == [*range(100, 120)]
    assert activities()["step"] == ("StepTraceAnnotation 'train'", "high")


def test_an_annotation_whose_numbers_start_again_in_each_epoch_goes_on_counting(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        TRAINER
        + """
for epoch in range(3):
    for step in range(5):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            train(1)
""",
    )
    assert steps() == [*range(15)]
    assert len(report()["attempts"]) == 1


def test_a_recompilation_is_a_compilation_in_the_report(tmp_path: Path) -> None:
    run_program(tmp_path, TRAINER + "train(10); jax.clear_caches(); train(10, 10)")
    assert steps() == [*range(20)]
    assert activities()["compilation"] == ("JAX's events", "high")
    assert report()["custom_events"]["COMPILATION"]["seconds"] > 0.005


SAVER = (
    TRAINER
    + """
import orbax.checkpoint as ocp, sys
folder, is_async = sys.argv[1], sys.argv[2] == "async"
options = ocp.CheckpointManagerOptions(enable_async_checkpointing=is_async)
manager = ocp.CheckpointManager(folder, options=options)
first, saved = 0, {"weights": jnp.ones((500, 500))}
if manager.latest_step() is not None:
    first = manager.latest_step() + 1
    saved = manager.restore(first - 1, args=ocp.args.StandardRestore(saved))
for step in range(first, first + 10):
    train(1)
    if step % 5 == 4:
        manager.save(step, args=ocp.args.StandardSave(saved))
manager.wait_until_finished()
"""
)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_saves_and_restores_of_orbax_have_their_step_and_a_restarted_job_goes_on(tmp_path: Path, mode: str) -> None:
    for _ in range(2):
        run_program(tmp_path, SAVER, str(tmp_path / "checkpoints"), mode)
    operations = [(each["event_type"], each["step"]) for each in payloads() if "event_type" in each]
    assert operations == [("save", 4), ("save", 9), ("restore", 9), ("save", 14), ("save", 19)]
    assert steps() == [*range(20)]
    found = report()
    assert [attempt["steps_lost"] for attempt in found["attempts"]] == [0, 0]
    assert found["buckets"]["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"]["seconds"] > 0.002
    assert found["buckets"]["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"]["seconds"] > 0.002
    assert sum(bucket["seconds"] for bucket in found["buckets"].values()) == pytest.approx(found["wall_seconds"])


def test_events_are_observed_after_a_program_has_removed_all_listeners(tmp_path: Path) -> None:
    text = SAVER.replace("for step in range(first", "jax.monitoring.clear_event_listeners()\nfor step in range(first")
    run_program(tmp_path, text, str(tmp_path / "checkpoints"), "sync")
    assert [each["step"] for each in payloads() if each.get("event_type") == "save"] == [4, 9]


def test_a_job_that_fails_and_one_that_is_killed_have_a_report(tmp_path: Path) -> None:
    program = write(tmp_path, TRAINER + "train(10); raise ValueError('no')")
    failed = run(sys.executable, program)
    assert failed.returncode == 1
    assert "ValueError: no" in failed.stderr
    assert report()["state"] == "failed: ValueError"
    write(tmp_path, TRAINER + "import os; print(os.getpid(), flush=True); train(10); time.sleep(100)")
    command = Child([*RUN, sys.executable, program], env={**os.environ, **ENVIRONMENT})
    trainer = int(command.line())
    wait_until(lambda: len(steps()) == 2 * 10)  # What is inferred is recorded later.
    os.kill(trainer, signal.SIGKILL)
    assert command.end()[0] in (-9, 137)
    assert report()["attempts"][1]["steps_kept"] >= 9


def test_only_the_first_process_of_a_job_records(tmp_path: Path) -> None:
    program = write(tmp_path, TRAINER + "train(10)")
    done = run(sys.executable, program, environ={"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"})
    assert done.returncode == 0, done.stderr
    assert payloads() == []


def test_a_program_that_records_itself_is_not_recorded_twice(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        """
        import ml_diagnostics
        with ml_diagnostics.instrument("own", run=False, stacks=False, hangs=False, monitor=False) as job:
        """
        + textwrap.indent(TRAINER, "            ")
        + """
            for step, _ in job.steps(range(10)):
                train(1)
        """,
    )
    assert payloads() == []
    assert steps(payloads("own")) == [*range(10)]


def test_workers_of_the_program_are_not_the_job(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        TRAINER
        + """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(train, (12,))
    train(6)
""",
    )
    assert steps() == [*range(6)]


# --- The name of the job ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--lr", "3"], "train"),
        (["/usr/bin/python3.11", "-u", "-X", "dev", "jobs/digits.py"], "digits"),
        (["python", "-m", "package.train", "x"], "package.train"),
        (["python", "-m", "package.__main__"], "package"),
        (["python", "digits/main.py"], "digits"),
        (["python", "-c", "pass"], "python"),
        (["./run.sh"], "run"),
        (["python", "-um", "package.train", "other.py"], "package.train"),
        (["python", "-W", "ignore", "-c", "pass", "other.py"], "python"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], "train"),
        (["python", "-m", "torch.distributed.run", "jobs/train.py"], "train"),
        (["bash", "digits.sh", "other.py"], "digits"),
        (["./train"], "train"),
        (["torchrun", "--nproc-per-node", "2", "-m", "package.train", "other.py"], "package.train"),
        (["accelerate", "launch", "--module", "package.train"], "package.train"),
        (["accelerate", "launch", "train.py", "-m", "3"], "train"),
        (["python", "-u", "-m", "torch.distributed.run", "-m", "package.__main__"], "package"),
        (["srun", "-m", "cyclic", "python3.11", "-m", "package.train"], "package.train"),
        (["torchrun", "-m"], "torchrun"),
    ],
)
def test_a_job_without_a_name_has_that_of_its_script(command: list[str], name: str) -> None:
    assert job_name_of(command) == name


def test_a_name_that_instrument_does_not_take_is_rejected_with_the_same_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in (" ", "x" * 201):
        with pytest.raises(ConfigurationError) as rejected:
            ml_diagnostics.instrument(name)
        with pytest.raises(SystemExit) as ended:
            main(["run", "--name", name, "--", "true"])
        assert ended.value.code == 2
        assert str(rejected.value) in capsys.readouterr().err


# --- In a job that records itself ---------------------------------------------------------------------

INSTRUMENTED = (
    TRAINER
    + """
import ml_diagnostics, sys
import orbax.checkpoint as ocp
from ml_goodput_measurement.goodput import CheckpointLogger
with ml_diagnostics.instrument("digits", run=False, stacks=False, hangs=False, monitor=False) as job:
    logger = CheckpointLogger(job.recorder) if sys.argv[2] == "logged" else None
    manager = ocp.CheckpointManager(sys.argv[1], logger=logger)
    saved = {"weights": jnp.ones((500, 500))}
    for step, _ in job.steps(range(10)):
        train(1)
        if step == 4:
            jax.clear_caches()
        if step == 6:
            manager.save(step, args=ocp.args.StandardSave(saved))
            manager.wait_until_finished()
"""
)


def test_an_instrumented_job_has_compilations_and_saves_without_a_call(tmp_path: Path) -> None:
    program = write(tmp_path, INSTRUMENTED)
    command = [sys.executable, str(program), str(tmp_path / "checkpoints"), "unlogged"]
    subprocess.run(command, check=True, env={**os.environ, **ENVIRONMENT}, capture_output=True)
    found = report()
    assert found["custom_events"]["COMPILATION"]["seconds"] > 0.005
    assert found["buckets"]["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"]["seconds"] > 0.002
    assert [each["step"] for each in payloads() if "event_type" in each] == [6]
    assert sum(bucket["seconds"] for bucket in found["buckets"].values()) == pytest.approx(found["wall_seconds"])


def test_an_instrumented_job_has_restores_and_searches_of_the_compilation_cache_without_a_call(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import sys
        import jax
        jax.config.update("jax_compilation_cache_dir", sys.argv[1] + "/cache")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        """
        + textwrap.indent(TRAINER, "        ")
        + """
        import ml_diagnostics
        import orbax.checkpoint as ocp
        with ml_diagnostics.instrument("digits", run=False, stacks=False, hangs=False, monitor=False) as job:
            manager = ocp.CheckpointManager(sys.argv[1] + "/checkpoints")
            saved, first = {"weights": jnp.ones((500, 500))}, 0
            if manager.latest_step() is not None:
                first = manager.latest_step() + 1
                saved = manager.restore(first - 1, args=ocp.args.StandardRestore(saved))
            for step, _ in job.steps(range(4), first):
                train(1)
            manager.save(step, args=ocp.args.StandardSave(saved))
            manager.wait_until_finished()
        """,
    )
    for _ in range(2):
        command = [sys.executable, str(program), str(tmp_path)]
        subprocess.run(command, check=True, env={**os.environ, **ENVIRONMENT}, capture_output=True)
    assert [(each["event_type"], each["step"]) for each in payloads() if "event_type" in each] == [
        ("save", 3),
        ("restore", 3),
        ("save", 7),
    ]
    counts = {each["compiled_by"]: each for each in payloads() if "compiled_by" in each}
    first, second = ((each["compilation_cache_hits"], each["compilation_cache_misses"]) for each in counts.values())
    assert first[1] > 0
    assert second[0] >= sum(first)  # A first run may find what it has compiled twice.
    found = report()
    assert found["buckets"]["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"]["seconds"] > 0.002
    assert "compilation cache" in str(found["notes"])


def test_a_save_that_a_checkpoint_logger_records_too_counts_once(tmp_path: Path) -> None:
    program = write(tmp_path, INSTRUMENTED)
    command = [sys.executable, str(program), str(tmp_path / "checkpoints"), "logged"]
    subprocess.run(command, check=True, env={**os.environ, **ENVIRONMENT}, capture_output=True)
    key = "checkpoint_manager_blocking_duration_secs"
    saves = [each[key] for each in payloads() if each.get("event_type") == "save"]
    assert len(saves) == 2
    seconds = report()["buckets"]["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"]["seconds"]
    assert min(saves) <= seconds + 1e-5
    assert seconds <= max(saves) + 1e-5


def test_the_calculator_reads_an_inferred_job(tmp_path: Path) -> None:
    run_program(tmp_path, TRAINER + "train(12)")
    calculated = GoodputCalculator(JOB, f"goodput_{JOB}").report()
    assert calculated.steps_kept == 12
