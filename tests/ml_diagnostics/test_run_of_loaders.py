"""`ml-diagnostics run` of programs with iterators that it knows, and of PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from .observed_programs import TRAINER, activities, payloads, report, run_program, steps


def loads() -> list[float]:
    """Return the durations of all data loads, in seconds."""
    starts = [each["data_loading_start_time"] for each in payloads() if "data_loading_start_time" in each]
    ends = [each["data_loading_end_time"] for each in payloads() if "data_loading_end_time" in each]
    return [end - start for start, end in zip(starts, ends, strict=True)]


@pytest.mark.timing  # On a busy machine, the end of a step is seen late, and the pause after it is short.
def test_an_iterator_that_is_not_known_shows_in_pauses_of_the_device(tmp_path: Path) -> None:
    text = TRAINER.replace("200", "600").replace("time.sleep(0.01)", "time.sleep(0.02)")
    run_program(tmp_path, text + "train(20)")
    assert activities()["data_loading"] == ("pauses between the results of a step and the next", "low")
    found = report()
    assert found["buckets"]["DATA_LOADING_SYNC"]["seconds"] == pytest.approx(0.4, rel=0.5)
    assert found["data_loading_async_seconds"] < 0.001


GRAIN = (
    TRAINER
    + """
import grain.python as grain
class Slow(grain.MapTransform):
    def map(self, number):
        time.sleep(0.02)
        return number
"""
)


def test_batches_of_a_grain_dataset_are_data_loading(tmp_path: Path) -> None:
    pytest.importorskip("grain")
    text = """
data = grain.MapDataset.range(12).map(Slow()).map(lambda n: n + 1).to_iter_dataset(
    grain.ReadOptions(num_threads=0)).batch(2)
loaded, ended = 0.0, time.perf_counter()
for example in data:
    loaded += time.perf_counter() - ended
    train(1)
    ended = time.perf_counter()
print(loaded)
"""
    done = run_program(tmp_path, GRAIN + text)
    assert steps() == [*range(6)]
    assert activities()["data_loading"] == ("grain", "high")
    assert min(loads()[:6]) >= 0.04  # Longer on a loaded machine.
    assert sum(loads()[:6]) == pytest.approx(float(done.stdout), rel=0.3)
    found = report()
    waited = found["buckets"]["DATA_LOADING_SYNC"]["seconds"]
    assert waited >= 0.08  # The first one, and those after the step was found among the functions.
    assert waited + found["data_loading_async_seconds"] == pytest.approx(sum(loads()), rel=0.3)


def test_batches_of_grains_data_loader_are_data_loading(tmp_path: Path) -> None:
    pytest.importorskip("grain")
    text = """
sampler = grain.IndexSampler(8, grain.ShardOptions(0, 1), shuffle=False, num_epochs=1)
loader = grain.DataLoader(data_source=range(8), sampler=sampler, operations=[Slow()], worker_count=0)
for example in loader:
    train(1)
"""
    run_program(tmp_path, GRAIN + text)
    assert steps() == [*range(8)]
    assert len(loads()) == 9


def test_iterators_that_are_not_of_a_data_package_are_left_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("grain")
    text = """
import collections.abc
from absl import flags
flags.FLAGS(["train", "--grain_py_traceback_filtering=off"])  # Else grain changes the class of the iterator itself.
class Counter:
    count = 0
    def __iter__(self): return self
    def __next__(self):
        self.count += 1
        if self.count > 2: raise StopIteration
        return self.count
class Generated(grain.IterDataset):
    def __iter__(self): yield from range(2)
class Listed(grain.IterDataset):
    def __iter__(self): return iter([1, 2])
class Counted(grain.IterDataset):
    def __iter__(self): return Counter()
class Own(grain.DatasetIterator):
    def __init__(self):
        super().__init__()
        self.counter = Counter()
    def __next__(self): return next(self.counter)
    def get_state(self): return {}
    def set_state(self, state): pass
class OfItsOwn(grain.IterDataset):
    def __iter__(self): return Own()
following = [kind.__dict__["__next__"] for kind in (collections.abc.Iterator, Counter)]
for kind in (Generated, Listed, Counted, OfItsOwn):
    for example in kind():
        train(1)
print(following == [kind.__dict__["__next__"] for kind in (collections.abc.Iterator, Counter)])
"""
    done = run_program(tmp_path, GRAIN + text)
    assert done.stdout == "True\n"
    assert steps() == [*range(8)]
    assert "grain" in {each.get("inferred_from") for each in payloads()}  # Of an iterator that is derived from grain's.


TORCH = """
import sys, time, torch
torch.set_num_threads(1)
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(8) * index
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
def train(batch):
    time.sleep(0.02)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


def test_steps_of_an_optimizer_of_pytorch_are_steps_and_its_loader_is_data_loading(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run_program(tmp_path, TORCH + "for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4): train(batch)")
    assert steps() == [*range(6)]
    assert activities()["step"] == ("SGD.step", "medium")
    assert activities()["data_loading"] == ("torch's DataLoader", "high")
    found = report()
    assert 0.1 <= found["buckets"]["DATA_LOADING_SYNC"]["seconds"] <= 0.6  # With modules that are imported for it.
    assert found["data_loading_async_seconds"] < 0.02
    assert found["steps_kept"] == 6


def test_the_mode_of_a_module_shows_evaluations_and_files_are_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
for epoch in range(3):
    model.train()
    for _ in range(5):
        train(torch.ones(4, 8))
    model.eval()
    with torch.no_grad():
        for _ in range(5):
            model(torch.ones(4, 8))
            time.sleep(0.01)
    torch.save(model.state_dict(), sys.argv[1])
torch.load(sys.argv[1])
"""
    run_program(tmp_path, TORCH + text, str(tmp_path / "model.pt"))
    assert steps() == [*range(15)]
    found = report()
    assert found["custom_events"]["EVALUATION"]["seconds"] == pytest.approx(0.16, rel=0.4)
    assert activities()["evaluation"] == ("Module.eval to Module.train", "medium")
    assert [each["event_type"] for each in payloads() if "event_type" in each] == ["save"] * 3
    assert activities()["checkpoint_save"] == ("torch.save", "medium")


def test_workers_of_a_loader_are_not_the_job(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
if __name__ == "__main__":
    options = dict(batch_size=4, num_workers=1, multiprocessing_context=sys.argv[1])
    for batch in torch.utils.data.DataLoader(Numbers(), **options):
        train(batch)
"""
    for method in ("spawn", "fork"):
        run_program(tmp_path, TORCH + text, method)
    assert steps() == [*range(6), *range(6)]


def test_a_second_optimizer_is_within_the_steps_of_the_first(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
other = torch.optim.Adam(torch.nn.Linear(8, 1).parameters())
for _ in range(5):
    train(torch.ones(4, 8))
    other.step()
"""
    run_program(tmp_path, TORCH + text)
    assert steps() == [*range(5)]


def test_a_stage_with_a_new_optimizer_has_steps_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
for _ in range(3):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(4):
        train(torch.ones(4, 8))
"""
    run_program(tmp_path, TORCH + text)
    assert steps() == [*range(12)]
