"""The image of both servers: its user, and that all it installs is pinned; hadolint checks the rest in `lint`."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).parents[2]
_IMAGES = _ROOT / "deploy" / "images"
_LINES = (_IMAGES / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def arguments(instruction: str) -> list[str]:
    return [line.split(None, 1)[1] for line in _LINES if line.startswith(f"{instruction} ")]


def test_the_servers_run_without_root_and_write_to_tmp_alone() -> None:
    assert arguments("USER") == ["65532:65532"]
    assert "HOME=/tmp" in arguments("ENV")[-1].split()
    assert arguments("WORKDIR")[-1] == "/tmp"


def test_each_package_of_others_is_pinned_with_its_hash() -> None:
    for command in arguments("RUN"):
        for part in re.split(r"\s*&&\s*", command):
            if "pip install" in part or "pip wheel" in part:
                is_ours = "--no-deps" in part and ("--no-index" in part or "--no-build-isolation" in part)
                assert is_ours or "--require-hashes" in part, part
                assert "--no-cache-dir" in part, part


def test_all_files_that_are_copied_are_sent_to_the_builder() -> None:
    sent = set((_IMAGES / "Dockerfile.dockerignore").read_text().split())
    for copied in arguments("COPY"):
        if not copied.startswith("--from"):
            for path in copied.split()[:-1]:
                assert (_ROOT / path).exists(), path
                assert f"!{path}" in sent, path


def test_both_stages_have_the_python_that_the_servers_need() -> None:
    assert {stage.split()[0] for stage in arguments("FROM")} == {"python:3.12-slim-bookworm"}


def test_all_that_the_servers_need_is_pinned() -> None:
    pins: set[str] = {
        canonicalize_name(line.partition("==")[0])
        for line in (_ROOT / "requirements" / "kubernetes.txt").read_text().splitlines()
        if "==" in line
    }
    ours = {"google-cloud-mldiagnostics", "ml-diagnostics-common"}
    assert needed("google-cloud-mldiagnostics[kubernetes]", set()) - ours <= pins


def needed(requirement: str, seen: set[str]) -> set[str]:
    """Return the names of the packages that a requirement brings along with the image's Python."""
    if requirement in seen:
        return set()
    seen.add(requirement)
    parsed = Requirement(requirement)
    found: set[str] = {canonicalize_name(parsed.name)}
    try:
        lines = metadata.requires(parsed.name) or ()
    except metadata.PackageNotFoundError:  # kopf and Starlette need Python 3.11.
        return found
    for line in lines:
        below = Requirement(line)
        environments = [{"extra": extra, **_PYTHON} for extra in ("", *parsed.extras)]
        if below.marker is None or any(map(below.marker.evaluate, environments)):
            extras = f"[{','.join(sorted(below.extras))}]" if below.extras else ""
            found |= needed(f"{below.name}{extras}", seen)
    return found


_PYTHON = {"python_version": "3.12", "python_full_version": "3.12.1", "sys_platform": "linux"}
