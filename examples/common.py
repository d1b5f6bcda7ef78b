"""What the trainings share: their command line, minibatches, and what they end with: digest and loss curve."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

import topos
from topos import Parameters


def batches(count: int, size: int, steps: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the positions of each minibatch; every epoch has an order of its own."""
    rng = np.random.default_rng(seed)
    per_epoch = count // size
    for step in range(steps):
        if step % per_epoch == 0:
            order = rng.permutation(count)
        at = step % per_epoch * size
        yield order[at : at + size]


def digest(parameters: Parameters) -> str:
    """Return the SHA-256 of the bits of all parameters."""
    state = hashlib.sha256()
    for payload in parameters.payloads():
        state.update(payload.numpy().tobytes())
    return state.hexdigest()


def curve(losses: Sequence[float], path: str, title: str) -> None:
    """Write the loss of every step, and a running mean, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(losses, linewidth=0.6, alpha=0.5, label="each step")
    width = max(1, len(losses) // 50)
    smooth = np.convolve(losses, np.ones(width) / width, "valid")
    axes.plot(np.arange(len(smooth)) + width - 1, smooth, label=f"mean of {width} steps")
    axes.set(xlabel="step", ylabel="loss", yscale="log", title=title)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def finish(options: argparse.Namespace, parameters: Parameters, losses: Sequence[float], title: str) -> None:
    """Print the digest of what was learned, and draw the losses unless the command line says no."""
    print(f"digest: {digest(parameters)}")
    if not options.no_plot:
        curve(losses, options.plot, title)
        print(f"loss curve: {options.plot}")


def positive(text: str) -> int:
    """Return a command-line argument as a number of at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def options(description: str, arguments: list[str] | None, steps: int, picture: str, **more: str) -> argparse.Namespace:
    """Return the command line of a training; `more` maps further options to their help."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=positive, default=steps or None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=positive, help="threads of a run (default: all cores)")
    parser.add_argument("--plot", default=picture, help="where the picture goes")
    parser.add_argument("--no-plot", action="store_true")
    for name, text in more.items():
        parser.add_argument(f"--{name}", help=text)
    chosen = parser.parse_args(arguments)
    if chosen.threads:
        topos.set_num_threads(chosen.threads)
    return chosen
