"""The commands for developers, as sessions of nox; `nox --list` lists them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True
nox.options.sessions = ["lint", "typing", "tests"]

ROOT = Path(__file__).parent
PACKAGES = {
    "cloud_tpu_diagnostics": "cloud_tpu_diagnostics",
    "common": "ml_diagnostics_common",
    "console": "ml_diagnostics_console",
    "fleet": "ml_diagnostics_fleet",
    "google_cloud_mldiagnostics": "google_cloud_mldiagnostics",
    "ml_diagnostics": "ml_diagnostics",
    "ml_goodput_measurement": "ml_goodput_measurement",
    "testing": "ml_diagnostics_testing",
    "xprofiler": "xprofiler",
}
# In the order of their names: by default, the files with the fewest tests are last, and these have the longest tests.
SIDE_BY_SIDE = [f"--numprocesses={min(5, (os.cpu_count() or 1) + 3)}", "--dist=loadfile", "--no-loadscope-reorder"]
LEAST_COVERAGE = {
    "*": 91,
    "ml_goodput_measurement/_ledger/*": 95,
    "ml_diagnostics_common/journal/*": 95,
    "ml_diagnostics_common/shipper/*": 95,
    "ml_diagnostics_common/redaction.py ml_diagnostics_common/_secret_*.py": 95,
}
ON_CPU = {"JAX_PLATFORMS": "cpu"}
MOST_WORDS = 4_000
"""On a page of the site."""
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
COMPILE = [
    "--quiet",
    "--universal",
    "--python-version=3.10",
    "--upgrade",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-annotate",
    "--custom-compile-command=nox -s lock",
]
PIN_SETS = [
    "nox",
    "build",
    "release",
    "vendor",
    "tests",
    "demo",
    "typing",
    "lint",
    "docs",
    "kubernetes",
    "oldest",
    "reference",
    "reference-diagnostics",
    "reference-mldiagnostics-1.0.0",
    "reference-mldiagnostics-1.0.10",
    "reference-xprofiler",
    "bench-trackers",
    "torch-xla",
    "libtpu",
    "integrations",
    "beam",
]
AS_IN_TESTS = [
    "demo",
    "kubernetes",
    "typing",
    "reference-mldiagnostics-1.0.0",
    "reference-mldiagnostics-1.0.10",
    "reference-xprofiler",
    "bench-trackers",
    "torch-xla",
    "integrations",
]
WITHOUT_EXTRAS = ["torch-xla", "integrations", "beam"]  # Extras bring JAX, which users of PyTorch may not have.


def offer_all_pyenv_pythons() -> None:
    """Make pyenv's shims run every installed Python, not only the selected one."""
    if shutil.which("pyenv") and "PYENV_VERSION" not in os.environ:
        installed = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=False)
        current = ".".join(map(str, sys.version_info[:3]))
        others = [version for version in installed.stdout.split() if version[0] == "3" and version != current]
        if current in installed.stdout.split():
            os.environ["PYENV_VERSION"] = ":".join([current, *others])


offer_all_pyenv_pythons()


def oldest_and_newest() -> list[str]:
    """Return the oldest and the newest supported Python that this machine has."""
    found = [version for version in PYTHONS if runs(f"python{version}")]
    return sorted({*found[:1], *found[-1:]}, key=PYTHONS.index)


def runs(program: str) -> bool:
    """Return True if a program is installed; pyenv may have a shim for a program that is not."""
    try:
        return subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def install(session: nox.Session, pins: str, *packages: str) -> None:
    """Install a set of pins, then our own packages from the working tree, which carry no hashes."""
    session.env["PYTHONDONTWRITEBYTECODE"] = ""  # compiled once, not at each start of a child
    session.env["PATH"] = os.pathsep.join([session.bin, str(Path(sys.executable).parent), os.environ["PATH"]])  # uv
    session.install("--require-hashes", "-r", f"requirements/{pins}.txt")
    if packages:
        editable = [argument for name in packages for argument in ("-e", f"packages/{name}")]
        session.install("--no-deps", "--no-build-isolation", *editable)


def run_tests(session: nox.Session, pins: str, *arguments: str) -> None:
    """Run pytest in an environment of its own, up to five files of tests at a time: three more than there are cores.

    Most of the time, many tests wait for real programs. A test marked `timing` is run once more if it fails, and listed
    as RERUN; all others fail at once.
    """
    install(session, pins, *PACKAGES)
    session.run("python", "-m", "pytest", *SIDE_BY_SIDE, "-rR", *arguments, *session.posargs, env=ON_CPU)


@nox.session
def demo(session: nox.Session) -> None:
    """Run the main job: train, profile, kill, resume, hang, and report where the time went and what the run did."""
    install(session, "demo", *(name for name in PACKAGES if name != "testing"))
    session.run("python", "examples/demo.py", *session.posargs, env=ON_CPU)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests on the Python that runs nox."""
    run_tests(session, "tests")


@nox.session(python=PYTHONS)
def everywhere(session: nox.Session) -> None:
    """Run the tests on every supported Python of this machine."""
    run_tests(session, "tests")


@nox.session(python=oldest_and_newest())
def core(session: nox.Session) -> None:
    """Run the tests of the code closest to the interpreter, on the oldest and the newest Python of this machine."""
    ledger = [str(path) for path in sorted(ROOT.glob("tests/ml_goodput_measurement/test_ledger_*.py"))]
    run_tests(session, "tests", "tests/common", "tests/cloud_tpu_diagnostics", *ledger)


@nox.session
def browser(session: nox.Session) -> None:
    """Run the tests of the pages in headless Chromium; without one they are skipped. A Chromium keeps a core busy."""
    folders = ["tests/console/web", "tests/xprofiler"]
    run_tests(session, "tests", *folders, "-m", "browser and not slow", f"--numprocesses={os.cpu_count() or 1}")


@nox.session
def slow(session: nox.Session) -> None:
    """Run the tests that take minutes: soaks and long fuzzing, and those of Hypothesis with all of their examples."""
    run_tests(session, "tests", "-m", "slow or hypothesis", "--numprocesses=0", "--timeout=3600")


@nox.session
def kube_apiserver(session: nox.Session) -> None:
    """Build the Kubernetes API server of the tests from Debian's source package; 6 minutes of CPU, 4 GB of disk."""
    session.run("python", ".ci/kube_apiserver.py", "build/kube-apiserver")


@nox.session
def charts(session: nox.Session) -> None:
    """Write deploy/manifests: the charts with their default values, rendered by Helm's template engine."""
    install(session, "tests", *PACKAGES)
    needed = ["golang-1.19-go", "golang-github-masterminds-sprig-dev", "golang-k8s-sigs-yaml-dev"]
    session.run("python", ".ci/debian_packages.py", *needed)
    session.run("python", "-m", "tests.deploy.charts")


@nox.session
def kubernetes(session: nox.Session) -> None:
    """Run all tests of the webhook, the operator and the charts, slow ones, too, with a real Kubernetes API server."""
    folders = ["tests/google_cloud_mldiagnostics/kubernetes", "tests/deploy"]
    run_tests(session, "tests", *folders, "-m", "slow or not slow", "--timeout=3600")


@nox.session
def coverage(session: nox.Session) -> None:
    """Measure which branches the tests run, also in processes that they start; fail below the least percentages.

    The measurement slows programs down and loads modules, so some tests fail here: failures count in `tests` only.
    A test that forks beside busy threads is left out: its children hang in a lock of the tracer.
    """
    install(session, "tests", *PACKAGES)
    shutil.rmtree(ROOT / ".coverage", ignore_errors=True)
    (ROOT / ".coverage").mkdir()
    chosen = ["-p", "no:rerunfailures", "-k", "not test_forking_under_load", *SIDE_BY_SIDE, *session.posargs]
    session.run("coverage", "run", "-m", "pytest", *chosen, env=ON_CPU, success_codes=[0, 1])
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report", "--skip-covered")
    for files, percentage in LEAST_COVERAGE.items():
        include = ",".join(f"packages/*/src/{file}" for file in files.split())
        session.run("coverage", "report", f"--include={include}", f"--fail-under={percentage}", "--format=total")


@nox.session
def flakes(session: nox.Session) -> None:
    """Run all tests three times without reruns, and list those that did not pass each time; about half an hour."""
    install(session, "tests", *PACKAGES)
    failures: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:  # That of nox would be the tests', too: inside of this checkout.
        for number in range(3):
            report = Path(folder) / f"run-{number}.xml"
            options = ["-p", "no:rerunfailures", f"--junitxml={report}", *SIDE_BY_SIDE, *session.posargs]
            session.run("python", "-m", "pytest", *options, env=ON_CPU, success_codes=[0, 1])
            for case in ElementTree.parse(report).iter("testcase"):
                if case.find("failure") is not None or case.find("error") is not None:
                    failures[f"{case.get('classname')}.{case.get('name')}"] += 1
    if failures:
        session.error("\n".join(f"failed in {count} of 3 runs: {name}" for name, count in failures.most_common()))


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """Run the tests with the lowest supported version of Python and of every dependency."""
    run_tests(session, "oldest")


@nox.session(name="torch-xla")
def torch_xla(session: nox.Session) -> None:
    """Run a trainer of PyTorch/XLA from end to end, on the CPU. Not part of the tests: its wheels take 7 GB."""
    install(session, "torch-xla", *PACKAGES)
    session.run("python", "-m", "pytest", "tests/e2e/test_torch_xla.py", *session.posargs, env={"PJRT_DEVICE": "CPU"})


@nox.session
def integrations(session: nox.Session) -> None:
    """Run the hooks, notebooks and loaders with real frameworks. Not part of the tests: the wheels take 8 GB.

    Each file of tests has a process of its own: PyTorch's compiler crashes in one that has imported TensorFlow.
    `-- -m slow` compares the inferred goodput of 20 programs with the recorded one, which needs these frameworks, too.
    """
    install(session, "integrations", *PACKAGES)
    folder = ROOT / "tests" / "ml_diagnostics"
    others = [folder / f"test_{name}.py" for name in ("inferred_goodput", "notebook", "run_of_loaders")]
    failed = []
    for path in [*sorted(folder.glob("integrations/test_*.py")), *others]:
        options = ["-rR", str(path.relative_to(ROOT)), *session.posargs]
        try:
            session.run("python", "-m", "pytest", *options, env=ON_CPU, success_codes=[0, 5])  # 5: none was chosen
        except nox.command.CommandFailed:
            failed.append(path.name)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session
def beam(session: nox.Session) -> None:
    """Run the fleet's engine on Apache Beam, and compare its rows with those of all engines: 1 GB, so not in the tests.

    `-- -m slow` compares 300 fleets. `-- bench` measures the engine; `nox -s fleet` measures the others.
    """
    install(session, "beam", *PACKAGES)
    if session.posargs[:1] == ["bench"]:
        session.run("python", "-m", "benchmarks", "fleet_beam", *session.posargs[1:], env=ON_CPU)
        return
    tests = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/fleet/test_beam*.py"))]
    page = "tests/test_docs_examples.py::test_the_examples_of_a_page_run[docs/how-to/fleet-on-dataflow.md]"
    session.run("python", "-m", "pytest", *SIDE_BY_SIDE, "-rR", *tests, page, *session.posargs, env=ON_CPU)


@nox.session
def differential(session: nox.Session) -> None:
    """Compare ours and the public package on generated histories; also part of the tests."""
    run_tests(session, "tests", *sorted(map(str, ROOT.glob("tests/*/test_differential*.py"))))


@nox.session
def bench(session: nox.Session) -> None:
    """Measure ours, and the public package if it can be installed; `-- compare` lists what became worse."""
    install(session, "tests", *PACKAGES)
    session.run("python", "-m", "benchmarks", *session.posargs, env=ON_CPU)


@nox.session
def fleet(session: nox.Session) -> None:
    """Make a fleet of 2,000 jobs and 1e8 events from a seed, and measure the map and its engine; 0.7 GB of disk."""
    install(session, "tests", *PACKAGES)
    session.run("python", "-m", "benchmarks", "fleet", *session.posargs, env=ON_CPU)


@nox.session
def faultbench(session: nox.Session) -> None:
    """Inject faults into jobs of real JAX processes, and score the doctor: `-- --smoke`, or hours for all seeds."""
    install(session, "tests", *PACKAGES)
    chosen = session.posargs or ["--store", "build/faultbench", "--resume", "--output", "build/faultbench-results"]
    session.run("python", "-m", "ml_diagnostics_console.faultbench", *chosen, env=ON_CPU)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, import contracts, the Dockerfile and changelog fragments, with the tools that pre-commit runs."""
    install(session, "lint", *PACKAGES)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache")
    session.run("pre-commit", "run", "--all-files", "end-of-file")
    session.run("hadolint", "deploy/images/Dockerfile")
    for name in PACKAGES:  # a fragment with a wrong name or type is an error
        draft = ["--draft", "--version=next", "--config=.ci/towncrier.toml", f"--dir=packages/{name}"]
        session.run("towncrier", "build", *draft, silent=True)


@nox.session
def vendor(session: nox.Session) -> None:
    """Fetch the files of others that the page serves, as vendor.json lists them; `-- --check` compares them."""
    session.install("--require-hashes", "-r", "requirements/vendor.txt")
    session.run("python", ".ci/vendored_files.py", *session.posargs)


@nox.session
def screenshots(session: nox.Session) -> None:
    """Remake docs/pictures/ui, the pictures of the page, from runs that are made for them; needs Chromium."""
    install(session, "tests", *PACKAGES)
    session.run("python", "-m", "tests.console.web.screenshots", *session.posargs, env=ON_CPU)


@nox.session
def api(session: nox.Session) -> None:
    """Compare the public names with the last release; a breakage without an entry in .ci/public-api.toml fails."""
    install(session, "lint")
    session.run("python", ".ci/public_api.py", *session.posargs)


@nox.session
def typing(session: nox.Session) -> None:
    """Check types strictly, in every package, every example and every test."""
    install(session, "typing", *PACKAGES)
    for module in PACKAGES.values():
        session.run("mypy", "-p", module)
    session.run("mypy", "examples")
    session.run("mypy", "-p", "tests")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into site/; any warning fails. `nox -s docs -- serve` shows it while it is written."""
    install(session, "docs", *PACKAGES)
    command = session.posargs or ["build", "--strict"]
    session.run("mkdocs", *command, env={"NO_MKDOCS_2_WARNING": "1"})
    for page in (ROOT / "site").rglob("*.html"):
        if fetched := re.findall(
            r"<(?:script|link rel=.stylesheet.|img)[^>]*(?:src|href)=.https?:[^>]*", page.read_text()
        ):
            session.error(f"{page} fetches from elsewhere: {fetched}")
        article = re.search(r"<article.*</article>", page.read_text(), re.DOTALL)
        words = re.sub(r"<[^>]*>", " ", article[0]).split() if article else []
        if len(words) > MOST_WORDS:
            session.error(f"{page} has {len(words)} words: split it, {MOST_WORDS} are allowed")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every package, check what an index shows of it, and try each wheel alone (with those it depends on)."""
    install(session, "release")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for name in PACKAGES:
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(dist), f"packages/{name}", silent=True)
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
    constraints = Path(session.create_tmp()) / "constraints.txt"
    pins = (ROOT / "requirements" / "tests.txt").read_text().splitlines()
    constraints.write_text("".join(line.rstrip(" \\") + "\n" for line in pins if line[:1].isalnum()))
    for name in PACKAGES:
        empty = Path(session.create_tmp()) / name
        session.run("python", "-m", "venv", "--clear", str(empty))
        python = str(empty / "bin" / "python")
        wheel = next(dist.glob(f"{distribution_of(name).replace('-', '_')}-*.whl"))
        options = ["-qq", "-c", str(constraints), "--find-links", str(dist)]  # Ours are not on the index.
        session.run(python, "-m", "pip", "install", *options, str(wheel), external=True)
        session.run(python, "-I", str(ROOT / "tests" / "wheels" / f"{name}.py"), external=True)


@nox.session
def lock(session: nox.Session) -> None:
    """Update the pins: names, versions and hashes, without addresses."""
    session.install("--require-hashes", "-r", "requirements/nox.txt")
    manifests = [f"packages/{name}/pyproject.toml" for name in PACKAGES]
    for name in session.posargs or PIN_SETS:
        sources = [f"requirements/{name}.in"]
        options = []
        if name in ("demo", "tests", "typing", "oldest", *WITHOUT_EXTRAS):
            sources += manifests
            options += [f"--no-emit-package={ours}" for ours in distributions()]
            if name == "beam":  # not with the versions of `tests`: Beam accepts older ones of pyarrow and protobuf
                options += ["--extra=beam"]
            if name not in WITHOUT_EXTRAS:
                # OTLP needs protobuf 5: with it, nothing would be tested with 4, which the other dependencies accept.
                left_out = {"otlp"} if name == "oldest" else set()
                options += [f"--extra={extra}" for extra in extras() if extra not in left_out]
        if name == "kubernetes":
            sources += ["packages/google_cloud_mldiagnostics/pyproject.toml"]
            options += ["--extra=kubernetes", *(f"--no-emit-package={ours}" for ours in distributions())]
        if name in AS_IN_TESTS:
            options += ["--constraint", "requirements/tests.txt"]
        if name == "oldest":
            sources[0] = "requirements/tests.in"
            options += ["--resolution=lowest-direct"]
        session.run("uv", "pip", "compile", *COMPILE, *options, *sources, "-o", f"requirements/{name}.txt")


def extras() -> list[str]:
    """Return the names of all extras of our packages but Beam's, which takes 655 MB."""
    tables = [
        (ROOT / "packages" / name / "pyproject.toml").read_text().partition("[project.optional-")[2]
        for name in PACKAGES
    ]
    found = {
        extra for table in tables for extra in re.findall(r"^([\w-]+) = \[", table.partition("\n[")[0], re.MULTILINE)
    }
    return sorted(found - {"beam"})


def distributions() -> list[str]:
    """Return the names of our own distributions."""
    return [distribution_of(name) for name in PACKAGES]


def distribution_of(package: str) -> str:
    """Return the name of a package's distribution."""
    found = re.search(r'^name = "(.+)"', (ROOT / "packages" / package / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]
