"""Steps and evaluations, from the moments of calls alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ml_diagnostics._inference.rhythm import Moment, Rhythm
from ml_diagnostics._inference.torch_rhythm import TorchRhythm


class Sink:
    """Keeps the inferred steps and evaluations."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []
        self.evaluations: list[tuple[list[str], float, float]] = []
        self.prepared_until: list[float] = []
        self.pauses: list[tuple[float, float]] = []

    def step(self, number: int, start: float) -> None:
        self.steps.append((number, start))

    def evaluated(self, functions: Sequence[str], start: float, end: float) -> None:
        self.evaluations.append(([*functions], start, end))

    def paused(self, step: int, start: float, end: float) -> None:
        self.pauses.append((start, end))

    def prepared(self, end: float) -> None:
        self.prepared_until.append(end)


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def rhythm(sink: Sink) -> Rhythm:
    return Rhythm(sink)


def make_steps(rhythm: Rhythm, first: float, count: int, *, is_done: bool = False) -> None:
    for index in range(count):
        rhythm.dispatched(first + index, is_done=is_done)


def starts(sink: Sink) -> list[float]:
    return [start for _, start in sink.steps]


def test_a_step_whose_results_are_not_ready_starts_when_it_is_dispatched(rhythm: Rhythm, sink: Sink) -> None:
    make_steps(rhythm, 100.0, 3)
    assert sink.steps == [(0, 100.0), (1, 101.0), (2, 102.0)]


def test_a_step_whose_results_are_ready_started_at_the_end_of_what_was_before(rhythm: Rhythm, sink: Sink) -> None:
    rhythm.dispatched(100.0, is_done=True, start=99.0)
    rhythm.dispatched(101.0, is_done=True)
    rhythm.loaded(101.0, 101.5)
    rhythm.dispatched(102.5, is_done=True)
    assert starts(sink) == [99.0, 100.0, 101.5]


def test_preparation_ends_with_the_load_of_the_first_batch_or_with_the_first_step(rhythm: Rhythm, sink: Sink) -> None:
    rhythm.loaded(10.0, 11.0)
    rhythm.loaded(20.0, 21.0)
    rhythm.loaded(30.0, 31.0)  # Of the second step, if the first is known only now.
    rhythm.dispatched(25.0, is_done=False, start=22.0)
    assert sink.prepared_until == [20.0]
    other = Sink()
    make_steps(Rhythm(other), 5.0, 2)
    assert other.prepared_until == [5.0]


def test_a_function_that_is_called_in_few_gaps_evaluates(rhythm: Rhythm, sink: Sink) -> None:
    make_steps(rhythm, 100.0, 10)
    for index in range(5):
        rhythm.called(Moment("evaluate", 110.0 + index, is_done=False))
    make_steps(rhythm, 120.0, 10)
    assert sink.evaluations == [(["evaluate"], 110.0, 115.0)]  # Its last result takes as long as the others.


def test_an_evaluation_on_a_cpu_starts_a_call_earlier_and_ends_with_the_last(rhythm: Rhythm, sink: Sink) -> None:
    make_steps(rhythm, 100.0, 10, is_done=True)
    for index in range(5):
        rhythm.called(Moment("evaluate", 110.5 + index, is_done=True))
    rhythm.dispatched(116.0, is_done=True)
    assert sink.evaluations == [(["evaluate"], 109.5, 114.5)]
    assert starts(sink)[-1] == 115.0


def test_a_function_that_is_called_between_all_steps_belongs_to_them(rhythm: Rhythm, sink: Sink) -> None:
    for step in range(20):
        rhythm.called(Moment("gradients", 100.2 + step, is_done=False))
        rhythm.dispatched(100.5 + step, is_done=False)
        rhythm.called(Moment("log", 100.7 + step, is_done=False))
    rhythm.finish(130.0)
    assert sink.evaluations == []


def test_a_first_evaluation_starts_with_its_compilation(rhythm: Rhythm, sink: Sink) -> None:
    make_steps(rhythm, 100.0, 10)
    rhythm.compiled("evaluate", 109.5, 112.0)
    rhythm.called(Moment("evaluate", 112.5, is_done=False))
    rhythm.called(Moment("evaluate", 113.0, is_done=False))
    rhythm.dispatched(115.0, is_done=False)
    assert sink.evaluations == [(["evaluate"], 109.5, 113.5)]


def test_an_evaluation_of_one_call_that_was_only_compiled_is_known_by_the_second(rhythm: Rhythm, sink: Sink) -> None:
    make_steps(rhythm, 100.0, 10)
    rhythm.compiled("evaluate", 109.5, 112.0)
    make_steps(rhythm, 113.0, 10)
    assert sink.evaluations == []
    rhythm.called(Moment("evaluate", 122.5, is_done=False))
    make_steps(rhythm, 124.0, 1)
    assert sink.evaluations == [(["evaluate"], 109.5, 113.0), (["evaluate"], 122.5, 124.0)]


def test_an_evaluation_ends_before_the_next_batch_is_loaded(rhythm: Rhythm, sink: Sink) -> None:
    make_steps(rhythm, 100.0, 10)
    rhythm.called(Moment("evaluate", 110.0, is_done=False))
    rhythm.loaded(112.0, 118.0)
    make_steps(rhythm, 118.0, 1)
    assert sink.evaluations == [(["evaluate"], 110.0, 112.0)]


def test_an_evaluation_after_the_last_step_is_one_too(rhythm: Rhythm, sink: Sink) -> None:
    make_steps(rhythm, 100.0, 10)
    for index in range(3):
        rhythm.called(Moment("evaluate", 110.0 + index, is_done=True))
    rhythm.finish(120.0)
    assert sink.evaluations == [(["evaluate"], 109.0, 112.0)]


def test_a_program_without_steps_has_neither(rhythm: Rhythm, sink: Sink) -> None:
    rhythm.called(Moment("evaluate", 110.0, is_done=True))
    rhythm.compiled("evaluate", 110.0, 111.0)
    rhythm.finish(120.0)
    assert (sink.steps, sink.evaluations) == ([], [])


def test_a_pause_is_the_time_from_a_result_to_the_next_dispatch(rhythm: Rhythm, sink: Sink) -> None:
    make_steps(rhythm, 100.0, 5)
    rhythm.fetched(104.5)
    make_steps(rhythm, 106.0, 1)
    rhythm.fetched(106.4)
    rhythm.loaded(106.5, 106.9)  # It is known what this one is.
    make_steps(rhythm, 107.0, 1)
    rhythm.fetched(107.5)
    rhythm.was_busy(107.9)
    make_steps(rhythm, 108.0, 1)
    rhythm.fetched(108.5)
    rhythm.dispatched(110.0, is_done=True)  # It is not known when this one was dispatched.
    assert sink.pauses == [(104.5, 106.0)]


# --- PyTorch ------------------------------------------------------------------------------------------


class Optimizer:
    """An optimizer of which only its identity and its end matter."""


def test_a_step_of_pytorch_starts_at_the_end_of_the_last_or_of_its_load(rhythm: Rhythm, sink: Sink) -> None:
    torch, optimizer = TorchRhythm(rhythm, lambda start, end: None), Optimizer()
    torch.loaded(10.0)
    torch.optimized(optimizer, 11.0, 11.5)
    torch.optimized(optimizer, 12.5, 13.0)
    torch.loaded(14.0)
    torch.optimized(optimizer, 15.0, 15.5)
    assert starts(sink) == [10.0, 11.5, 14.0]


def test_the_first_step_of_pytorch_takes_as_long_as_the_second_if_no_load_shows_its_start(
    rhythm: Rhythm, sink: Sink
) -> None:
    torch, optimizer = TorchRhythm(rhythm, lambda start, end: None), Optimizer()
    torch.optimized(optimizer, 100.0, 100.5)
    torch.optimized(optimizer, 103.0, 103.5)
    assert starts(sink) == [97.5, 100.5]


def test_a_module_evaluates_until_it_trains_again_or_the_next_step(rhythm: Rhythm, sink: Sink) -> None:
    found: list[tuple[float, float]] = []
    torch, optimizer, module = TorchRhythm(rhythm, lambda start, end: found.append((start, end))), Optimizer(), object()
    torch.changed_mode(module, 5.0, is_training=False)  # Before the first step.
    torch.loaded(10.0)
    torch.optimized(optimizer, 11.0, 11.5)
    torch.changed_mode(module, 12.0, is_training=False)
    torch.changed_mode(module, 15.0, is_training=True)
    torch.optimized(optimizer, 16.0, 16.5)
    torch.changed_mode(module, 17.0, is_training=False)
    torch.finish(19.0)
    assert found == [(12.0, 15.0), (17.0, 19.0)]
    assert starts(sink) == [10.0, 15.0]


def test_a_module_that_is_not_set_to_training_again_evaluates_until_the_next_step(rhythm: Rhythm, sink: Sink) -> None:
    found: list[tuple[float, float]] = []
    torch, optimizer = TorchRhythm(rhythm, lambda start, end: found.append((start, end))), Optimizer()
    torch.loaded(10.0)
    torch.optimized(optimizer, 11.0, 11.5)
    torch.changed_mode(object(), 12.0, is_training=False)
    torch.loaded(13.0)  # Of the evaluation.
    torch.optimized(optimizer, 16.0, 16.5)
    assert found == [(12.0, 15.0)]
    assert starts(sink) == [10.0, 15.0]


def test_the_steps_of_the_next_stage_are_those_of_its_optimizer(rhythm: Rhythm, sink: Sink) -> None:
    torch, optimizer = TorchRhythm(rhythm, lambda start, end: None), Optimizer()
    torch.loaded(10.0)
    torch.optimized(optimizer, 11.0, 11.0)
    torch.optimized(optimizer, 12.0, 12.0)
    optimizer = Optimizer()
    torch.optimized(optimizer, 21.0, 21.0)  # Until 20 the program prepared the stage.
    torch.optimized(optimizer, 22.0, 22.0)
    assert starts(sink) == [10.0, 11.0, 20.0, 21.0]


def test_the_optimizer_of_a_stage_that_is_kept_counts_no_longer_once_another_has_made_many_steps(
    rhythm: Rhythm, sink: Sink
) -> None:
    torch, kept, following = TorchRhythm(rhythm, lambda start, end: None), Optimizer(), Optimizer()
    torch.loaded(10.0)
    torch.optimized(kept, 11.0, 11.0)
    for time in range(20, 60):
        torch.loaded(time - 0.5)
        torch.optimized(following, float(time), float(time))
    assert starts(sink) == [10.0, *(time - 0.5 for time in range(20, 60))]


def test_steps_of_other_optimizers_are_within_steps_however_many_they_make(rhythm: Rhythm, sink: Sink) -> None:
    torch, generator, critic = TorchRhythm(rhythm, lambda start, end: None), Optimizer(), Optimizer()
    torch.loaded(9.0)
    for time in range(10, 30):
        torch.optimized(generator, float(time), float(time))
        for part in range(1, 6):
            torch.optimized(critic, time + 0.1 * part, time + 0.1 * part)
    assert starts(sink) == [float(time) for time in range(9, 29)]


def test_a_load_after_a_step_that_has_ended_names_that_step(rhythm: Rhythm) -> None:
    rhythm.dispatched(1.0, is_done=False)
    assert rhythm.loaded(1.1, 1.2) is None  # The device may still compute the step.
    rhythm.dispatched(2.0, is_done=False)
    rhythm.fetched(2.5)
    assert rhythm.loaded(2.6, 2.7) == 1
    assert rhythm.loaded(2.7, 2.8) is None  # Reported already.
    rhythm.dispatched(3.0, is_done=True)
    assert rhythm.loaded(3.1, 3.2) == 2
    rhythm.started(4.0)
    assert rhythm.loaded(4.1, 4.2) is None
    rhythm.started(5.0)
    rhythm.ended()
    assert rhythm.loaded(5.1, 5.2) == 4


def test_a_result_that_is_read_after_a_load_does_not_end_the_step_before_it(rhythm: Rhythm) -> None:
    rhythm.dispatched(1.0, is_done=False)
    assert rhythm.loaded(1.1, 1.2) is None
    rhythm.fetched(1.5)
    rhythm.dispatched(2.0, is_done=False)
    assert rhythm.loaded(2.1, 2.2) is None


def test_a_pause_ends_where_the_first_function_of_a_step_is_called(rhythm: Rhythm, sink: Sink) -> None:
    rhythm.dispatch_seconds = 0.125
    for step in range(6):
        rhythm.called(Moment("gradients", step + 0.5, is_done=False))
        rhythm.dispatched(step + 0.6, is_done=False)
        rhythm.fetched(step + 0.9)
    assert sink.pauses[-1] == pytest.approx((4.9, 5.375))
    assert sink.steps[-1] == pytest.approx((5, 5.375))


def test_the_time_of_a_dispatch_is_a_part_of_its_step(rhythm: Rhythm, sink: Sink) -> None:
    make_steps(rhythm, 0.0, 5)
    rhythm.dispatch_seconds = 0.25
    rhythm.fetched(4.5)
    rhythm.dispatched(6.0, is_done=False)
    assert sink.pauses == [(4.5, 5.75)]
    rhythm.loaded(8.5, 9.0)
    rhythm.dispatched(9.125, is_done=False)  # Not before the end of the load.
    assert starts(sink)[-2:] == [5.75, 9.0]


def test_a_pause_before_an_annotated_step_is_a_pause(rhythm: Rhythm, sink: Sink) -> None:
    for step in range(3):
        rhythm.started(float(step))
        rhythm.fetched(step + 0.5)
    assert sink.pauses == [(0.5, 1.0), (1.5, 2.0)]
