"""`mldiagnostics simulate` as a user runs it: real processes, their ends, the verdict, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ml_diagnostics_common.files import share_lock

from ..loopback.kubernetes import KubernetesServer
from ..terminals import run_in_terminal
from ..testing.kubectl import needs_kubectl
from ..waiting import is_alive, wait_until
from .made_clusters import node
from .simulated_jobs import JOBSET, arguments, environment, job, simulate

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to pass on")

TRAIN_WITH_JAX = """
import sys
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
import ml_diagnostics

jax.distributed.initialize()
print("process", jax.process_index(), "of", jax.process_count(), "with", jax.device_count(), "devices", sys.argv[1:])
with ml_diagnostics.instrument("digits") as training:
    for step, _ in training.steps(range(20)):
        multihost_utils.process_allgather(jnp.ones(4) * step)
"""
TRAIN = """
import os, time
import ml_diagnostics

with ml_diagnostics.instrument(os.environ["ML_DIAGNOSTICS_JOB"]) as training:
    for step, _ in training.steps(range(int(os.environ.get("STEPS", "10000")))):
        time.sleep(0.01)
"""
BACKGROUND = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("pids", os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def flat(text: str) -> str:
    """Return a report on one line, so that its line breaks do not matter."""
    return re.sub(r"(?<=\w)- ", "-", " ".join(text.split()))


# --- The JobSet of the documentation ------------------------------------------------------------------


def test_the_jobset_of_the_documentation_runs_to_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN_WITH_JAX)
    (tmp_path / "jobset.yaml").write_text(JOBSET)
    done = simulate(tmp_path, "jobset.yaml")
    assert done.returncode == 0, done.stderr
    for index in (0, 1):
        assert f"workers-0-{index} | process {index} of 2 with 8 devices ['--data', '/data/{index}'" in done.stdout
    assert "Nothing is wrong: the job ended well" in done.stdout
    assert "calls jax.distributed.initialize() without arguments" in done.stderr
    for start in ("image us-docker", "resources of workers", "volume data", "variable HF_TOKEN", "tolerations"):
        assert len(re.findall(f"^ignored: {start}", done.stderr, re.MULTILINE)) == 1


# --- Five planted mistakes ----------------------------------------------------------------------------


def test_a_wrong_command_is_found(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(job("[pythn, train.py]", pods=2))
    done = simulate(tmp_path, "job.yaml")
    assert done.returncode == 127
    assert flat(done.stdout).count("Failed before the first step:") == 1
    assert (
        "Failed before the first step: the command pythn is missing where the program runs: executable file not "
        "found in $PATH (exit code 127), on" in flat(done.stdout)
    )


def test_a_missing_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import flaxx\n")
    (tmp_path / "job.yaml").write_text(job("[bash, -c, python train.py]", pods=1))
    done = simulate(tmp_path, "job.yaml")
    assert done.returncode == 1
    assert (
        "Failed before the first step: the module flaxx is missing where the program runs: ModuleNotFoundError, on "
        "its only process. [proven]" in flat(done.stdout)
    )
    assert "install the package with flaxx in the image" in flat(done.stdout)


def test_a_missing_variable_is_found_though_this_shell_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_DIR", "/data")
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['DATA_DIR'])\n")
    (tmp_path / "job.yaml").write_text(job("[python, train.py]"))
    done = simulate(tmp_path, "job.yaml")
    assert done.returncode == 1
    assert (
        "Failed before the first step: the environment variable DATA_DIR is missing where the program runs: the "
        "program reads it by os.environ, on its only process. [proven]" in flat(done.stdout)
    )
    assert simulate(tmp_path, "--env", "DATA_DIR=/data", "job.yaml").returncode == 0


def test_a_request_above_any_node_is_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "job.yaml").write_text(job("[python, train.py]", container="resources: {limits: {google.com/tpu: 16}}"))
    done = simulate(tmp_path, "job.yaml")
    assert done.returncode == 11
    assert (
        "Failed before the first step: the pods of digits can never start: none fits a machine type that is known "
        "here; each requests 16 google.com/tpu, and the largest machine for it, ct6e-standard-8t, has 8 google.com/tpu."
        in flat(done.stdout)
    )


def test_a_wrong_number_of_processes_is_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, jax\n"
        "jax.distributed.initialize(num_processes=4, process_id=int(os.environ['JOB_COMPLETION_INDEX']))\n"
    )
    (tmp_path / "job.yaml").write_text(job("[python, train.py]", pods=2))
    done = simulate(tmp_path, "job.yaml")
    assert done.returncode == 11
    assert (
        "Failed before the first step: the program expects 4 processes, and the Job starts 2 processes (parallelism "
        "2): processes 2, 3 never start, and the others wait for them. [proven]" in flat(done.stdout)
    )


# --- What a pod is ------------------------------------------------------------------------------------


def test_lines_have_the_name_of_their_pod_on_the_stream_that_they_were_printed_on(tmp_path: Path) -> None:
    program = "import sys; print('to out'); print('to err', file=sys.stderr); print('in parts', end='')"
    done = simulate(tmp_path, "--hosts", "2", "--", "python", "-c", program)
    assert done.returncode == 0
    for index in (0, 1):
        assert f"python-{index} | to out\n" in done.stdout
        assert f"python-{index} | in parts\n" in done.stdout
        assert f"python-{index} | to err\n" in done.stderr


def test_each_pod_has_a_color_of_its_own_on_a_terminal(tmp_path: Path) -> None:
    command = arguments("--hosts", "2", "--", "python", "-c", "import sys; print('a'); print('b', file=sys.stderr)")
    shown = run_in_terminal(command, environ=environment(tmp_path))
    assert shown.code == 0
    for stream, text in ((shown.output, "a"), (shown.errors, "b")):
        assert f"\x1b[36mpython-0 |\x1b[0m {text}\n" in stream
        assert f"\x1b[33mpython-1 |\x1b[0m {text}\n" in stream


def test_a_program_runs_as_it_is(tmp_path: Path) -> None:
    """Its arguments, its `__main__`, and a `sitecustomize` that it has already."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.customized = True\n")
    (tmp_path / "own.py").write_text("import sys; print(__name__, __file__, sys.argv, getattr(sys, 'customized', 0))\n")
    (tmp_path / "job.yaml").write_text(
        job("[python, own.py, --x]", container=f"env: [{{name: PYTHONPATH, value: {tmp_path}}}]")
    )
    done = simulate(tmp_path, "job.yaml")
    assert f"digits-0 | __main__ {tmp_path}/own.py ['own.py', '--x'] True" in done.stdout


def test_a_volume_is_a_folder_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("content of a")
    (tmp_path / "job.yaml").write_text(
        job(
            "[cat, /mnt/data/a.txt]",
            pod="volumes: [{name: data, emptyDir: {}}]",
            container="volumeMounts: [{name: data, mountPath: /mnt/data}]",
        )
    )
    done = simulate(tmp_path, "--volume", "data=files", "job.yaml")
    assert done.returncode == 0
    assert "digits-0 | content of a" in done.stdout


def test_it_records_in_a_folder_of_its_own(tmp_path: Path) -> None:
    done = simulate(tmp_path, "--", "true")
    assert done.returncode == 0
    (folder,) = (tmp_path / "diagnostics" / "simulated").iterdir()
    assert f"it records in {folder}" in done.stderr
    assert f"export ML_DIAGNOSTICS_DIR={folder}" in done.stderr
    assert (folder / "journal").is_dir()
    assert not list(folder.glob("simulate-*"))


def test_the_last_rehearsals_are_kept_and_each_that_runs(tmp_path: Path) -> None:
    folder = tmp_path / "diagnostics" / "simulated"
    names = [f"digits-20250101-{number:06}-77" for number in range(25)]
    for name in ["my notes", *names]:
        (folder / name / "journal").mkdir(parents=True)
    running = os.open(folder / names[0], os.O_RDONLY)
    share_lock(running)
    try:
        assert simulate(tmp_path, "--", "true").returncode == 0
    finally:
        os.close(running)
    left = {path.name for path in folder.iterdir()}
    assert {"my notes", names[0], *names[-19:]} < left
    assert len(left) == 1 + 1 + 20


_SHOWS_CREDENTIALS = """
import os
from pathlib import Path
names = ("AWS_PROFILE", "KUBECONFIG", "NO_GCE_CHECK")
print((Path.home() / ".config/gcloud/application_default_credentials.json").exists(), *map(os.environ.get, names))
"""


@pytest.mark.parametrize(
    ("options", "shown", "line", "access"),
    [
        ([], "False None None true", "credentials: none", "gets no credentials for it"),
        (["--credentials"], "True production /k None", "credentials of this shell", "may read, overwrite or delete it"),
    ],
)
def test_a_rehearsal_has_the_credentials_of_the_user_only_if_they_are_asked_for_and_warns_of_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], shown: str, line: str, access: str
) -> None:
    key = tmp_path / ".config" / "gcloud" / "application_default_credentials.json"
    key.parent.mkdir(parents=True)
    key.write_text("{}")
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("KUBECONFIG", "/k")
    monkeypatch.delenv("NO_GCE_CHECK", raising=False)
    done = simulate(tmp_path, *options, "--", "python", "-c", _SHOWS_CREDENTIALS, "gs://prod/checkpoints")
    assert f"| {shown}" in done.stdout
    assert line in done.stderr
    assert f"gs://prod/checkpoints is real: the rehearsal {access}" in done.stderr


# --- Restarts -----------------------------------------------------------------------------------------

_FAILS_ONCE = """
import os, sys
from pathlib import Path
mark = Path("failed-" + os.environ["JOB_COMPLETION_INDEX"])
print("attempt", os.environ["ML_DIAGNOSTICS_ATTEMPT"], "restart", os.environ.get("JOBSET_RESTART_ATTEMPT"))
if not mark.exists():
    mark.touch()
    sys.exit(3)
"""


def test_a_failed_pod_is_started_again_up_to_the_backoff_limit(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_FAILS_ONCE)
    (tmp_path / "job.yaml").write_text(job("[python, train.py]").replace("backoffLimit: 0", "backoffLimit: 1"))
    done = simulate(tmp_path, "job.yaml")
    assert done.returncode == 0
    assert "digits-0 | attempt 1 restart None" in done.stdout
    assert "digits-0 ended with exit code 3: failure 1; backoffLimit is 1; it is started again" in done.stderr


def test_a_failed_job_restarts_its_jobset(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_FAILS_ONCE)
    (tmp_path / "jobset.yaml").write_text(
        JOBSET.replace("parallelism: 2", "parallelism: 1").replace("tions: 2", "tions: 1")
    )
    done = simulate(tmp_path, "jobset.yaml")
    assert done.returncode == 0
    assert "workers-0-0 | attempt 1 restart 1" in done.stdout
    assert "restart 1, maxRestarts is 1" in done.stderr


def test_replicated_jobs_have_coordinators_of_their_own_and_a_pod_that_is_started_again_alone_finds_the_others(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text("import os; print('at', os.environ['JAX_COORDINATOR_ADDRESS'])\n" + _FAILS_ONCE)
    (tmp_path / "alone.py").write_text((tmp_path / "train.py").read_text().replace("JOB_COMPLETION_INDEX", "MARK"))

    def replicated(name: str, mark: str) -> str:
        return f"""
  - name: {name}
    template:
      spec:
        parallelism: 2
        completions: 2
        completionMode: Indexed
        backoffLimit: 2
        template:
          spec:
            containers:
            - name: train
              command: [python, alone.py]
              env: [{{name: MARK, value: "{mark}"}}]
"""

    (tmp_path / "jobset.yaml").write_text(
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: js}\nspec:\n  replicatedJobs:"
        + replicated("actor", "actor-$(JOB_COMPLETION_INDEX)")
        + replicated("learner", "learner-$(JOB_COMPLETION_INDEX)")
    )
    done = simulate(tmp_path, "jobset.yaml")
    assert done.returncode == 0, done.stderr
    found = re.findall(r"js-(\w+)-0-(\d)\s*\| at (\S+)", done.stdout)
    assert len(found) == 8  # Each pod has failed once.
    addresses = {job: {address for name, _, address in found if name == job} for job in ("actor", "learner")}
    assert [len(each) for each in addresses.values()] == [1, 1]
    assert addresses["actor"] != addresses["learner"]


def test_a_job_that_fails_for_good_has_the_exit_code_of_its_pod(tmp_path: Path) -> None:
    done = simulate(tmp_path, "--hosts", "2", "--", "python", "-c", "raise SystemExit(9)")
    assert done.returncode == 9
    assert "exit code 9" in flat(done.stdout) or "exited with code 9" in flat(done.stdout)


# --- Faults and the time limit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "reason"), [("sigkill", 137, "was killed at step"), ("exit", 0, "Nothing is wrong")]
)
def test_a_fault_is_injected_at_a_step_of_an_unchanged_program(
    tmp_path: Path, kind: str, code: int, reason: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = simulate(tmp_path, "--fault", f"{kind}@process=0,step=30", "--", "python", "train.py")
    assert f"injected {kind}@process=0,step=30" in done.stderr
    assert done.returncode == code
    assert reason in flat(done.stdout)


def test_a_fault_that_is_never_due_is_reported(tmp_path: Path) -> None:
    done = simulate(tmp_path, "--fault", "sigkill@process=0,step=30", "--", "true")
    assert done.returncode == 0
    assert "sigkill@process=0,step=30 was not injected" in done.stderr


def test_a_program_without_steps_gets_a_fault_by_time(tmp_path: Path) -> None:
    done = simulate(
        tmp_path,
        "--fault",
        "sigterm@process=0,seconds=1",
        "--",
        "bash",
        "-c",
        "python -c 'import time; time.sleep(60)'; exit",
    )
    assert "injected sigterm@process=0,seconds=1" in done.stderr
    assert done.returncode == 143


def test_a_job_that_still_runs_at_the_time_limit_is_judged_before_it_is_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = simulate(tmp_path, "--time-limit", "4", "--", "python", "train.py")
    assert "the job still ran at the time limit, and was ended" in done.stderr
    assert "Nothing is wrong" in done.stdout
    assert done.returncode == 0


# --- Nothing is left behind ---------------------------------------------------------------------------


def started(folder: Path, hosts: int) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a rehearsal of pods that run for ever, and return it with all processes of the pods."""
    (folder / "background.py").write_text(BACKGROUND)
    command = arguments("--hosts", str(hosts), "--", "python", "background.py")
    simulation = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert simulation.stdout is not None
    lines = [simulation.stdout.readline() for _ in range(hosts)]
    return simulation, [int(pid) for line in lines for pid in re.findall(r"\d+", line.partition("pids")[2])]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_everything_that_was_started(tmp_path: Path, number: signal.Signals) -> None:
    simulation, pids = started(tmp_path, 2)
    assert len(pids) == 4
    simulation.send_signal(number)
    simulation.communicate(timeout=60)
    assert simulation.returncode == 130
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_reader_that_stops_reading_ends_everything(tmp_path: Path) -> None:
    """The reader is a pipe, as that of `head`."""
    (tmp_path / "endless.py").write_text(
        "import time\nwhile True:\n    print('line', flush=True)\n    time.sleep(0.01)\n"
    )
    simulation = subprocess.Popen(
        arguments("--", "python", "endless.py"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert simulation.stdout is not None
    simulation.stdout.readline()
    (parent,) = _children(simulation.pid)
    simulation.stdout.close()
    assert simulation.wait(60) == 0
    assert not is_alive(int(parent))
    assert simulation.stderr is not None
    assert "Traceback" not in simulation.stderr.read()
    simulation.stderr.close()


def test_the_pods_end_with_a_simulation_that_is_killed(tmp_path: Path) -> None:
    simulation, pids = started(tmp_path, 2)
    children = [int(pid) for pid in _children(simulation.pid)]
    assert len(children) == 2
    simulation.kill()
    simulation.communicate(timeout=60)
    wait_until(lambda: not [pid for pid in [*pids, *children] if is_alive(pid)])


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


# --- Arguments, and a cluster -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["missing.yaml"], 3, "there is no file 'missing.yaml'"),
        (
            ["--fault", "sigkill", "--", "true"],
            2,
            "'sigkill' is not a fault: give one such as sigkill@process=1,step=30",
        ),
        (["--fault", "sigkill@process=1,step=3", "--", "true"], 2, "there are only the processes 0 to 0"),
        (["--hosts", "99", "--", "true"], 2, "give --hosts N"),
        (["--env", "X", "--", "true"], 2, "expected NAME=VALUE, got 'X'"),
        (["--volume", "data=/tmp", "--", "true"], 2, "the manifest has no such volume; it has none"),
    ],
)
def test_wrong_arguments_get_a_sentence(tmp_path: Path, words: list[str], code: int, reason: str) -> None:
    done = simulate(tmp_path, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert reason in done.stderr


def test_a_manifest_with_a_mistake_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(job("[touch, started]", container="env: [{name: A, value: [1]}]"))
    done = simulate(tmp_path, "job.yaml")
    assert done.returncode == 2
    assert "containers[0].env[0].value: expected a text, got a list of 1" in done.stderr
    assert not (tmp_path / "started").exists()


@needs_kubectl
def test_requests_are_compared_with_the_nodes_of_a_cluster(
    tmp_path: Path, kubernetes_server: KubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in kubernetes_server.environment().items():
        monkeypatch.setenv(name, value)
    kubernetes_server.put("nodes", node("small-1", 4), "default")
    (tmp_path / "job.yaml").write_text(job("['true']", container="resources: {limits: {google.com/tpu: 8}}"))
    variables = {**os.environ, **environment(tmp_path), "HOME": os.environ.get("HOME", str(tmp_path))}
    done = subprocess.run(
        arguments("--kubernetes", kubernetes_server.context, "job.yaml"),
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 11, done.stderr
    assert (
        "the pods of digits can never start: none fits a node of the cluster; each requests 8 google.com/tpu, and the "
        "largest machine for it, small-1, has 4 google.com/tpu. [proven]" in flat(done.stdout)
    )
