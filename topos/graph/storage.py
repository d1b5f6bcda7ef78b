"""`Network.save` and `Network.load`: the spec itself in a safetensors file, sources as tensors, nodes as JSON."""

import json
from typing import Any

from topos.errors import CheckpointError, ToposError
from topos.graph.adjoints import Adjoints
from topos.graph.columns import Columns, is_name
from topos.graph.network import Network
from topos.graph.symbol import Symbol
from topos.ops import Opcode
from topos.payload import BUILT_IN, OPCODES, PathLike, Shape, Tensor, load_tensors, save_tensors

FORMAT, VERSION = "topos.network", 1


def save(self: Network, path: PathLike) -> None:
    """Write the spec: nodes, names, recording lines, payloads of sources, recorded derivatives.

    Trained parameters are no part of it: see `topos.checkpoint`.

    Raises:
        CheckpointError: the element is a user's number type.
    """
    columns = self.columns
    if columns.element.kernel is None:
        raise CheckpointError(f"{path}: a network of {columns.element.name} cannot be stored, only F32, F64, Bf16, F16")
    tensors: dict[str, Any] = {}
    for index, tensor in columns.payloads.items():
        if tensor.is_selection:
            tensors[f"selection.{index}"] = tensor.indices()
        elif tensor.as_constant() is not None:
            tensors[f"constant.{index}"] = tensor.element.array(tensor.as_constant())
        else:
            tensors[f"dense.{index}"] = tensor
    files: dict[str, int] = {}
    places = [at and [files.setdefault(at[0], len(files)), at[1]] for at in columns.locations]
    nodes = zip(columns.opcodes, columns.operands, columns.shapes, strict=True)
    spec = {
        "version": VERSION,
        "element": columns.element.name,
        "nodes": [[o.name, list(map(_plain, o.parameters.values())), operands, shape] for o, operands, shape in nodes],
        "names": columns.names,
        "checks": columns.checks,
        "files": list(files),
        "places": places,
        "adjoints": [[a.target.index, [[w.index, g.index] for w, g in a.pairs]] for a in columns.adjoints],
    }
    save_tensors(path, tensors, {FORMAT: json.dumps(spec, separators=(",", ":"))})


def load(path: PathLike) -> Network:
    """Read a spec that `Network.save` wrote: a network of a family of its own, with the same bits.

    Raises:
        OSError: the file cannot be read.
        CheckpointError: the file is corrupted, holds no network, or one of a version or opcode that this
            release does not know.
    """
    tensors, metadata = load_tensors(path)
    if FORMAT not in metadata:
        raise CheckpointError(f"{path} holds no network; parameters are read by topos.checkpoint.load")
    try:
        spec = json.loads(metadata[FORMAT])
        if spec["version"] != VERSION:
            rule = f"version {spec['version']} of the format is not known, only {VERSION}"
            raise CheckpointError(f"{rule}: use a newer topos")
        return Network(_columns(spec, tensors))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (ToposError, LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{path}: the network is damaged: {error!r}") from error


def _plain(parameter: Any) -> Any:
    return {"shape": parameter} if isinstance(parameter, Shape) else parameter


def _parameter(plain: Any) -> Any:
    if isinstance(plain, dict):
        return Shape(plain["shape"])
    return tuple(plain) if isinstance(plain, list) else plain


def _columns(spec: Any, tensors: dict[str, Any]) -> Columns:
    columns = Columns(BUILT_IN[spec["element"]])
    places = [None if at is None else (spec["files"][at[0]], at[1]) for at in spec["places"]]
    parts = ((key.partition("."), stored) for key, stored in tensors.items())
    payloads = {int(number): (kind, stored) for (kind, _, number), stored in parts}
    for index, (name, parameters, operands, shape) in enumerate(spec["nodes"]):
        if name not in OPCODES:
            raise CheckpointError(f"opcode {name!r} is not known")
        opcode: Opcode = OPCODES[name](*map(_parameter, parameters))
        known = [_earlier(operand, index) for operand in operands]
        if len(known) != opcode.arity:
            raise CheckpointError(f"n#{index} {name} has {len(known)} operands, not {opcode.arity}")
        if opcode.is_source:
            columns.add_source(opcode, _payload(*payloads.pop(index), shape, columns), places[index])
        else:
            inferred = opcode.infer(*[columns.shapes[operand] for operand in known])
            columns.append(opcode, tuple(known), inferred, places[index])
        if columns.shapes[index] != tuple(shape):
            raise CheckpointError(f"n#{index} {name} has shape {columns.shapes[index]}, the file says {shape}")
    if payloads:
        raise CheckpointError(f"payloads belong to no source: {sorted(payloads)}")
    length = len(columns)
    columns.names = {str(name): _earlier(index, length) for name, index in spec["names"].items()}
    if not all(map(is_name, columns.names)):
        raise CheckpointError(f"names are printable text, not {[*columns.names]}")
    columns.checks = [_earlier(index, length) for index in spec["checks"]]
    for target, pairs in spec["adjoints"]:
        symbols = [tuple(Symbol(columns.family, _earlier(i, length)) for i in pair) for pair in pairs]
        columns.adjoints.append(Adjoints(Symbol(columns.family, _earlier(target, length)), symbols))  # type: ignore[arg-type]
    return columns


def _earlier(index: Any, length: int) -> int:
    if not isinstance(index, int) or not 0 <= index < length:
        raise CheckpointError(f"a node refers to n#{index}, which is not recorded before it")
    return index


def _payload(kind: str, stored: Any, shape: Any, columns: Columns) -> Tensor:
    element = columns.element
    if kind == "selection":
        return Tensor.selection(stored, shape[1], element=element)
    if stored.element is not element:
        raise CheckpointError(f"a payload holds {stored.element.name}, the network {element.name}")
    tensor: Tensor = stored
    return Tensor.filled(Shape(shape), tensor) if kind == "constant" else tensor


Network.save = save
Network.load = staticmethod(load)
