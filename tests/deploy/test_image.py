"""The image of both servers: its user, and that all it installs is pinned; hadolint checks the rest in `lint`."""

from __future__ import annotations

import re
from pathlib import Path

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
