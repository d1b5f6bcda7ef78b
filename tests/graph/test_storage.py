"""`Network.save` and `Network.load`: the spec comes back whole, and what is not understood is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.drawn import drawn_graph
from tests.helpers import ELEMENTS, same_bits
from topos import Adam, CheckpointError, Network, Tape, Tensor, conv2d, cross_entropy, load_tensors, save_tensors


def example(tape: Tape) -> Any:
    """Record sources of every storage, windows, maps, a checked loss and its derivative."""
    x = tape.input(np.sin(np.arange(50.0)).reshape(1, 2, 5, 5), name="image")
    w = tape.parameter(np.cos(np.arange(24.0)).reshape(3, 2, 2, 2), name="kernel")
    bias = tape.parameter(Tensor.filled([3], 0.25, element=tape.element))
    target = tape.input(Tensor.selection([1], 3, element=tape.element), name="target")
    logits = conv2d(x, w, bias, 1, 1).tanh().mean((2, 3))
    loss = cross_entropy(logits, target).named("loss")
    return tape.differentiate(loss, [w, bias])


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_the_spec_comes_back(element: Any, tmp_path: Path) -> None:
    """Text, names, lines, storage and bits are the same; training goes on; a second save is the same file."""
    network, adjoints = Tape.record(example, element=element)
    network.save(tmp_path / "n.safetensors")
    loaded = Network.load(tmp_path / "n.safetensors")
    assert loaded.describe() == network.describe()
    assert [n.source for n in loaded.nodes()] == [n.source for n in network.nodes()]
    assert loaded.symbol("loss").index == network.symbol("loss").index
    assert loaded.payload(loaded.symbol("target")).is_selection
    run, its_run = network.forward(network.parameters()), loaded.forward(loaded.parameters())
    for index in range(len(network)):
        ours, theirs = (n.nodes()[index].symbol for n in (network, loaded))
        assert same_bits(run.of(ours), its_run.of(theirs))
    roots = [loaded.nodes()[symbol.index].symbol for symbol in adjoints.roots]
    _, stepped = network.entry(adjoints.roots).lower().step(network.parameters(), {}, Adam(0.9, 0.99, 1e-4), 0.1)
    _, its = loaded.entry(roots).lower().step(loaded.parameters(), {}, Adam(0.9, 0.99, 1e-4), 0.1)
    assert stepped.buffer.tobytes() == its.buffer.tobytes()
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "n.safetensors").read_bytes()
    tape = loaded.into_tape()
    tape.parameter(1.0, name="more")
    assert len(tape.into_network().parameters()) == 3


def edited(path: Path, edit: Any) -> None:
    """Write a network's file again with its JSON changed."""
    tensors, metadata = load_tensors(path)
    spec = json.loads(metadata["topos.network"])
    edit(spec)
    save_tensors(path, tensors, {"topos.network": json.dumps(spec)})


EDITS: dict[str, tuple[Any, str]] = {
    "version": (lambda s: s.update(version=2), "version 2 of the format is not known"),
    "opcode": (lambda s: s["nodes"][-1].__setitem__(0, "System"), "opcode 'System' is not known"),
    "element": (lambda s: s.update(element="f128"), "damaged: KeyError"),
    "later operand": (lambda s: s["nodes"][-1].__setitem__(2, [10**6]), "which is not recorded before"),
    "operand count": (lambda s: s["nodes"][-1].__setitem__(2, []), "operands, not"),
    "operand type": (lambda s: s["nodes"][-1].__setitem__(2, ["0"]), "refers to n#0"),
    "shape": (lambda s: s["nodes"][-1].__setitem__(3, [99]), "the file says"),
    "parameters": (lambda s: s["nodes"][-1].__setitem__(1, [1, 2, 3, 4, 5, 6]), "damaged: TypeError"),
    "missing source": (lambda s: s["nodes"].insert(0, ["Leaf", [], [], []]), "damaged|the file says"),
    "no nodes": (lambda s: s["nodes"].clear(), "belong to no source"),
    "name": (lambda s: s["names"].update(ghost=-1), "n#-1"),
    "missing": (lambda s: s.pop("names"), "damaged: KeyError"),
    "adjoints": (lambda s: s.update(adjoints=[[0]]), "damaged: ValueError"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_is_not_understood_is_refused(name: str, tmp_path: Path) -> None:
    """Another version, unknown opcodes, and every inconsistency: an error that names the file."""
    network, _ = Tape.record(example)
    path = tmp_path / "n.safetensors"
    network.save(path)
    edit, message = EDITS[name]
    edited(path, edit)
    with pytest.raises(CheckpointError, match=message) as caught:
        Network.load(path)
    assert str(path) in str(caught.value)


def test_other_files(tmp_path: Path) -> None:
    """Parameters, cut files, damaged JSON and networks of a user's number type."""
    network, _ = Tape.record(example)
    path = tmp_path / "n.safetensors"
    save_tensors(path, {"w": Tensor([1.0])})
    with pytest.raises(CheckpointError, match=r"holds no network; parameters are read by topos.checkpoint"):
        Network.load(path)
    for text in ("{", "[" * 200_000):
        save_tensors(path, {}, {"topos.network": text})
        with pytest.raises(CheckpointError, match="damaged"):
            Network.load(path)
    network.save(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="no whole safetensors file"):
        Network.load(path)
    fractions, _ = Tape.record(lambda tape: tape.parameter(1), element=Fraction)
    with pytest.raises(CheckpointError, match="of Fraction cannot be stored"):
        fractions.save(path)


@pytest.mark.parametrize("seed", range(40))
def test_drawn_graphs_come_back(seed: int, tmp_path: Path) -> None:
    """Any graph: the same text and, with the same numbers, the same bits of its loss."""
    element = ELEMENTS[seed % len(ELEMENTS)]
    network = drawn_graph(seed, element).network
    network.save(tmp_path / "n")
    loaded = Network.load(tmp_path / "n")
    assert loaded.describe() == network.describe()
    assert loaded.columns.opcodes == network.columns.opcodes
    run, its_run = network.forward(network.parameters()), loaded.forward(loaded.parameters())
    last, its_last = (n.nodes()[-1].symbol for n in (network, loaded))
    assert same_bits(run.of(last), its_run.of(its_last))
