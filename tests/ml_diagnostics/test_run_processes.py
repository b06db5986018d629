"""Which processes below `ml-diagnostics run` are the job: launchers, workers, other Pythons, programs that record."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_diagnostics._inference.deferred_recorder import DeferredRecorder
from ml_diagnostics_common.worker import in_parallel

from tests.waiting import wait_until

from .observed_programs import JOB, TRAINER, activities, payloads, report, run, run_program, steps, write

# --- A program that becomes another one, or starts others ---------------------------------------------


def test_a_launcher_that_becomes_the_trainer_is_not_in_the_way(tmp_path: Path) -> None:
    again = "import os, sys\nif len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
    run_program(tmp_path, again + TRAINER + "train(8)")
    assert steps() == [*range(8)]
    assert len(report()["attempts"]) == 1


@pytest.mark.parametrize(
    "become",
    [
        "os.execv(sys.executable, command)",
        "os.execve(path=sys.executable, argv=command, env=dict(os.environ))",
        "os.execlp(sys.executable, *command)",
    ],
)
def test_a_trainer_that_starts_again_by_exec_is_the_next_attempt_of_its_job(tmp_path: Path, become: str) -> None:
    done = run_program(
        tmp_path,
        TRAINER
        + f"""
import os, sys
print(os.environ.get("PYTHONPATH"))
train(5)
sys.stdout.flush()
command = [sys.executable, __file__, "again"]
try: os.execv("/no/such/program", command)
except FileNotFoundError: print(os.environ.get("PYTHONPATH"), flush=True)
if len(sys.argv) == 1: {become}
""",
    )
    assert (
        done.stdout == "None\n" * 4
    )  # Of each, before and after an `exec` that failed: other programs are not the job.
    assert steps() == [*range(5), *range(5)]
    assert len(report()["attempts"]) == 2


def test_a_forked_child_that_becomes_another_program_is_not_the_job(tmp_path: Path) -> None:
    done = run_program(
        tmp_path,
        TRAINER
        + """
import os, sys, warnings
warnings.simplefilter("ignore")
train(5)
child = "import os; print(os.environ.get('PYTHONPATH'))"
pid = os.fork()
if not pid: os.execv(sys.executable, [sys.executable, "-c", child])
os.waitpid(pid, 0)
train(3)
""",
    )
    assert done.stdout == "None\n"
    assert steps() == [*range(8)]


def test_workers_that_were_forked_or_spawned_before_the_trainer_uses_jax_are_not_the_job(tmp_path: Path) -> None:
    run_program(
        tmp_path,
        """
        import multiprocessing
        def work(count):
            import jax, jax.numpy as jnp
            double, state = jax.jit(lambda state: state * 2.0), jnp.ones(3)
            for _ in range(count):
                state = double(state)
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    pool.apply(work, (20,))
        """
        + "    "
        + TRAINER.replace("\n", "\n            ")
        + "\n            train(6)\n",
    )
    assert steps() == [*range(6)]


def test_a_job_of_several_processes_below_torchrun_is_recorded_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = write(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        """,
    )
    done = run(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", program)
    assert done.returncode == 0, done.stderr
    assert steps() == [*range(10)]
    assert activities()["step"] == ("SGD.step", "medium")


# --- A Python that cannot be observed -----------------------------------------------------------------


@pytest.mark.parametrize("flags", ["-I", "-uE", "-S"])
def test_a_python_that_ignores_the_environment_runs_the_program_and_one_line_says_so(
    tmp_path: Path, flags: str
) -> None:
    program = write(tmp_path, "import sys; print(sys.argv[1:]); sys.exit(3)")
    done = run(sys.executable, flags, program, "-E")
    assert (done.returncode, done.stdout) == (3, "['-E']\n")
    assert [f"option -{flags[-1]} leaves out" in line for line in done.stderr.splitlines()] == [False, True]


def test_options_of_the_program_are_not_those_of_python(tmp_path: Path) -> None:
    done = run(sys.executable, write(tmp_path, "pass"), "-I", "-S")
    assert len(done.stderr.splitlines()) == 1


def test_a_python_without_our_packages_runs_the_program_and_one_line_says_so(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    write(tmp_path, "print('the framework')", "jax.py")
    program = write(
        tmp_path,
        """
        import subprocess, sys
        import jax
        subprocess.run([sys.executable, "-c", "import jax"], check=True)
        print(sys.path)
        sys.exit(5)
        """,
    )
    alone = subprocess.run([python, program], capture_output=True, text=True, check=False, cwd=tmp_path)
    done = run(python, program, cwd=tmp_path)
    assert alone.returncode == 5
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
    assert done.stderr.splitlines()[1:] == [
        f"ml-diagnostics: {python} has no ml-diagnostics installed: the program runs without it"
    ]
    assert run(python, "-c", "print(1)").stderr.count("\n") == 1  # A program without a framework is not a job.


# --- A disk that cannot be written --------------------------------------------------------------------


@pytest.mark.parametrize("directory", ["a file", "/dev/full", "no name of a back end"])
def test_a_program_whose_job_cannot_be_recorded_runs_as_without_us(tmp_path: Path, directory: str) -> None:
    file = tmp_path / "file"
    file.touch()
    environ = {"ML_DIAGNOSTICS_RAISE": "0", "TMPDIR": str(tmp_path)}
    if directory.startswith("no name"):
        environ["ML_DIAGNOSTICS_BACKEND"] = "nonsense"
    else:
        environ["ML_DIAGNOSTICS_DIR"] = str(file) if directory == "a file" else directory
    program = write(
        tmp_path,
        TRAINER
        + """
import sys
train(4)
with jax.profiler.StepTraceAnnotation("train", step_num=1): train(4)
print(jax.devices()[0].platform)
sys.exit(3)
""",
    )
    done = run(sys.executable, program, environ=environ)
    assert (done.returncode, done.stdout) == (3, "cpu\n"), done.stderr
    assert "Traceback" not in done.stderr


# --- A program that records itself --------------------------------------------------------------------

OWN_RECORDER = (
    TRAINER
    + """
import sys
from ml_goodput_measurement.goodput import GoodputRecorder
recorder = GoodputRecorder(sys.argv[1], f"goodput_{sys.argv[1]}", True)
recorder.record_job_start_time()
for step in range(8):
    recorder.record_step_start_time(step)
    train(1)
recorder.record_job_end_time()
"""
)


@pytest.mark.parametrize("job", [JOB, "own"])
def test_a_program_with_a_recorder_of_its_own_is_recorded_by_that_alone(tmp_path: Path, job: str) -> None:
    done = run_program(tmp_path, OWN_RECORDER, job)
    assert steps(payloads(job)) == [*range(8)]
    assert len([each for each in payloads(job) if "job_start_time" in each]) == 1
    assert len(report(job)["attempts"]) == 1
    assert report(job)["inferred"] == []
    if job != JOB:
        assert payloads() == []
        assert done.stderr.splitlines()[1:] == ["ml-diagnostics: the program records itself: goodput report own"]


def test_a_recorder_that_starts_before_the_framework_is_imported_is_noticed(tmp_path: Path) -> None:
    first = "import ml_goodput_measurement.goodput as goodput\ngoodput.GoodputRecorder('own', 'goodput_own', True)"
    run_program(tmp_path, first + ".record_job_start_time()\n" + TRAINER + "train(8)")
    assert payloads() == []


def test_a_recorder_that_is_disabled_does_not_end_the_inference(tmp_path: Path) -> None:
    disabled = "goodput.GoodputRecorder('own', 'goodput_own').record_job_start_time()\n"
    run_program(tmp_path, "from ml_goodput_measurement import goodput\n" + disabled + TRAINER + "train(8)")
    assert steps() == [*range(8)]


@pytest.mark.parametrize(("goodput", "recorded"), [(True, []), (False, [*range(8)])])
def test_a_job_that_is_instrumented_after_its_first_work_is_recorded_once(
    tmp_path: Path, goodput: bool, recorded: list[int]
) -> None:
    run_program(
        tmp_path,
        TRAINER
        + f"""
import ml_diagnostics
with ml_diagnostics.instrument("own", goodput={goodput}, run=False, stacks=False, hangs=False, monitor=False) as job:
    for step, _ in job.steps(range(8)):
        train(1)
""",
    )
    assert steps() == recorded
    assert steps(payloads("own")) == ([*range(8)] if goodput else [])


# --- Programs with few steps, or none -----------------------------------------------------------------


def test_a_program_that_fails_before_its_first_step_is_a_failed_attempt(tmp_path: Path) -> None:
    program = write(tmp_path, TRAINER + "eval_step(state, batch); raise ValueError('no step')")
    assert run(sys.executable, program).returncode == 1
    found = report()
    assert (found["state"], found["steps_kept"]) == ("failed: ValueError", 0)
    assert sum(bucket["seconds"] for bucket in found["buckets"].values()) == pytest.approx(found["wall_seconds"])


def test_a_program_that_takes_a_profile_has_its_steps_and_its_profile(tmp_path: Path) -> None:
    run_program(tmp_path, TRAINER + f"with jax.profiler.trace({str(tmp_path)!r}): train(8)")
    assert steps() == [*range(8)]
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_two_programs_at_once_under_one_name_are_one_job_and_the_report_names_the_other(tmp_path: Path) -> None:
    program = write(tmp_path, TRAINER + "print('ready', flush=True); input(); train(20); input()")
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "ML_DIAGNOSTICS_JOB": JOB}
    words = [sys.executable, "-m", "ml_diagnostics", "run", "--", sys.executable, str(program)]
    programs = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True) for _ in range(2)
    ]
    for each in programs:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in programs:
        each.communicate("\n\n", timeout=60)
    assert [each.returncode for each in programs] == [0, 0]
    found = report()
    assert found["steps_kept"] == 20
    assert "1 more recorder" in str(found["notes"])


# --- The first events, while it is not known whether the program records itself ------------------------


class Recorded:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def record(self, step: int) -> None:
        self.steps.append(step)


def test_held_calls_are_made_in_their_order_when_they_are_released() -> None:
    recorded = Recorded()
    deferred = DeferredRecorder(recorded)
    deferred.record(1)
    deferred.record(2)
    assert recorded.steps == []
    deferred.release()
    deferred.record(3)
    assert wait_until(lambda: len(recorded.steps) == 3)
    assert recorded.steps == [1, 2, 3]
    assert not deferred.drop()


def test_held_calls_are_made_after_some_time_also_without_a_step() -> None:
    recorded = Recorded()
    deferred = DeferredRecorder(recorded, longest_hold_seconds=0.0)
    deferred.record(1)
    assert wait_until(lambda: recorded.steps) == [1]
    deferred.record(2)
    assert wait_until(lambda: recorded.steps == [1, 2])


def test_dropped_calls_are_never_made() -> None:
    recorded = Recorded()
    deferred = DeferredRecorder(recorded)
    deferred.record(1)
    assert deferred.drop()
    deferred.record(2)
    deferred.release()
    deferred.finish()
    assert recorded.steps == []


def test_deferred_calls_are_made_before_the_end_of_a_program_and_later_ones_at_once() -> None:
    recorded = Recorded()
    deferred = DeferredRecorder(recorded)
    deferred.release()
    deferred.record(1)
    deferred.finish()
    assert recorded.steps == [1]
    deferred.record(2)
    assert recorded.steps == [1, 2]


def test_calls_of_many_threads_are_each_made_once() -> None:
    recorded = Recorded()
    deferred = DeferredRecorder(recorded)
    deferred.release()
    in_parallel(lambda first: [deferred.record(first + step) for step in range(500)], range(0, 4000, 500))
    deferred.finish()
    assert sorted(recorded.steps) == list(range(4000))
