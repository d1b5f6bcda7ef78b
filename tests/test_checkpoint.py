"""Checkpoints: by position, by path, in files; faults are listed together and nothing changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import ELEMENTS, same_bits
from topos import (
    Activation,
    Adam,
    CheckpointError,
    Linear,
    Lion,
    Mlp,
    Momentum,
    Parameters,
    RmsProp,
    RunningBatchNorm,
    Sequential,
    Sgd,
    Tape,
    Tensor,
    checkpoint,
    init,
    load_tensors,
    mse,
    save_tensors,
)


def tree(tape: Tape, seed: int = 1, depth: int = 20) -> Sequential:
    """Return a model of 20 layers with running statistics in it."""
    draw = init.scaled(seed, 1.0, tape.element)
    layers: list[Any] = [Linear(tape, draw([3, 3]), draw([3])) for _ in range(depth - 1)]
    return Sequential(*layers[:10], RunningBatchNorm(tape, np.ones(3), np.zeros(3)), *layers[10:])


def model(element: Any = "f32", seed: int = 1, depth: int = 20) -> tuple[Any, Sequential, Parameters]:
    """Return a network, its tree and its parameters."""
    network, modules = Tape.record(lambda tape: tree(tape, seed, depth), element=element)
    return network, modules, network.parameters()


def same(left: Parameters, right: Parameters) -> bool:
    """Return whether two tables of different networks hold the same bits."""
    return all(same_bits(a, b) for a, b in zip(left.payloads(), right.payloads(), strict=True))


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_files_keep_the_bits(element: Any, tmp_path: Path) -> None:
    """Every built-in element comes back as it was, running statistics too, into another recording."""
    _, modules, parameters = model(element)
    checkpoint.save(tmp_path / "a.safetensors", parameters, modules)
    _, others, fresh = model(element, seed=2)
    assert not same(fresh, parameters)
    assert same(checkpoint.load(tmp_path / "a.safetensors", fresh, others), parameters)
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    import os

    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_snapshots() -> None:
    """By position and by path, over a tied parameter; parameters outside the tree stay."""

    def build(tape: Tape) -> Any:
        shared = Linear(tape, [[1.0, 2.0]])
        return Sequential(shared, Sequential(shared)), tape.parameter(7.0)

    network, (modules, other) = Tape.record(build)
    parameters = network.parameters()
    doubled = parameters.scale(2.0)
    assert [p.to_list() for p in checkpoint.snapshot(doubled, modules)] == [[2.0, 4.0]] * 2
    back = checkpoint.restore(parameters, modules, checkpoint.snapshot(doubled, modules))
    assert back.of(other).scalar() == 7
    assert back.of(modules.parameters()[0]).to_list() == [2.0, 4.0]
    named = checkpoint.named_snapshot(doubled, modules)
    assert [str(path) for path, _ in named] == ["0.weights", "1.0.weights"]
    entries = [(path, payload * float(i)) for i, (path, payload) in enumerate(named)]
    last = checkpoint.named_restore(parameters, modules, reversed(entries))
    assert last.of(modules.parameters()[0]).to_list() == [2.0, 4.0]


def test_all_faults_are_listed_and_nothing_changes(tmp_path: Path) -> None:
    """Case 28: missing, unexpected, mis-shaped ((1, 1) against (1,)) and wrongly typed entries in one error."""
    network, layers = Tape.record(lambda tape: Sequential(Linear(tape, [[1.0]], [0.0]), Linear(tape, [[1.0]], [0.0])))
    parameters = network.parameters()
    before = parameters.buffer.tobytes()
    entries = {
        "0.weights": Tensor([[1.0]], element="f64"),
        "0.bias": Tensor([[1.0]]),
        "1.weight": Tensor([[1.0]]),
        "1.bias": np.array([1.0], np.float32),
    }
    wanted = [
        "nothing was changed", "missing: '1.weights'", "unexpected: '1.weight'",
        r"shape: '0.bias' has [1, 1], expected [1]", "element: '0.weights' holds f64, expected f32",
    ]  # fmt: skip
    save_tensors(tmp_path / "x.safetensors", entries)
    for attempt in (
        lambda: checkpoint.named_restore(parameters, layers, entries.items()),
        lambda: checkpoint.load(tmp_path / "x.safetensors", parameters, layers),
    ):
        with pytest.raises(CheckpointError) as caught:
            attempt()
        assert [text for text in wanted if text not in str(caught.value)] == []
        assert parameters.buffer.tobytes() == before
    with pytest.raises(
        CheckpointError, match=r"missing: '1.weights'.*unexpected: 'zz'.*element: '0.weights': .*'1.bias'"
    ):
        checkpoint.named_restore(parameters, layers, {"0.weights": "abc", "0.bias": [0.0], "1.bias": [None], "zz": 1})
    with pytest.raises(CheckpointError, match="4 parameters, 1 payloads"):
        checkpoint.restore(parameters, layers, [[1.0]])
    with pytest.raises(CheckpointError, match=r"shape: '0.weights'.*shape: '1.bias'"):
        checkpoint.restore(parameters, layers, [[1.0], [1.0], [[1.0]], [[1.0]]])


def test_damaged_files(tmp_path: Path) -> None:
    """A truncated, emptied or overwritten file is a clear error, a missing one an OSError."""
    _, modules, parameters = model()
    path = tmp_path / "m.safetensors"
    checkpoint.save(path, parameters, modules)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", b"\xff" * 64, whole[:8] + b"\x00" + whole[9:], b"PK" + whole):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"m.safetensors is no whole safetensors file"):
            checkpoint.load(path, parameters, modules)
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none", parameters, modules)


def test_a_killed_save_leaves_the_old_file(tmp_path: Path) -> None:
    """A process that dies before the rename, and one that fails in it, leave the old file whole."""
    path = tmp_path / "m.safetensors"
    save_tensors(path, {"w": Tensor([1.0])})
    program = (
        "import os, sys, topos\n"
        "os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        f"topos.save_tensors({str(path)!r}, {{'w': topos.Tensor([2.0])}})\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert load_tensors(path)[0]["w"].to_list() == [1.0]
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OSError, match="folder"):
        save_tensors(folder, {"w": Tensor([2.0])})
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".folder")]


OPTIMIZERS = [Sgd, Momentum, RmsProp, Lion, lambda: Adam(beta2=0.99)]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["sgd", "momentum", "rmsprop", "lion", "adam"])
@pytest.mark.parametrize("element", ["f32", "bf16"])
def test_resume(make: Any, element: Any, tmp_path: Path) -> None:
    """Training that is saved and resumed in another recording has the bits of one that was not (case 27)."""

    def build(tape: Tape) -> Any:
        modules = Mlp(tape, [3, 4, 1], Activation.TANH, init.xavier(5, tape.element))
        x = tape.input(np.sin(np.arange(12.0)).reshape(4, 3))
        loss = mse(modules(x), tape.leaf(np.ones((4, 1))))
        return modules, tape.differentiate(loss, modules.parameters())

    def train(parameters: Parameters, plan: Any, optimizer: Any, steps: int) -> Parameters:
        for _ in range(steps):
            _, parameters = plan.step(parameters, {}, optimizer, 0.1)
        return parameters

    def fresh() -> Any:
        network, (modules, adjoints) = Tape.record(build, element=element)
        return network.parameters(), modules, network.entry(adjoints.roots).lower(), make()

    start, _, plan, optimizer = fresh()
    whole = train(start, plan, optimizer, 6)
    start, modules, plan, optimizer = fresh()
    half = train(start, plan, optimizer, 3)
    checkpoint.save(tmp_path / "half", half, modules, optimizer, {"step": "3"})
    start, modules, plan, optimizer = fresh()
    half = checkpoint.load(tmp_path / "half", start, modules, optimizer)
    assert load_tensors(tmp_path / "half")[1]["step"] == "3"
    assert same(train(half, plan, optimizer, 3), whole)
    assert same(checkpoint.load(tmp_path / "half", start, modules), half)


def test_state_that_does_not_fit(tmp_path: Path) -> None:
    """Another optimizer's state, none, or a state of parameters outside the tree: refused, nothing is set."""
    network, (layer, other) = Tape.record(lambda tape: (Linear(tape, [[1.0]]), tape.parameter(1.0)))
    parameters = network.parameters()
    adam = Adam()
    adam.step(parameters, parameters, 0.1)
    path = tmp_path / "m"
    with pytest.raises(CheckpointError, match=r"remembers \[n#1\]"):
        checkpoint.save(path, parameters, layer, adam)
    names = {"w": layer.weights, "free": other}
    checkpoint.save(path, parameters, names, adam)
    lion = Lion()
    with pytest.raises(CheckpointError, match="the state of Adam, not of Lion"):
        checkpoint.load(path, parameters, names, lion)
    assert lion.state is None
    checkpoint.save(path, parameters, names)
    with pytest.raises(CheckpointError, match="the state of none, not of Adam"):
        checkpoint.load(path, parameters, names, Adam())
    number, w = Tape.record(lambda tape: tape.parameter(1.0), element=complex)
    with pytest.raises(CheckpointError, match="'w' holds Python objects"):
        checkpoint.save(path, number.parameters(), {"w": w})


def test_pytorch_opens_it_and_the_other_way_round(tmp_path: Path) -> None:
    """20 layers: saved here they open in safetensors.torch, and a PyTorch model's file loads here."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    for element, dtype in (("f32", torch.float32), ("f64", torch.float64), ("bf16", torch.bfloat16)):
        _, modules, parameters = model(element)
        path = tmp_path / f"{element}.safetensors"
        checkpoint.save(path, parameters, modules)
        theirs = load_file(path)
        named = checkpoint.named_snapshot(parameters, modules)
        assert list(theirs) == sorted(str(p) for p, _ in named)
        for name, payload in named:
            assert theirs[str(name)].dtype == dtype
            assert theirs[str(name)].double().tolist() == np.array(payload.numpy(), float).tolist()
        doubled = {name: (2 * tensor).contiguous() for name, tensor in theirs.items()}
        save_file(doubled, path)
        assert same(checkpoint.load(path, parameters, modules), parameters.scale(2.0))
    net = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(20)])
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    network, symbols = Tape.record(
        lambda tape: {name: tape.parameter(np.zeros(tuple(t.shape))) for name, t in net.state_dict().items()}
    )
    loaded = checkpoint.load(tmp_path / "net.safetensors", network.parameters(), symbols)
    for name, tensor in net.state_dict().items():
        assert loaded.of(symbols[name]).numpy().tolist() == tensor.tolist()


def test_jax_opens_it(tmp_path: Path) -> None:
    """JAX's reader answers the same numbers, bf16 among them."""
    pytest.importorskip("jax")
    from safetensors.flax import load_file

    for element in ("f32", "bf16"):
        _, modules, parameters = model(element, depth=3)
        checkpoint.save(tmp_path / element, parameters, modules)
        theirs = load_file(tmp_path / element)
        for name, payload in checkpoint.named_snapshot(parameters, modules):
            assert np.asarray(theirs[str(name)]).tolist() == payload.numpy().tolist()
