"""Invent words: a bigram table, then a perceptron over the last three letters, trained on the words of the plays.

The bigram model is counted, no training needed: what it reaches is what the perceptron has to beat.

    python examples/words.py [--steps N] [--seed N] [--text FILE] [--threads N] [--plot FILE | --no-plot]
"""

from __future__ import annotations

import common
import data
import numpy as np
from rich.progress import track

import topos
from topos import Activation, Adam, Embedding, Mlp, Tape, Tensor

CONTEXT, LETTERS, FEATURES, BATCH = 3, 27, 12, 256
STEPS, RATE = 4000, 3e-3


def windows(words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the contexts and the letter after each; 0 is the boundary, 1 to 26 are a to z."""
    contexts, following = [], []
    for word in words:
        line = [0] * CONTEXT + [ord(letter) - 96 for letter in word] + [0]
        for at in range(len(line) - CONTEXT):
            contexts.append(line[at : at + CONTEXT])
            following.append(line[at + CONTEXT])
    return np.array(contexts), np.array(following)


def bigram(train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the mean negative log-likelihood of the test letters under counted pairs, one added to each."""
    counts = np.ones((LETTERS, LETTERS))
    np.add.at(counts, (train[0][:, -1], train[1]), 1)
    odds = counts / counts.sum(1, keepdims=True)
    return float(-np.log(odds[test[0][:, -1], test[1]]).mean())


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Train, invent, and return the losses of both models on unseen words, in nats a letter."""
    options = common.options("Invent words.", arguments, STEPS, "words_loss.png", text="a text file to take words from")
    words = data.words(data.plays(options.text))
    np.random.default_rng(options.seed).shuffle(words)
    cut = len(words) // 10
    train, test = windows(words[cut:]), windows(words[:cut])
    count = min(len(test[1]), 4096)

    def record(tape: Tape, batch: int) -> tuple:
        ids = table.ids(tape, batch * CONTEXT)
        return ids, net.express(table.express(ids).reshape([batch, CONTEXT * FEATURES]))

    def build(tape: Tape) -> tuple:
        nonlocal table, net
        table = Embedding(tape, topos.init.normal(options.seed, 0.5)([LETTERS, FEATURES]))
        sizes = [CONTEXT * FEATURES, 128, LETTERS]
        net = Mlp(tape, sizes, Activation.TANH, topos.init.xavier(options.seed + 1))
        ids, logits = record(tape, BATCH)
        targets = tape.input(Tensor.selection([0] * BATCH, LETTERS))
        loss = topos.cross_entropy(logits, targets)
        return ids, targets, loss, tape.differentiate(loss, [table.table, *topos.parameters(net)])

    table: Embedding
    net: Mlp
    network, (ids, targets, loss, adjoints) = Tape.record(build)
    plan = network.entry(adjoints.roots).lower()
    parameters, optimizer, losses = network.parameters(), Adam(), []
    rate = topos.schedules.cosine(RATE, options.steps)
    for step, rows in enumerate(
        track(common.batches(len(train[1]), BATCH, options.steps, options.seed), "training", options.steps)
    ):
        feeds = {ids: train[0][rows].reshape(-1), targets: train[1][rows]}
        run, parameters = plan.step(parameters, feeds, optimizer, rate(step))
        losses.append(float(run.of(loss).scalar()))

    network, (single, odds, wide, scores) = network.extend(
        lambda tape: (
            *((r := record(tape, 1))[0], r[1].softmax(1)),
            *((r := record(tape, count))[0], r[1].log_softmax(1)),
        )
    )
    found = network.entry(scores).lower().forward(parameters, {wide: test[0][:count].reshape(-1)}).of(scores).numpy()
    learned = float(-found[np.arange(count), test[1][:count]].mean())
    counted = bigram(train, test)
    print(f"unseen words, nats a letter: bigram {counted:.3f}, perceptron {learned:.3f}")
    sampler, rng, invented = network.entry(odds).lower(), np.random.default_rng(options.seed), []
    while len(invented) < 10:
        line = [0] * CONTEXT
        while len(line) == CONTEXT or line[-1] != 0:
            chances = sampler.forward(parameters, {single: np.array(line[-CONTEXT:])}).of(odds).numpy()[0]
            line.append(int(np.searchsorted(np.cumsum(chances), rng.random() * chances.sum())))
        invented.append("".join(chr(96 + letter) for letter in line[CONTEXT:-1]))
    print(f"invented: {' '.join(invented)}")
    common.finish(options, parameters, losses, "Letters after three letters")
    return counted, learned


if __name__ == "__main__":
    main()
