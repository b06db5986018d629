"""Command lines of gcloud: names are checked, values cannot become flags, programs on a VM receive exact arguments."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ml_diagnostics_common.command.errors import UsageError
from xprofiler.gcloud.command_lines import SshTarget, create_instance, ssh

from ..loopback.compute import ComputeServer

TARGET = SshTarget("vm-1", "us-central1-a", project="example.com:project-1")
HOSTILE = ["", "-a", "a b", "a;b", "$(a)", "a\nb", "a'", 'a"', "A", "a_b", "a-", "1a", "ä", "a" * 64, "a/b", "a\0", "٣"]
_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


def test_a_command_of_ssh_has_all_that_gcloud_needs() -> None:
    argv = ssh(TARGET, options=["-N", "-L", "1:localhost:2"], program=["echo", "a b"], extra=["--quiet"])
    assert argv == [
        *("gcloud", "compute", "ssh", "vm-1", "--quiet", "--zone=us-central1-a", "--project=example.com:project-1"),
        *("--command=echo 'a b'", "--", "-N", "-L", "1:localhost:2"),
    ]


@pytest.mark.parametrize("flag", ["--project=other", "--zone=us-east5-a", "--worker=all", "--command=id"])
def test_no_flag_selects_another_machine_for_ssh(flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag.partition('=')[0]} cannot be passed to gcloud"):
        ssh(TARGET, extra=["--quiet", flag])


def test_a_worker_of_a_slice_is_one_of_many() -> None:
    assert ssh(SshTarget("tpu-1", "us-central2-b", tpu_worker=3)) == [
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "tpu-1", "--zone=us-central2-b", "--worker=3"),
    ]
    through_iap = ssh(SshTarget("tpu-1", "us-central2-b", tpu_worker=0, through_iap=True))
    assert through_iap[:6] == ["gcloud", "alpha", "compute", "tpus", "tpu-vm", "ssh"]
    assert "--tunnel-through-iap" in through_iap


def test_inside_of_google_ssh_goes_through_the_helper() -> None:
    argv = ssh(SshTarget("vm-1", "us-central1-a", proxy_through_ssh_helper=True), options=["-N"])
    assert argv[-4:] == ["--", "-o", "ProxyCommand=corp-ssh-helper %h %p", "-N"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_are_not_valid_in_google_cloud_are_refused(name: str) -> None:
    for target in (SshTarget(name, "us-central1-a"), SshTarget("vm-1", name), SshTarget(f"{name}@vm-1", "z")):
        if target.name == "a_b" or (name in ("A", "a_b", "1a", "a-", "a" * 64) and "@" in target.name):
            continue  # Such a name is valid for a host in a search, and for a user.
        with pytest.raises(UsageError, match="is not a valid name"):
            ssh(target)
    with pytest.raises(UsageError):
        create_instance(name, "us-central1-a", "project-1", [], {})


@given(st.lists(_TEXT, min_size=1, max_size=5))
def test_a_program_receives_exactly_its_arguments(program: list[str]) -> None:
    (command,) = [word for word in ssh(TARGET, program=program) if word.startswith("--command=")]
    assert shlex.split(command.removeprefix("--command=")) == program


_KEYS = st.from_regex(r"[a-z][a-z0-9_-]{0,10}", fullmatch=True)


@given(st.dictionaries(_KEYS, _TEXT, max_size=4), st.dictionaries(_KEYS, _TEXT, max_size=4))
@example({"a": "1,2"}, {"b": ",|;:~#--0--"})
def test_pairs_of_the_users_join_ours_whatever_is_in_them(ours: dict[str, str], theirs: dict[str, str]) -> None:
    extra = [] if not theirs else [f"--metadata={_as_gcloud_takes_it(theirs)}"]
    argv = create_instance("vm-1", "us-central1-a", "project-1", [], {"--metadata": ours}, extra)
    (rendered,) = [word for word in argv if word.startswith("--metadata=")]
    joined = {**theirs, **ours}
    assert _read_as_gcloud_does(rendered.removeprefix("--metadata=")) == joined


def _as_gcloud_takes_it(pairs: Mapping[str, str]) -> str:
    separator = "=#=".join("~" * (index + 1) for index in range(6))
    return f"^{separator}^" + separator.join(f"{key}={value}" for key, value in pairs.items())


def _read_as_gcloud_does(text: str) -> dict[str, str]:
    separator = ","
    if text.startswith("^"):
        separator, text = text[1:].split("^", 1)
    return dict(pair.split("=", 1) for pair in text.split(separator)) if text else {}


def test_a_flag_of_pairs_without_any_is_refused() -> None:
    for extra in (["--labels=a"], ["--labels"], ["--labels="]):
        with pytest.raises(UsageError, match="--labels takes KEY=VALUE"):
            create_instance("vm-1", "us-central1-a", "project-1", [], {"--labels": {}}, extra)


@pytest.mark.parametrize(
    "flag",
    [
        *("--project", "--zone", "--async", "--account", "--impersonate-service-account"),
        *("--access-token-file", "--configuration", "--flags-file"),
    ],
)
def test_flags_that_create_an_unmanaged_vm_are_refused(flag: str) -> None:
    for extra in ([flag], [f"{flag}=other"], ["--no-address", flag, "other"]):
        with pytest.raises(UsageError, match=f"^{flag} cannot be passed to gcloud"):
            create_instance("vm-1", "us-central1-a", "project-1", [], {}, extra)


needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")


@needs_gcloud
def test_the_real_gcloud_passes_options_and_program_to_ssh_unchanged(
    compute_server: ComputeServer, tmp_path: Path
) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen")
    compute_server.add_instance("vm-1", "us-central1-a")
    program = ["python3", "-c", "print('x  y', \"$HOME\")", "a\\b", ";", "$(touch x)"]
    environ = {
        **compute_server.environment(),
        "CLOUDSDK_CONFIG": str(tmp_path),
        "HOME": str(tmp_path),
        "PATH": _path_with_recorder(tmp_path),
    }
    argv = ssh(SshTarget("vm-1", "us-central1-a"), options=["-S", "a b", "-o", "X=it's"], program=program)
    ended = subprocess.run([*argv[:4], "--plain", *argv[4:]], env=environ, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    words = (tmp_path / "words").read_bytes().decode().split("\0")[:-1]
    at = words.index("--")
    assert words[at - 4 : at] == ["-S", "a b", "-o", "X=it's"]
    assert shlex.split(" ".join(words[at + 1 :])) == program  # ssh joins the arguments like this, for the remote shell.


def _path_with_recorder(folder: Path) -> str:
    import os

    (folder / "bin").mkdir()
    recorder = folder / "bin" / "ssh"
    recorder.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" >{shlex.quote(str(folder / 'words'))}\n")
    recorder.chmod(0o755)
    return f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
