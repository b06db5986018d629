"""The names in `ml_goodput_measurement.src` are today's objects, for old programs; loaded once and on use."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap

import ml_goodput_measurement.src
import pytest
from ml_goodput_measurement.goodput_utils import BadputType

from .loaded_modules import loaded_by

MODULES = [
    "checkpoint_badput_calculator",
    "exclusion_utils",
    "gcp_metrics",
    "goodput",
    "goodput_cache",
    "goodput_elastic",
    "goodput_exclusion",
    "goodput_utils",
    "monitoring",
    "monitoring_elastic",
]

FORMS = {
    "import a.b.c": "import ml_goodput_measurement.src.{name}\nfound = ml_goodput_measurement.src.{name}",
    "import a.b.c as d": "import ml_goodput_measurement.src.{name} as found",
    "from a.b import c": "from ml_goodput_measurement.src import {name} as found",
    "attribute": "import ml_goodput_measurement as ours\nfound = ours.src.{name}",
    "import_module": "import importlib\nfound = importlib.import_module('ml_goodput_measurement.src.{name}')",
}


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_import_finds_the_very_same_module(form: str) -> None:
    checks = """
import sys, importlib
for name in sys.argv[1:]:
    names = {}
    exec(FORM.format(name=name), names)
    real = importlib.import_module(f"ml_goodput_measurement.{name}")
    assert names["found"] is real, name
    assert sys.modules[f"ml_goodput_measurement.src.{name}"] is real, name
    assert real.__name__ == real.__spec__.name == f"ml_goodput_measurement.{name}", real.__spec__
"""
    run(f"FORM = {FORMS[form]!r}\n{checks}", *MODULES)


def test_the_second_name_may_be_imported_after_the_first_or_before() -> None:
    run("""
        from ml_goodput_measurement import goodput_utils as first
        from ml_goodput_measurement.src.goodput_utils import BadputType
        from ml_goodput_measurement.src.exclusion_utils import normalize_intervals
        from ml_goodput_measurement import exclusion_utils as last
        assert BadputType is first.BadputType and normalize_intervals is last.normalize_intervals
    """)


def test_only_what_is_used_is_loaded() -> None:
    loaded = loaded_by("from ml_goodput_measurement.src import goodput_utils")
    ours = {name.removeprefix("ml_goodput_measurement.") for name in loaded if name.startswith("ml_goodput_")}
    names = {"src", "src.goodput_utils", "goodput_utils", "_lazy_names", "metric_details"}
    assert ours == {"ml_goodput_measurement", "_version", *names}
    assert not {"importlib.abc", "google", "numpy", "multiprocessing"} & loaded


def test_a_pickle_of_an_old_program_is_read() -> None:
    run(r"""
        import pickle
        kind = pickle.loads(b"cml_goodput_measurement.src.goodput_utils\nBadputType\n.")
        from ml_goodput_measurement import goodput_utils
        assert kind is goodput_utils.BadputType
    """)


def test_a_pickle_names_the_module_that_the_public_package_has() -> None:
    assert b"ml_goodput_measurement.goodput_utils" in pickle.dumps(BadputType.OTHER)


def test_a_module_is_run_under_its_second_name() -> None:
    command = [sys.executable, "-m", "ml_goodput_measurement.src.checkpoint_badput_calculator", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


def test_a_module_that_is_none_is_not_found() -> None:
    with pytest.raises(ImportError, match="goodputs"):
        exec("from ml_goodput_measurement.src import goodputs")
    with pytest.raises(ModuleNotFoundError, match=r"ml_goodput_measurement\.src\.goodputs"):
        exec("import ml_goodput_measurement.src.goodputs")
    with pytest.raises(AttributeError, match="goodputs"):
        ml_goodput_measurement.src.goodputs  # noqa: B018
    with pytest.raises(ModuleNotFoundError):  # Private modules have one name only.
        exec("import ml_goodput_measurement.src.ledger")


def test_all_names_are_listed() -> None:
    assert ml_goodput_measurement.src.__all__ == dir(ml_goodput_measurement.src) == MODULES


@pytest.mark.parametrize(
    "path",
    [
        "goodput.checkpoint_badput_calculator",
        "goodput.goodput_cache",
        "goodput.goodput_exclusion",
        "goodput.goodput_utils",
        "goodput_elastic.goodput",
        "goodput_elastic.goodput_utils",
        "monitoring.gcp_metrics",
        "monitoring.goodput",
        "monitoring.goodput_utils",
        "monitoring_elastic.goodput_elastic",
        "monitoring_elastic.goodput_utils",
        "monitoring_elastic.monitoring",
    ],
)
def test_modules_are_attributes_of_the_modules_that_use_them_as_in_the_public_package(path: str) -> None:
    facade, name = path.split(".")
    program = f"""
        from ml_goodput_measurement import {facade}
        from ml_goodput_measurement.src import {facade} as old
        import ml_goodput_measurement.{name} as real
        assert {facade}.{name} is real
        assert old.{name} is real
    """
    run(program)
