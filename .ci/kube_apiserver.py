"""Build the Kubernetes API server of the tests from the source package of Debian 12: 6 minutes of CPU, 4 GB of disk.

    python .ci/kube_apiserver.py build/kube-apiserver

Debian has no binary package of it. The configured mirror is used; missing packages are installed if this is root.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from debian_packages import MissingPackagesError, install

VERSION: Final = "1.20.2"
PACKAGES: Final = ("golang-1.19-go", "golang-github-modern-go-reflect2-dev", "etcd-server", "dpkg-dev")
_GO: Final = Path("/usr/lib/go-1.19/bin")
_REFLECT2: Final = Path("github.com/modern-go/reflect2")
_ROOT: Final = "k8s.io/kubernetes"
_NOT_SERVED: Final = re.compile(r"codegen|testdata|sample-|/generators|apis/example|kube-openapi/test")


def main(output: Path) -> None:
    """Build the server.

    Args:
        output: The file of the program.

    Raises:
        MissingPackagesError: A package of Debian is missing, and cannot be installed.
    """
    install(PACKAGES)
    with tempfile.TemporaryDirectory(prefix="kube-apiserver-") as name:
        folder = Path(name)
        tree = folder / "go" / "src" / _ROOT
        tree.parent.mkdir(parents=True)
        archive = _download(folder)
        subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={folder}"], check=True)
        (folder / f"kubernetes-{VERSION}").rename(tree)
        _replace_reflect2(tree / "vendor" / _REFLECT2)
        path = os.pathsep.join([str(_GO), os.environ["PATH"]])
        environment = {
            **os.environ,
            "GOPATH": str(folder / "go"),
            "GO111MODULE": "off",
            "CGO_ENABLED": "0",
            "PATH": path,
        }
        _generate_openapi(folder, tree, environment)
        output.parent.mkdir(parents=True, exist_ok=True)
        flags = f"-s -w {' '.join(_version_flags())}"
        command = ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(output), "./cmd/kube-apiserver"]
        subprocess.run(command, cwd=tree, env=environment, check=True)


def _download(folder: Path) -> Path:
    """Return the archive of the source, which apt has checked; the lists of this machine stay as they are."""
    for name in ("lists/partial", "cache/archives/partial", "source"):
        (folder / name).mkdir(parents=True)
    targets = ["Created-By: Packages", "Codename: bookworm", "Component: main"]
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *targets]
    mirrors = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    if not mirrors:
        raise SystemExit("expected Debian 12 (bookworm) among the sources of apt, for its package kubernetes")
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sources.list").write_text(f"deb-src [signed-by={keys}] {mirrors[0]} bookworm main\n")
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",  # Another user could not write into the folder.
    }
    apt = ["apt-get", "-qq", *(f"--option={key}={value}" for key, value in settings.items())]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "source", "--download-only", "kubernetes"], cwd=folder / "source", check=True)
    return next((folder / "source").glob(f"kubernetes_*{VERSION}.orig.tar.*z"))


def _replace_reflect2(vendored: Path) -> None:
    """Replace reflect2 1.0.1, which crashes at the first custom resource with Go 1.18 and later, by Debian's 1.0.2."""
    shutil.rmtree(vendored)
    without_tests = shutil.ignore_patterns("*_test.go", "*-tests")
    shutil.copytree(Path("/usr/share/gocode/src") / _REFLECT2, vendored, ignore=without_tests)


def _generate_openapi(folder: Path, tree: Path, environment: dict[str, str]) -> None:
    """Generate the package of schemas, which the source package leaves out."""
    generator = str(folder / "openapi-gen")
    source = "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"
    subprocess.run(["go", "build", "-o", generator, source], cwd=tree, env=environment, check=True)
    options = {
        "-i": ",".join(_served_packages(tree)),
        "-p": f"{_ROOT}/pkg/generated/openapi",
        "-O": "zz_generated.openapi",
        "-h": "hack/boilerplate/boilerplate.generatego.txt",
        "-r": str(folder / "violations"),
        "-o": str(folder / "go" / "src"),
    }
    command = [generator, *(word for option in options.items() for word in option)]
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)


def _served_packages(tree: Path) -> Iterable[str]:
    """Return the packages that define types with schemas."""
    command = [
        "grep",
        "-rlE",
        "--include=*.go",
        r"^// \+k8s:openapi-gen=",
        "pkg",
        "cmd",
        "plugin",
        "staging/src/k8s.io",
    ]
    found = subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout.splitlines()
    folders = {str(Path(path).parent) for path in found}
    chosen = sorted(folder for folder in folders if not _NOT_SERVED.search(folder))
    return [f"{_ROOT}/{re.sub('^staging/src/', 'vendor/', folder)}" for folder in chosen]


def _version_flags() -> Iterable[str]:
    major, minor, _ = VERSION.split(".")
    values = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    for package in ("component-base/version", "client-go/pkg/version"):
        for key, value in values.items():
            yield f"-X {_ROOT}/vendor/k8s.io/{package}.{key}={value}"


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]).resolve())
    except MissingPackagesError as error:
        raise SystemExit(str(error)) from None
