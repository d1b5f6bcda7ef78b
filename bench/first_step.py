"""One Adam step of an MLP 784-128-10 over a batch of 64, imports and all: the process that `bench_start` times.

python bench/first_step.py topos|torch|torch_compile|jax [when it started]
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np


def drawn(*shape: int) -> np.ndarray:
    """Return numbers between -1 and 1 (to import `numpy.random` alone takes 25 ms)."""
    return np.sin(np.arange(math.prod(shape), dtype=np.float32) ** 2).reshape(shape)


IMAGES, LABELS = drawn(64, 784), np.arange(64) * 7 % 10
SHAPES = ((784, 128), (128,), (128, 10), (10,))
WEIGHTS = [drawn(*shape) * np.float32(0.05) for shape in SHAPES]


def topos_step() -> None:
    """Record, lower and step."""
    from topos import Adam, Tape, Tensor, cross_entropy

    targets = Tensor.selection(LABELS, 10)

    def build(tape: Tape) -> tuple:
        x, y = tape.input(IMAGES), tape.input(targets)
        a, b, c, d = parameters = [tape.parameter(weight) for weight in WEIGHTS]
        hidden = (x @ a + b.broadcast_along(0, 64)).relu()
        return tape.differentiate(cross_entropy(hidden @ c + d.broadcast_along(0, 64), y), parameters)

    network, adjoints = Tape.record(build)
    network.entry(adjoints.roots).lower().step(network.parameters(), None, Adam(), 1e-3)


def torch_step(compiles: bool) -> None:
    """Step eagerly, or through `torch.compile`."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    forward = torch.compile(model) if compiles else model
    torch.nn.functional.cross_entropy(forward(torch.from_numpy(IMAGES)), torch.from_numpy(LABELS)).backward()
    optimizer.step()


def jax_step() -> None:
    """Step through `jax.jit`."""
    import jax
    import jax.numpy as jnp

    def loss(p: list) -> jax.Array:
        scores = jax.nn.log_softmax(jax.nn.relu(IMAGES @ p[0] + p[1]) @ p[2] + p[3])
        return -jnp.take_along_axis(scores, LABELS[:, None], 1).mean()

    def step(p: list, m: list, v: list) -> tuple:
        g = jax.grad(loss)(p)
        m = [0.9 * old + 0.1 * new for old, new in zip(m, g, strict=True)]
        v = [0.999 * old + 0.001 * new * new for old, new in zip(v, g, strict=True)]
        rate = 1e-3 * (1 - 0.999) ** 0.5 / (1 - 0.9)
        return [w - rate * a / (jnp.sqrt(b) + 1e-8) for w, a, b in zip(p, m, v, strict=True)], m, v

    zeros = [np.zeros_like(weight) for weight in WEIGHTS]
    jax.block_until_ready(jax.jit(step)(WEIGHTS, zeros, zeros))


STEPS = {
    "topos": topos_step,
    "torch": lambda: torch_step(False),
    "torch_compile": lambda: torch_step(True),
    "jax": jax_step,
}

if __name__ == "__main__":
    STEPS[sys.argv[1]]()
    if len(sys.argv) > 2:  # what Python frees at its end belongs to no step
        sys.stdout.write(f"{time.time() - float(sys.argv[2])}")
