"""Train a small convolutional network on scikit-learn's handwritten digits, and record what it does.

Run it, kill it whenever you like, and run the same command again: it goes on from its last checkpoint.

    python examples/train_digits.py --run-name digits-1
    goodput report digits-1
    mldiagnostics show digits-1

What has to do with goodput is in the lines of `train` that mention `recorder` or `monitor`; with runs, metrics and
profiles, in those that mention `machinelearning_run`, `metrics` or `profiler`. The rest is an ordinary JAX script.
"""

import argparse
import datetime
import itertools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from google_cloud_mldiagnostics import machinelearning_run, metrics, xprof
from google_cloud_mldiagnostics.metric_types import MetricType
from ml_goodput_measurement import goodput
from sklearn.datasets import load_digits

CHANNELS, STRIDES = (1, 32, 64, 64), (1, 1, 2)
TEST_IMAGES = 297  # of 1,797; the rest is for training
PROFILED_STEPS = 10
learning_rate = optax.exponential_decay(1e-3, transition_steps=200, decay_rate=0.5)
optimizer = optax.adam(learning_rate)

Parameters = dict[str, jax.Array]
State = dict[str, Any]  # parameters and optimizer state: all that a checkpoint holds


def initial_state(seed: int) -> State:
    """Returns random parameters, and the optimizer's state for them."""
    *keys, dense_key = jax.random.split(jax.random.key(seed), len(CHANNELS))
    random = jax.nn.initializers.he_normal()
    parameters = {"dense": random(dense_key, (4 * 4 * CHANNELS[-1], 10))}
    for layer, (key, channels) in enumerate(zip(keys, itertools.pairwise(CHANNELS), strict=True)):
        parameters[f"conv{layer}"] = random(key, (3, 3, *channels))
    return {"parameters": parameters, "optimizer": optimizer.init(parameters)}


def logits(parameters: Parameters, images: jax.Array) -> jax.Array:
    """Returns ten scores for each 8x8 image."""
    x, dimensions = images[..., None], ("NHWC", "HWIO", "NHWC")
    for layer, stride in enumerate(STRIDES):
        kernel = parameters[f"conv{layer}"]
        x = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=dimensions)
        x = jax.nn.relu(x)
    return jnp.dot(x.reshape(len(x), -1), parameters["dense"])


def loss_of(parameters: Parameters, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean cross entropy of a batch."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits(parameters, images), labels))


@jax.jit
def train_step(state: State, images: jax.Array, labels: jax.Array) -> tuple[State, jax.Array]:
    """Returns the state after one step of gradient descent, and the batch's loss."""
    loss, gradients = jax.value_and_grad(loss_of)(state["parameters"], images, labels)
    updates, optimizer_state = optimizer.update(gradients, state["optimizer"])
    return {"parameters": optax.apply_updates(state["parameters"], updates), "optimizer": optimizer_state}, loss


@jax.jit
def accuracy(state: State, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the share of images that are recognised."""
    return (logits(state["parameters"], images).argmax(-1) == labels).mean()


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns images (0 to 1) and labels for training, and for testing."""
    digits = load_digits()
    images, labels = (digits.images / 16).astype(np.float32), digits.target
    return (images[:-TEST_IMAGES], labels[:-TEST_IMAGES]), (images[-TEST_IMAGES:], labels[-TEST_IMAGES:])


def load_batch(images: np.ndarray, labels: np.ndarray, step: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the batch of this step: the same one after a restart; each image moved by up to a pixel."""
    random = np.random.default_rng(step)
    chosen = random.integers(0, len(images), size)
    padded = np.pad(images[chosen], ((0, 0), (1, 1), (1, 1)))
    down, right = random.integers(0, 3, (2, size, 1, 1))
    rows, columns = np.arange(8)[:, None] + down, np.arange(8) + right
    return padded[np.arange(size)[:, None, None], rows, columns], labels[chosen]


def train(arguments: argparse.Namespace) -> None:
    """Trains from the last checkpoint, or from nothing, to the last step."""
    started = datetime.datetime.now(datetime.timezone.utc)
    recorder = goodput.GoodputRecorder(
        job_name=arguments.run_name,
        logger_name=f"goodput_{arguments.run_name}",
        logging_enabled=(jax.process_index() == 0),  # one process records; asking initialises the devices
    )
    recorder.record_job_start_time(started)
    recorder.record_tpu_init_start_time(started)
    recorder.record_tpu_init_end_time()
    machinelearning_run(
        name=arguments.run_name,
        run_group="digits",
        configs=vars(arguments),
        gcs_path=arguments.gcs_path,
        on_demand_xprof=True,
        run_workload_id=arguments.run_name,  # the same run when it is started again
    )

    monitor = goodput.GoodputMonitor(
        job_name=arguments.run_name,
        logger_name=f"goodput_{arguments.run_name}",
        tensorboard_dir=str(arguments.tensorboard_dir / arguments.run_name),
        upload_interval=5,
        monitoring_enabled=(jax.process_index() == 0),
        include_badput_breakdown=True,
    )
    monitor.start_goodput_uploader()

    recorder.record_training_preparation_start_time()
    state = initial_state(arguments.seed)
    checkpoints = ocp.CheckpointManager(
        arguments.checkpoint_dir.resolve() / arguments.run_name,
        options=ocp.CheckpointManagerOptions(max_to_keep=2),
        logger=goodput.CheckpointLogger(recorder),  # saves and restores are recorded too
    )
    first_step = checkpoints.latest_step() or 0
    if first_step:
        state = checkpoints.restore(first_step, args=ocp.args.StandardRestore(state))
    recorder.record_training_preparation_end_time()

    recorder.record_data_loading_start_time()
    training_data, test_data = load_data()
    recorder.record_data_loading_end_time()

    profiler, profiled = xprof(), range(arguments.profile_at, arguments.profile_at + PROFILED_STEPS)
    print(f"training from step {first_step} to {arguments.steps}", flush=True)
    for step in range(first_step, arguments.steps):
        if step == profiled.start:
            profiler.start()
        start_time = time.perf_counter()
        recorder.record_step_start_time(step)
        with jax.profiler.StepTraceAnnotation("train", step_num=step):  # for XProf to know the step
            state, loss = train_step(state, *load_batch(*training_data, step, arguments.batch_size))
            loss.block_until_ready()  # JAX is asynchronous: without this, steps start before the last one ends
        seconds = time.perf_counter() - start_time
        if step == profiled[-1] and first_step <= profiled.start:
            profiler.stop()

        metrics.record(MetricType.LOSS, loss, step)
        metrics.record(MetricType.LEARNING_RATE, learning_rate(step), step)
        metrics.record(MetricType.STEP_TIME, seconds, step)
        metrics.record(MetricType.THROUGHPUT, arguments.batch_size / seconds, step)

        done = step + 1
        if done % arguments.checkpoint_every == 0 or done == arguments.steps:
            checkpoints.save(done, args=ocp.args.StandardSave(state))
        if done % arguments.print_every == 0 or done == arguments.steps:
            recognised = float(accuracy(state, *test_data))
            metrics.record("test_accuracy", recognised, done)
            print(f"step {done:5d}   loss {float(loss):.4f}   accuracy {recognised:.1%}", flush=True)
    checkpoints.close()  # waits for the last save
    recorder.record_job_end_time()
    monitor.stop_goodput_uploader()


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--run-name",
        default=time.strftime("digits-%Y%m%d-%H%M%S"),
        help="the job's name; a restart keeps it (default: a new one)",
    )
    parser.add_argument("--steps", type=int, default=500, help="train up to this step (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=256, help="images a step (default: %(default)s)")
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("out/checkpoints"), help="default: %(default)s")
    parser.add_argument("--tensorboard-dir", type=Path, default=Path("out/tensorboard"), help="default: %(default)s")
    parser.add_argument("--gcs-path", default="out/profiles", help="gs://... or a folder (default: %(default)s)")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS", help="default: %(default)s")
    parser.add_argument("--print-every", type=int, default=25, metavar="STEPS", help="default: %(default)s")
    parser.add_argument("--profile-at", type=int, default=40, metavar="STEP", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the first parameters (default: %(default)s)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
