"""The public names: where the documentation says they are, and at no cost to a trainer that only records."""

from __future__ import annotations

import subprocess
import sys

import ml_goodput_measurement
import pytest
from ml_goodput_measurement import goodput, goodput_utils

from .loaded_modules import loaded_by

RECORDS_ONLY = """
import ml_goodput_measurement
from ml_goodput_measurement import goodput
recorder = ml_goodput_measurement.goodput.GoodputRecorder("run7", "goodput_run7", True)
recorder.record_job_start_time()
recorder.record_step_start_time(0)
recorder.record_custom_badput_event_start_time(custom_badput_event_type="eval")
recorder.flush()
"""


def test_recording_loads_neither_the_calculator_nor_what_it_stands_on() -> None:
    loaded = loaded_by(RECORDS_ONLY)
    ours = {name.rpartition(".")[2] for name in loaded if name.startswith("ml_goodput_measurement.")}
    modules = {"_version", "_lazy_names", "_record", "arguments", "blocks", "goodput", "recorder"}
    assert ours <= modules | {"process_end", "process_outcome"}
    heavy = {"msgspec", "google", "grpc", "requests", "jax", "numpy", "orbax", "scipy", "matplotlib", "tensorboard"}
    assert not heavy & loaded


def test_every_public_name_is_there() -> None:
    assert goodput.__all__ == sorted(goodput.__all__)
    for name in goodput.__all__:
        assert name == "UnproductiveTimeDict" or getattr(goodput, name).__name__ == name
    assert goodput.UnproductiveTimeDict is goodput_utils.UnproductiveTimeDict
    assert dir(goodput) == goodput.__all__
    assert ml_goodput_measurement.goodput is goodput
    for name in ml_goodput_measurement.__all__:
        assert name in dir(ml_goodput_measurement)


def test_star_imports_bring_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from ml_goodput_measurement.goodput import *", names)
    assert set(goodput.__all__) <= set(names)


def test_the_names_that_the_contract_documents_are_public() -> None:
    theirs = {
        "GoodputRecorder",
        "GoodputCalculator",
        "BadputType",
        "GoodputType",
        "MetricType",
        "UnproductiveTimeDict",
        "WorkloadMetricDetails",
    }
    ours = {"CheckpointLogger", "GoodputError", "JobGoodput", "NoGoodputError"}
    assert theirs | ours <= set(goodput.__all__)


SECOND_NAMES = """
import sys
before = set(sys.modules)
{statement}
import ml_goodput_measurement
from ml_goodput_measurement import goodput, goodput_utils
assert ml_goodput_measurement.src.goodput is goodput
assert ml_goodput_measurement.src.goodput_utils is goodput_utils
assert bad is goodput.BadputType is goodput_utils.BadputType
assert goodput_utils.__name__ == goodput_utils.__spec__.name == "ml_goodput_measurement.goodput_utils"
ours = {{name for name in set(sys.modules) - before if name.startswith("ml_goodput_measurement.")}}
known = {{"_version", "goodput", "goodput_utils", "_lazy_names", "metric_details", "src"}}
assert {{name.rpartition(".")[2] for name in ours}} == known, ours
"""


@pytest.mark.parametrize(
    "statement",
    [
        "from ml_goodput_measurement.src import goodput; bad = goodput.BadputType",
        "import ml_goodput_measurement.src.goodput_utils as utils; bad = utils.BadputType",
        "from ml_goodput_measurement.src.goodput_utils import BadputType as bad",
        "import ml_goodput_measurement as ours; bad = ours.src.goodput_utils.BadputType",
        "import pickle; bad = pickle.loads(b'cml_goodput_measurement.src.goodput_utils\\nBadputType\\n.')",
    ],
)
def test_imports_of_old_programs_find_the_very_same_modules_and_load_nothing_heavy(statement: str) -> None:
    program = SECOND_NAMES.format(statement=statement)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", [goodput, ml_goodput_measurement])
def test_a_name_that_is_none_is_named_in_the_error(module: object) -> None:
    with pytest.raises(AttributeError, match=r"module 'ml_goodput_measurement.*' has no attribute 'GoodputRecordr'"):
        module.GoodputRecordr  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="GoodputRecordr"):
        exec(f"from {module.__name__} import GoodputRecordr")  # type: ignore[attr-defined]
