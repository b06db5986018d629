"""The page's own files: their form, what they never do, and the colours that they are drawn with."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ml_goodput_measurement.partition import Bucket
from ml_goodput_measurement.reading import COLORS

from .node import NODE, STATIC, needs_node, run_script

OWN = sorted(path for path in STATIC.rglob("*") if path.is_file() and "vendor" not in path.parts)
MODULES = [path for path in OWN if path.suffix == ".js"]
STYLES = [path for path in OWN if path.suffix == ".css"]
PAGES = [path for path in OWN if path.suffix == ".html"]
MOST_LINES = 400
LONGEST_LINE = 120

# What the policy of the page forbids, and ways around it; each with what is allowed in its place.
FORBIDDEN = {
    r"\b(?:inner|outer)HTML\b": "text nodes (dom.js)",
    r"\binsertAdjacentHTML\b|\bdocument\.write\b|\bsetHTML\w*\b|\bDOMParser\b": "text nodes (dom.js)",
    r"\beval\s*\(|\bnew Function\b": "code",
    r"setAttribute\(\s*[\"'`]style": "element.style.setProperty",
    r"[\"'`{,\s]style:\s*[\"'`]": "css: {...} of dom.js",
    r"setTimeout\(\s*[\"'`]|setInterval\(\s*[\"'`]": "a function",
    r"javascript:": "a listener",
    r"https?://(?!www\.w3\.org/|127\.0\.0\.1)": "nothing: the page loads nothing from outside",
    r"\.setAttribute\(\s*[\"'`]on\w+": "addEventListener",
}
BUCKETS = {bucket: bucket.name.lower().replace("_", "-") for bucket in Bucket}
_CONTRAST = {"ink": 7.0, "soft": 4.5, "faint": 4.5, "accent": 4.5, "good": 4.5, "bad": 4.5, "hung": 4.5, "warn": 4.5}
_ON_OWN_GROUND = {"good": 4.5, "bad": 4.5, "hung": 4.5, "warn": 4.5, "info": 4.5, "accent": 4.5}
# Of the contract: least distances of any two buckets, and of any to productive.
_DISTANCES = {"light": (14.0, 15.5), "dark": (9.0, 14.6)}
_MATRICES = {
    # How people without one kind of cone see linear RGB (Machado, Oliveira and Fernandes, 2009, severity 1).
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def name_of(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


@needs_node
@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_can_be_parsed(path: Path) -> None:
    assert NODE is not None
    done = subprocess.run([NODE, "--check", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [*MODULES, *STYLES, *PAGES], ids=name_of)
def test_a_file_is_short_and_narrow(path: Path) -> None:
    lines = path.read_text("utf-8").split("\n")
    assert len(lines) <= MOST_LINES + 1
    assert [line for line in lines if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_keeps_to_the_policy(path: Path) -> None:
    text = path.read_text("utf-8")
    found = {pattern: re.findall(pattern, text) for pattern in FORBIDDEN}
    assert {FORBIDDEN[pattern]: hits for pattern, hits in found.items() if hits} == {}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_what_is_there(path: Path) -> None:
    text = path.read_text("utf-8")
    for target in _imports(text):
        assert target.startswith("."), target
        assert (path.parent / target).resolve() in MODULES, target


def _imports(text: str, *, is_static: bool = False) -> list[str]:
    """Return what a module imports, in the forms that the export of case files can inline."""
    static = re.findall(r"^(?:import|export)\b[^;\"]*\bfrom\s+\"([^\"]+)\";", text, flags=re.MULTILINE)
    return static if is_static else static + re.findall(r"\bimport\(\"([^\"]+)\"\)", text)


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = {
        path: {
            (path.parent / target).resolve() for target in re.findall(r"from\s+\"([^\"]+)\"", path.read_text("utf-8"))
        }
        for path in MODULES
    }
    done: set[Path] = set()

    def walk(path: Path, way: tuple[Path, ...]) -> None:
        assert path not in way, " -> ".join(map(name_of, (*way, path)))
        if path not in done:
            for target in imports.get(path, ()):
                walk(target, (*way, path))
            done.add(path)

    for path in MODULES:
        walk(path, ())


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_has_no_script_or_style_inside(path: Path) -> None:
    text = path.read_text("utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\sstyle=|\son\w+=", text) == []
    for target in re.findall(r"(?:src|href)=\"([^\"#]+)\"", text):
        assert target.startswith("/static/"), target
        assert (STATIC / target.removeprefix("/static/")).is_file(), target


@pytest.mark.parametrize("path", STYLES, ids=name_of)
def test_a_style_names_colours_by_tokens(path: Path) -> None:
    text = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
    if path.name in ("tokens.css", "token.css"):
        return
    rules = re.sub(r"@media print\s*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", text)  # on paper all is black on white
    values = re.findall(r"(?<!-)\b[\w-]+:\s*([^;{}]+);", rules)
    assert [value for value in values if re.search(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsla?\(", value)] == []
    names = set(re.findall(r"var\(--([\w-]+)", rules))
    own = set(re.findall(r"--([\w-]+)\s*:", rules))
    from_script = {"share", "colour", "lines", "stroke"} | set(
        re.findall(r"[\"']--([\w-]+)[\"']", "".join(module.read_text("utf-8") for module in MODULES))
    )
    assert names - own - from_script - set(tokens("light")) == set()


# --- Colours ---------------------------------------------------------------------------------------------


def tokens(theme: str) -> dict[str, str]:
    """Return the custom properties of a theme; the dark ones over the light ones."""
    text = re.sub(r"/\*.*?\*/", "", (STATIC / "common" / "tokens.css").read_text("utf-8"), flags=re.DOTALL)
    blocks = [(selector.strip(), body) for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text)]
    found: dict[str, str] = {}
    for selector, body in blocks:
        is_dark = 'data-theme="dark"' in selector
        if (selector == ":root" and "max-width" not in selector and "--ground" in body) or (
            is_dark and theme == "dark"
        ):
            found |= {name: value.strip() for name, value in re.findall(r"--([\w-]+):\s*([^;]+);", body)}
    return found


def linear(colour: str) -> np.ndarray:
    """Return linear RGB of a colour such as #1f5fb4."""
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours by WCAG 2."""
    light, dark = sorted((float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return CIELAB (D65) of linear RGB."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ rgb.clip(0, 1) / [0.95047, 1.0, 1.08883]
    root = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def distance(one: str, other: str) -> float:
    """Return the least CIE76 distance of two colours as people with each kind of colour vision see them."""
    return min(
        float(np.linalg.norm(lab(np.array(matrix) @ linear(one)) - lab(np.array(matrix) @ linear(other))))
        for matrix in _MATRICES.values()
    )


def test_the_two_dark_blocks_are_equal() -> None:
    text = (STATIC / "common" / "tokens.css").read_text("utf-8")
    by_system, by_choice = (
        dict(re.findall(r"--([\w-]+):\s*([^;]+);", body))
        for selector, body in re.findall(r"(:root[^{}]*)\{([^{}]*)\}", text)
        if "--ground" in body and selector.strip() != ":root"
    )
    assert by_system == by_choice
    light = tokens("light")
    colours = {name for name, value in light.items() if value.startswith("#")}
    assert colours == set(by_choice)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ground", ["sheet", "ground", "raised"])
def test_text_can_be_read(theme: str, ground: str) -> None:
    colours = tokens(theme)
    found = {name: contrast(colours[name], colours[ground]) for name in _CONTRAST}
    assert {name: value for name, value in found.items() if value < _CONTRAST[name]} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_its_own_ground(theme: str) -> None:
    colours = tokens(theme)
    found = {name: contrast(colours[name], colours[f"{name}-ground"]) for name in _ON_OWN_GROUND}
    assert {name: value for name, value in found.items() if value < _ON_OWN_GROUND[name]} == {}
    for ground in ("hover", "chosen", "trough", "accent-ground", "warn-ground"):
        assert contrast(colours["ink"], colours[ground]) >= 7, ground
    for ground in ("hover", "chosen", "trough"):
        assert contrast(colours["soft"], colours[ground]) >= 4.5, ground
    assert contrast(colours["on-accent"], colours["accent"]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curves_and_series_are_seen_on_the_sheet(theme: str) -> None:
    colours = tokens(theme)
    found = {f"series-{at}": contrast(colours[f"series-{at}"], colours["sheet"]) for at in range(8)}
    assert {name: value for name, value in found.items() if value < 4.5} == {}


def test_buckets_in_light_are_those_of_the_report_s_picture() -> None:
    colours = tokens("light")
    expected = {bucket: colour for bucket, colour in COLORS.items() if bucket not in (Bucket.UNKNOWN, Bucket.EXCLUDED)}
    assert {bucket: colours[f"bucket-{BUCKETS[bucket]}"] for bucket in expected} == expected
    assert colours["bucket-unknown"] == "#d4d7dc"  # to be told from the sheet


def test_buckets_in_dark_do_not_sink_into_the_sheet() -> None:
    colours = tokens("dark")
    found = {name: contrast(colours[f"bucket-{name}"], colours["sheet"]) for name in BUCKETS.values()}
    assert {name: value for name, value in found.items() if value < 3} == {
        "unknown": pytest.approx(2.2, abs=0.1),
        "excluded": pytest.approx(1.0, abs=0.01),  # the sheet, hatched
    }


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_buckets_differ_for_people_with_any_kind_of_colour_vision(theme: str) -> None:
    colours = tokens(theme)
    names = [name for name in BUCKETS.values() if name != "excluded"]
    least, least_to_productive = _DISTANCES[theme]
    found = {
        (one, other): distance(colours[f"bucket-{one}"], colours[f"bucket-{other}"])
        for one, other in itertools.combinations(names, 2)
    }
    close = {pair: value for pair, value in found.items() if value < least}
    assert close == {}
    assert {pair: value for pair, value in found.items() if "productive" in pair and value < least_to_productive} == {}


@needs_node
def test_each_bucket_has_a_name_and_a_colour() -> None:
    found = run_script(
        "const { bucketSlug, bucketTitle } = await load('buckets.js');"
        "answer(given.map((name) => [bucketSlug(name), bucketTitle(name)]));",
        [form for bucket in Bucket for form in (bucket.value, bucket.name, bucket.name.lower())],
    )
    slugs = [BUCKETS[bucket] for bucket in Bucket for _ in range(3)]
    assert [slug for slug, _ in found] == slugs
    assert all(title[0].isupper() and "_" not in title for _, title in found)
