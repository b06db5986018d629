"""Packages of Debian that a session needs: installed if this is root, else named in an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["MissingPackagesError", "install"]


class MissingPackagesError(Exception):
    """Packages are missing; the message is the command that installs them."""


def install(packages: Sequence[str]) -> None:
    """Install the packages that are missing.

    Args:
        packages: Their names.

    Raises:
        MissingPackagesError: This is not root, or not a Debian that has them.
    """
    missing = [package for package in packages if not _is_installed(package)]
    if not missing:
        return
    problem = f"packages of Debian are missing: apt-get install {' '.join(missing)}"
    if os.geteuid() or shutil.which("apt-get") is None:
        raise MissingPackagesError(problem)
    try:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        command = ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", *missing]
        subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    except subprocess.CalledProcessError as error:
        raise MissingPackagesError(problem) from error


def _is_installed(package: str) -> bool:
    if shutil.which("dpkg-query") is None:
        return False
    command = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.returncode == 0 and found.stdout == "installed"


if __name__ == "__main__":
    try:
        install(sys.argv[1:])
    except MissingPackagesError as error:
        raise SystemExit(str(error)) from None
