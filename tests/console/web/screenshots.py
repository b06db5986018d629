"""Remakes the pictures of the page in the documentation, from runs that are made for them: `nox -s screenshots`.

Real programs train, are killed and resumed, and fail; the run of 64 hosts is written by the public writers. All are
served by the real command and shown by headless Chromium.

    python -m tests.console.web.screenshots [FOLDER]
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from .browser import CHROMIUM, Browser, opened_browser
from .fleet_mirror import make_rows
from .made_runs import hang
from .recorded import FAILS, record
from .served import served

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs" / "pictures" / "ui"
_KILL_AT_STEP = 75
_WIDTH, _PHONE_WIDTH = 1400, 390
_HOSTS = 64
_WIDE = "llama3-8b-pretrain-7"
_FLEET = "fleet"
_JOBS = 200


class Scene:
    """A picture of the page.

    Attributes:
        name: The name of its file, without `-dark` and the suffix.
        path: The path of the page.
        page: The mark of the complete page.
        height: The height of the window, in CSS pixels.
        width: Its width.
        themes: Its themes.
    """

    def __init__(
        self, name: str, path: str, page: str, height: int, *, width: int = _WIDTH, themes: tuple[str, ...] = ("light",)
    ) -> None:
        self.name, self.path, self.page, self.height, self.width, self.themes = name, path, page, height, width, themes


_BOTH = ("light", "dark")
SCENES = (
    Scene("runs", "/", "runs", 500, themes=_BOTH),
    Scene("overview", f"/runs/{_WIDE}", "overview", 1100, themes=_BOTH),
    Scene("metrics", "/runs/digits-resumed/metrics", "metrics", 820),
    Scene("stacks", f"/runs/{_WIDE}/stacks", "stacks", 900),
    Scene("logs", "/runs/digits/logs", "logs", 480),
    Scene("compare", "/compare?runs=digits-resumed,digits-small-batch", "compare", 900),
    Scene("phone", f"/runs/{_WIDE}", "overview", 844, width=_PHONE_WIDTH),
    Scene(_FLEET, "/fleet", _FLEET, 1000, themes=_BOTH),
)


def train(folder: Path, name: str, *arguments: str, kill_at: int | None = None) -> None:
    """Train the example, and perhaps kill it at a step.

    Args:
        folder: The diagnostics folder; the others are beside it.
        name: The name of the run.
        arguments: More options of the program.
        kill_at: The step; None to let it end.
    """
    environ = {**os.environ, "ML_DIAGNOSTICS_DIR": str(folder), "ML_DIAGNOSTICS_BACKEND": "local"}
    command = [Path(sys.executable).name, "train_digits.py", "--run-name", name, "--checkpoint-every", "20"]
    command += ["--print-every", "5", "--gcs-path", "profiles", *arguments]
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    with subprocess.Popen(command, cwd=folder.parent, env=environ, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            step = re.match(r"step +(\d+)", line)
            if step is not None and kill_at is not None and int(step[1]) >= kill_at:
                job.send_signal(signal.SIGKILL)
    if job.returncode != (0 if kill_at is None else -signal.SIGKILL):
        raise SystemExit(f"{name} ended with exit code {job.returncode}")


def make_runs(folder: Path) -> None:
    """Make all runs: the stuck one last, since it counts as stuck for three minutes."""
    shutil.copy(ROOT / "examples" / "train_digits.py", folder.parent)
    train(folder, "digits-resumed", "--steps", "400", kill_at=_KILL_AT_STEP)
    train(folder, "digits-resumed", "--steps", "160")
    os.environ["ML_DIAGNOSTICS_BACKEND"] = "local"
    record(folder, FAILS)
    train(folder, "digits-small-batch", "--steps", "160", "--batch-size", "64", "--seed", "3")
    hang(folder, _HOSTS)


def take(browser: Browser, base: str, scene: Scene, theme: str) -> bytes:
    """Return a picture as PNG, as small as it can be without a loss."""
    from PIL import Image

    browser.use_theme(theme)
    browser.resize(scene.width, scene.height)
    browser.open(base + scene.path)
    browser.wait_ready(scene.page)
    if scene.path.startswith(f"/runs/{_WIDE}"):
        browser.wait_for("!document.querySelector('.working')")  # the doctor's sentence is there
    browser.value("document.fonts.ready.then(() => new Promise((drawn) => setTimeout(drawn, 500)))")
    browser.screenshot(path := Path(tempfile.mkdtemp()) / "shot.png")
    with Image.open(path) as shot:
        picture = shot.convert("RGB").crop((0, 0, shot.width, min(shot.height, scene.height)))
    shutil.rmtree(path.parent)
    packed = io.BytesIO()
    picture.save(packed, "PNG", optimize=True)
    return packed.getvalue()


def take_all(base: str, browser: Browser, scenes: Iterable[Scene]) -> Mapping[str, bytes]:
    """Return the pictures of scenes by the names of their files."""
    pictures = {}
    for scene in scenes:
        for theme in scene.themes:
            name = f"{scene.name}-dark.png" if theme == "dark" else f"{scene.name}.png"
            pictures[name] = take(browser, base, scene, theme)
    return pictures


def main(arguments: list[str]) -> int:
    """Remake the pictures, and return the exit code."""
    if CHROMIUM is None:
        print("Chromium is not installed", file=sys.stderr)
        return 1
    folder = Path(arguments[0]).absolute() if arguments else PICTURES
    work = Path(tempfile.gettempdir()) / "training"  # the page shows its name
    work.mkdir()
    try:
        root = work / "ml-diagnostics"
        root.mkdir()
        make_runs(root)
        mirror = make_rows(work / "mirror", jobs=_JOBS)
        pictures: dict[str, bytes] = {}
        with opened_browser(work) as browser:
            for is_fleet, options in ((False, ()), (True, ("--mirror", str(mirror)))):
                scenes = [scene for scene in SCENES if (scene.name == _FLEET) == is_fleet]
                with served(root, *options) as server:
                    pictures |= take_all(f"http://{server.host}", browser, scenes)
    finally:
        shutil.rmtree(work)
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in pictures.items():
        (folder / file).write_bytes(data)
        print(f"{file}: {len(data):,} bytes")
    print(f"{sum(map(len, pictures.values())):,} bytes in all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
