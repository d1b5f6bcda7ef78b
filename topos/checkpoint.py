"""Checkpoints of a tree of modules: in memory by position or by path, and in safetensors files."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from topos.errors import CheckpointError, ElementError, ShapeError
from topos.graph import Parameters, Symbol
from topos.neural.module import Module, collect
from topos.neural.optimizers import Optimizer
from topos.neural.paths import Path
from topos.payload import Tensor, load_tensors, save_tensors

# What says under which path a parameter is stored: a module, or a mapping of names to symbols.
Tree = Module | Mapping[str, Symbol]

# What a file is named by.
PathLike = str | os.PathLike[str]

# Before the names of an optimizer's state; no path holds a colon.
_STATE = "optimizer:"


def _named(module: Tree) -> list[tuple[str, Symbol]]:
    if isinstance(module, Mapping):
        return list(module.items())
    return [(str(path), symbol) for path, symbol in collect(module, True).found]


# ---- in memory
def snapshot(parameters: Parameters, module: Module) -> list[Tensor]:
    """Return the payloads of a tree's parameters and running statistics, in visit order.

    >>> network, layer = Tape.record(lambda tape: Linear(tape, [[2.0]], [1.0]))
    >>> [str(payload) for payload in checkpoint.snapshot(network.parameters(), layer)]
    ['[[2.0]]', '[1.0]']
    """
    return [parameters.of(symbol) for _, symbol in _named(module)]


def restore(parameters: Parameters, module: Module, payloads: Sequence[Any]) -> Parameters:
    """Return the table with a tree's payloads replaced, by position; others stay.

    Raises:
        CheckpointError: the count, a shape or an element differs; all faults are listed.

    >>> network, layer = Tape.record(lambda tape: Linear(tape, [[2.0]], [1.0]))
    >>> parameters = network.parameters()
    >>> checkpoint.restore(parameters, layer, checkpoint.snapshot(parameters, layer)) == parameters
    True
    """
    named = _named(module)
    given = list(payloads)
    if len(given) != len(named):
        raise CheckpointError(f"restore: the module has {len(named)} parameters, {len(given)} payloads are given")
    payload_of = {name: data for (name, _), data in zip(named, given, strict=True)}
    return _placed("restore", parameters, named, payload_of)


def named_snapshot(parameters: Parameters, module: Module) -> list[tuple[Path, Tensor]]:
    """Return (path, payload) of a tree's parameters and running statistics, in visit order.

    >>> network, layer = Tape.record(lambda tape: Linear(tape, [[2.0]], [1.0]))
    >>> [str(path) for path, _ in checkpoint.named_snapshot(network.parameters(), layer)]
    ['weights', 'bias']
    """
    return [(path, parameters.of(symbol)) for path, symbol in collect(module, True).found]


def named_restore(
    parameters: Parameters, module: Module, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]
) -> Parameters:
    """Return the table with a tree's payloads replaced, by path (or its dotted text); others stay.

    A parameter under several paths takes the last in visit order.

    Raises:
        CheckpointError: paths are missing or unexpected, or shapes or elements differ; all are listed.

    >>> network, layer = Tape.record(lambda tape: Linear(tape, [[2.0]], [1.0]))
    >>> parameters = network.parameters()
    >>> entries = [("weights", [[5.0]]), ("bias", [0.0])]
    >>> print(checkpoint.named_restore(parameters, layer, entries).of(layer.weights))
    [[5.0]]
    """
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    named, given = _named(module), {str(path): data for path, data in pairs}
    return _placed("named_restore", parameters, named, given)


def _placed(what: str, parameters: Parameters, named: list[tuple[str, Symbol]], given: Mapping[str, Any]) -> Parameters:
    _refuse(what, _faults({name: parameters.of(symbol) for name, symbol in named}, given))
    return parameters.with_payloads([(symbol, given[name]) for name, symbol in named])


def _faults(expected: Mapping[str, Tensor], given: Mapping[str, Any]) -> list[str]:
    """Return what keeps entries from taking the place of others: names, shapes, elements."""
    faults = [f"missing: {name!r}" for name in expected if name not in given]
    faults += [f"unexpected: {name!r}" for name in given if name not in expected]
    for name, tensor in expected.items():
        if name not in given:
            continue
        data, element = given[name], tensor.element
        typed = isinstance(data, (Tensor, np.ndarray))
        kind = getattr(data, "element", None) or getattr(data, "dtype", None)
        try:
            data = data if typed else Tensor(data, element=element)
        except (ElementError, ShapeError) as error:
            faults.append(f"element: {name!r}: {error}")
            continue
        if tuple(data.shape) != tuple(tensor.shape):
            faults.append(f"shape: {name!r} has {list(data.shape)}, expected {tensor.shape}")
        if typed and kind is not element and not (isinstance(data, np.ndarray) and kind == element.dtype):
            faults.append(f"element: {name!r} holds {getattr(kind, 'name', kind)}, expected {element.name}")
    return faults


def _refuse(what: str, faults: Sequence[str]) -> None:
    """Raise a `CheckpointError` that lists every fault, if there are any."""
    if faults:
        raise CheckpointError(f"{what}: nothing was changed; " + "; ".join(faults))


# ---- in files
def save(
    path: PathLike, parameters: Parameters, module: Tree,
    optimizer: Optimizer | None = None, metadata: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Write a tree's parameters to a safetensors file by path, and an optimizer's state beside them.

    The file opens in PyTorch's and JAX's readers. It is written under a temporary name and renamed.

    Arguments:
        path: of the file.
        parameters: the table.
        module: the tree, or a mapping of names to symbols.
        optimizer: whose state is stored, under names that begin with ``optimizer:``.
        metadata: further texts.

    Raises:
        CheckpointError: the element is a user's number type, or the optimizer remembers parameters that the
            tree does not hold.
        OSError: the file cannot be written.

    >>> network, layer = Tape.record(lambda tape: Linear(tape, [[2.0]], [1.0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint.save(f"{folder}/model.safetensors", network.parameters(), layer)
    ...     sorted(load_tensors(f"{folder}/model.safetensors")[0])
    ['bias', 'weights']
    """
    named = _named(module)
    tensors = {name: parameters.of(symbol) for name, symbol in named}
    texts = {**(metadata or {}), "format": "topos"}
    if optimizer is not None and optimizer.state is not None:
        texts["optimizer"] = type(optimizer).__name__
        held = {symbol for _, symbol in named}
        for position, entry in enumerate(optimizer.state):
            lost = [s for s in entry.symbols() if s not in held] if isinstance(entry, Parameters) else []
            if lost:
                raise CheckpointError(f"{path}: the optimizer remembers {lost}, which the module does not hold")
            tensors |= _state_entries(position, entry, named)
    save_tensors(path, tensors, texts)


def load(path: PathLike, parameters: Parameters, module: Tree, optimizer: Optimizer | None = None) -> Parameters:
    """Return the table with a tree's parameters read from a safetensors file, and set an optimizer's state.

    Files of other libraries serve, where names, shapes and elements are the tree's. Without `optimizer`, a
    state in the file is passed over. Training continues with the bits of a run that was not interrupted.

    Raises:
        CheckpointError: the file is corrupted, or entries are missing, unexpected, or of another shape or
            element; all are listed, and nothing is changed.
        OSError: the file cannot be read.

    >>> network, layer = Tape.record(lambda tape: Linear(tape, [[2.0]], [1.0]))
    >>> parameters = network.parameters()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint.save(f"{folder}/model.safetensors", parameters.scale(3.0), layer)
    ...     parameters = checkpoint.load(f"{folder}/model.safetensors", parameters, layer)
    >>> print(parameters.of(layer.weights))
    [[6.0]]
    """
    tensors, metadata = load_tensors(path)
    named = _named(module)
    expected: dict[str, Tensor] = {name: parameters.of(symbol) for name, symbol in named}
    kept = metadata.get("optimizer")
    if optimizer is None or kept is None:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(_STATE)}
    own = type(optimizer).__name__
    start: tuple[Any, ...] = () if optimizer is None else optimizer.start(parameters)
    for position, entry in enumerate(start):
        expected |= _state_entries(position, entry, named)
    faults = _faults(expected, tensors)
    if optimizer is not None and kept != own:
        faults.insert(0, f"optimizer: the file holds the state of {kept or 'none'}, not of {own}")
    _refuse(str(path), faults)
    if optimizer is not None:
        optimizer.state = tuple(
            entry.with_payloads([(symbol, tensors[f"{_STATE}{position}:{name}"]) for name, symbol in named])
            if isinstance(entry, Parameters)
            else tensors[f"{_STATE}{position}"]
            for position, entry in enumerate(start)
        )
    return parameters.with_payloads([(symbol, tensors[name]) for name, symbol in named])


def _state_entries(position: int, entry: Any, named: list[tuple[str, Symbol]]) -> dict[str, Tensor]:
    """Return an entry of an optimizer's state by the names that it has in a file."""
    if not isinstance(entry, Parameters):
        return {f"{_STATE}{position}": entry}
    return {f"{_STATE}{position}:{name}": entry.of(symbol) for name, symbol in named}
