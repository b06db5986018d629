"""Twenty small training programs: each is a variant of what people write, with the phases that its author would mark.

`job.steps`, `job.phase` and `job.log` are those of the instrumented truth; the inference sees only JAX, PyTorch and the
loaders. With JAX, only a step that logs a value has a recorded end: a number, which was read, or one of the device.
"""

from __future__ import annotations

__all__ = ["JOBS"]

_JAX = """
import sys, time
from truth import job
import jax, jax.numpy as jnp, numpy as np

key = jax.random.key(0)
WIDTH = 512
def init(width=WIDTH):
    return [jax.random.normal(jax.random.fold_in(key, i), (width, width)) * 0.04 for i in range(3)]
def forward(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return x
def loss_fn(params, x):
    return ((forward(params, x) - x) ** 2).mean()
@jax.jit
def train_step(params, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    return [w - 0.01 * g for w, g in zip(params, grads)], loss
@jax.jit
def eval_step(params, x):
    return loss_fn(params, x)
random = np.random.default_rng(0)
def batches(count, seconds=0.002, size=256):
    for _ in range(count):
        time.sleep(seconds)
        yield random.standard_normal((size, WIDTH), dtype=np.float32)
def evaluate(params, count=10):
    with job.phase("evaluation"):
        return np.mean([float(eval_step(params, x)) for x in batches(count)])
"""

_ORBAX = """
import orbax.checkpoint as ocp
def manager_of(**options):
    return ocp.CheckpointManager(sys.argv[1], options=ocp.CheckpointManagerOptions(**options))
def save(manager, step, params):
    with job.phase("checkpoint_save", step):
        manager.save(step, args=ocp.args.StandardSave(params))
"""

_TORCH = """
import sys, time
from truth import job
import torch
torch.set_num_threads(1)
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 4800
    def __getitem__(self, index): return torch.full((256,), index / 4800)
model = torch.nn.Sequential(*[layer for _ in range(3) for layer in (torch.nn.Linear(256, 256), torch.nn.Tanh())])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
def train(batch):
    optimizer.zero_grad()
    for _ in range(4):
        ((model(batch.repeat(16, 1)) - batch.repeat(16, 1)) ** 2).mean().backward()
    optimizer.step()
"""

JOBS = {
    "loss read in each step": _JAX
    + """
params = init()
for step, x in job.steps(batches(300)):
    params, loss = train_step(params, x)
    job.log({"loss": float(loss)})
""",
    "loss read in every twentieth step": _JAX
    + """
params = init()
for step, x in job.steps(batches(300)):
    params, loss = train_step(params, x)
    job.log({"loss": loss})
    if step % 20 == 0:
        float(loss)
float(loss)
""",
    "annotated steps": _JAX
    + """
params = init()
for step, x in job.steps(batches(300)):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        params, loss = train_step(params, x)
    job.log({"loss": float(loss)})
""",
    "annotated steps and evaluations": _JAX
    + """
params = init()
for step, x in job.steps(batches(250)):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        params, loss = train_step(params, x)
    job.log({"loss": loss})
    if step % 50 == 49:
        evaluate(params, 30)
""",
    "evaluations of many batches": _JAX
    + """
params = init()
for step, x in job.steps(batches(250)):
    params, loss = train_step(params, x)
    job.log({"loss": float(loss)})
    if step % 50 == 49:
        evaluate(params, 30)
""",
    "evaluations of one call": _JAX
    + """
params, held_out = init(), random.standard_normal((8192, WIDTH), dtype=np.float32)
for step, x in job.steps(batches(250)):
    params, loss = train_step(params, x)
    job.log({"loss": loss})
    if step % 25 == 24:
        with job.phase("evaluation"):
            float(eval_step(params, held_out))
""",
    "saves in the background": _JAX
    + _ORBAX
    + """
params, manager = init(), manager_of(enable_async_checkpointing=True)
for step, x in job.steps(batches(300)):
    params, loss = train_step(params, x)
    job.log({"loss": float(loss)})
    if step % 50 == 49:
        save(manager, step, params)
with job.phase("checkpoint_save", step):
    manager.wait_until_finished()
""",
    "saves that training waits for": _JAX
    + _ORBAX
    + """
params, manager = init(), manager_of(enable_async_checkpointing=False)
for step, x in job.steps(batches(300)):
    params, loss = train_step(params, x)
    job.log({"loss": loss})
    if step % 50 == 49:
        save(manager, step, params)
float(loss)
""",
    "a restore, and a second life": _JAX
    + _ORBAX
    + """
params, manager = init(), manager_of(enable_async_checkpointing=False)
save(manager, 99, params)
with job.phase("checkpoint_restore", 99):
    params = manager.restore(99, args=ocp.args.StandardRestore(params))
for step, x in job.steps(batches(300), start=100):
    params, loss = train_step(params, x)
    job.log({"loss": float(loss)})
save(manager, step, params)
""",
    "slow data of a generator": _JAX
    + """
params = init()
for step, x in job.steps(batches(150, seconds=0.03)):
    params, loss = train_step(params, x)
    job.log({"loss": float(loss)})
""",
    "slow data of grain": _JAX
    + """
import grain.python as grain
class Read(grain.MapTransform):
    def map(self, number):
        time.sleep(0.0002)
        return np.full((WIDTH,), number / 1e5, np.float32)
data = grain.MapDataset.range(256 * 60).map(Read()).batch(256)
params = init()
for step, x in job.steps(data):
    params, loss = train_step(params, x)
    job.log({"loss": float(loss)})
""",
    "batches of three shapes": _JAX
    + """
def shapes():
    for count, size in ((100, 256), (100, 224), (100, 192)):
        yield from batches(count, size=size)
params = init()
for step, x in job.steps(shapes()):
    params, loss = train_step(params, x)
    job.log({"loss": float(loss)})
""",
    "gradients and updates in two functions": _JAX
    + """
grad_fn = jax.jit(jax.value_and_grad(loss_fn))
@jax.jit
def apply(params, momentum, grads):
    momentum = [0.9 * m + g for m, g in zip(momentum, grads)]
    return [w - 0.01 * m for w, m in zip(params, momentum)], momentum
params, momentum = init(), [jnp.zeros((WIDTH, WIDTH))] * 3
for step, x in job.steps(batches(250)):
    loss, grads = grad_fn(params, x)
    params, momentum = apply(params, momentum, grads)
    job.log({"loss": float(loss)})
""",
    "accumulated gradients": _JAX
    + """
grad_fn = jax.jit(jax.grad(loss_fn))
add = jax.jit(lambda total, grads: jax.tree.map(jnp.add, total, grads))
apply = jax.jit(lambda params, grads: jax.tree.map(lambda w, g: w - 0.01 * g, params, grads))
params = init()
for step, x in job.steps(batches(100)):
    total = grad_fn(params, x)
    for _ in range(3):
        total = add(total, grad_fn(params, x))
    params = apply(params, total)
    params[0].block_until_ready()
    job.log({"step": step})
    if step % 25 == 24:
        evaluate(params, 30)
""",
    "many steps in a call": _JAX
    + """
@jax.jit
def train_steps(params, xs):
    return jax.lax.scan(train_step, params, xs)
def chunks(count):
    for _ in range(count):
        yield np.stack([*batches(5)])
params = init()
for step, xs in job.steps(chunks(60)):
    params, losses = train_steps(params, xs)
    losses.block_until_ready()
    job.log({"step": step})
""",
    "a step that is compiled before": _JAX
    + """
params = init()
with job.phase("training_preparation"):
    compiled = train_step.lower(params, next(batches(1))).compile()
for step, x in job.steps(batches(300)):
    params, loss = compiled(params, x)
    job.log({"loss": float(loss)})
""",
    "flax and optax": _JAX
    + """
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(3):
            x = jnp.tanh(nn.Dense(WIDTH)(x))
        return x
model = Model()
state = TrainState.create(
    apply_fn=model.apply, params=model.init(key, jnp.ones((1, WIDTH))), tx=optax.adam(1e-3))
@jax.jit
def update(state, x):
    loss, grads = jax.value_and_grad(lambda p: ((state.apply_fn(p, x) - x) ** 2).mean())(state.params)
    return state.apply_gradients(grads=grads), loss
@jax.jit
def validate(state, x):
    return ((state.apply_fn(state.params, x) - x) ** 2).mean()
for step, x in job.steps(batches(250)):
    state, loss = update(state, x)
    job.log({"loss": loss})
    if step % 50 == 49:
        with job.phase("evaluation"):
            [float(validate(state, x)) for x in batches(30)]
""",
    "flax nnx": _JAX
    + """
import optax
from flax import nnx
class Model(nnx.Module):
    def __init__(self):
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(i)) for i in range(3)])
    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x
model = Model()
optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
@nnx.jit
def update(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda m: ((m(x) - x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss
for step, x in job.steps(batches(250)):
    loss = update(model, optimizer, x)
    job.log({"loss": float(loss)})
""",
    "pytorch with its loader": _TORCH
    + """
for step, batch in job.steps(torch.utils.data.DataLoader(Numbers(), batch_size=16)):
    train(batch)
""",
    "pytorch with evaluations and files": _TORCH
    + """
loader = torch.utils.data.DataLoader(Numbers(), batch_size=32)
step = 0
for epoch in range(3):
    model.train()
    for step, batch in job.steps((batch for _, batch in zip(range(100), loader)), start=step):
        train(batch)
    step += 1
    with job.phase("evaluation"):
        model.eval()
        with torch.no_grad():
            for _, batch in zip(range(100), loader):
                model(batch.repeat(16, 1)).mean().item()
    with job.phase("checkpoint_save"):
        torch.save(model.state_dict(), sys.argv[1] + ".pt")
""",
}
"""The programs, by what is particular in each."""
