"""`Plan.emit_stablehlo`: the schedule of a plan as one module with one function."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from topos.backend.formula import Formula
from topos.emission.emittable import emittable
from topos.emission.lowering import lower
from topos.emission.raises import raised
from topos.emission.writer import Term, Writer
from topos.engine.catalog.election import Reduced
from topos.engine.plan import Plan
from topos.errors import EmitError, ShapeError, UsageError
from topos.graph import SymbolLike
from topos.graph.columns import spec_lines
from topos.ops import Broadcast, BroadcastAlong, Gather, Input, Leaf, Parameter, Reshape, Scatter
from topos.payload import Tensor

# How the text calls the devices, and their one axis.
MESH, AXIS = "devices", "batch"


def arguments(plan: Plan) -> list[int]:
    """Return the nodes that the function takes: parameters, then inputs, each in recording order."""
    columns, nodes = plan.columns, plan.schedule.nodes
    return [node for kind in (Parameter, Input) for node in nodes if isinstance(columns.opcodes[node], kind)]


def emit_stablehlo(
    plan: Plan, batch: Mapping[SymbolLike, int] | None = None, devices: int = 1, plain: Collection[Formula] = ()
) -> str:
    """Return the plan as StableHLO text: one module, one function `main`.

    It takes the parameters that the plan needs, then the inputs, each in recording order, and returns the
    results in declared order. A comment above each node's operations is its line of `describe`. Selections are
    taken as dense one-hot matrices. Rules about data (`Tape.require_nonzero`, one-hot rows) are not in the text.

    Arguments:
        plan: what is emitted.
        batch: for data parallelism, inputs with the axis along which each is cut into `devices` parts. The
            text says so in the notation of Shardy, and the compiler's partitioner adds the sums over devices.
        devices: how many.
        plain: formulas whose groups are written as they were recorded, for a reader that lacks an operation.

    Raises:
        EmitError: the element has no form in StableHLO, or a key of `batch` is no input that the plan needs.
        ShapeError: an axis of `batch` does not exist, or its extent is no multiple of `devices`.
        SymbolError: a key of `batch` belongs to another recording.
        UsageError: there are no devices.
    """
    columns = plan.columns
    if devices < 1:
        raise UsageError(f"emit_stablehlo(devices={devices}): there is at least one")
    writer = Writer(emittable(columns.element))
    comments = [line.strip() for line in spec_lines(columns, range(len(columns)))]
    reduced = Reduced(columns, plan.schedule, set(Formula.ALL) - {Formula.ATTENTION, *plain})
    dense = _read_densely(plan, reduced)
    terms: dict[int, Term] = {}
    head = []
    cuts = {columns.index(symbol, "emit_stablehlo"): axis for symbol, axis in (batch or {}).items()}
    given = arguments(plan)
    for node, axis in cuts.items():
        label, shape = columns.label(node), columns.shapes[node]
        if node not in given or not isinstance(columns.opcodes[node], Input):
            raise EmitError(f"emit_stablehlo: {label} of batch is no input that the plan needs")
        if not 0 <= axis < shape.rank or shape[axis] % devices:
            what = f"{label} of shape {shape} cannot be cut along axis {axis} into {devices} parts"
            raise ShapeError(f"emit_stablehlo: {what}: the axis has to exist, and its extent to be a multiple")
    for position, node in enumerate(given):
        term = terms[node] = Term(f"%arg{position}", tuple(columns.shapes[node]), writer.element.name)
        sharding = _sharding(term.shape, devices, cuts.get(node))
        comma = "," if position + 1 < len(given) else ""
        head.append(f"    {term.name}: {term.type}{sharding}{comma}  // {comments[node]}")
    for node in reduced.nodes:
        opcode, group = columns.opcodes[node], reduced.groups.get(node)
        if node in terms:
            continue
        if group is not None:  # with all that it makes, at the first of them
            served = f"  ({group.formula.value} of {sorted(group.interiors)})"
            writer.begin(group.root, comments[group.root] + served)
            results = raised(writer, group, [terms[i] for i in group.reads])
            terms |= {made: results[place] for made, place in group.made.items()}
            terms[group.root] = writer.end(results[0])
            continue
        writer.begin(node, comments[node])
        if isinstance(opcode, Leaf):
            terms[node] = _leaf(writer, columns.payloads[node], node, node in dense)
            continue
        operands = [terms[i] for i in columns.operands[node]]
        term = terms[node] = writer.end(lower(writer, opcode, operands))
        if isinstance(opcode, (Broadcast, BroadcastAlong, Reshape)) and operands[0].name in writer.unsigned:
            writer.unsigned.add(term.name)
    results = [terms[columns.index(symbol, "emit_stablehlo")] for symbol in plan.results]
    outputs = ", ".join(term.type + _sharding(term.shape, devices) for term in results)
    mesh = [f'  sdy.mesh @{MESH} = <["{AXIS}"={devices}]>'] if devices > 1 else []
    body = [f"    {line}" for text in writer.lines for line in text.split("\n")]
    returned = f"    return {', '.join(t.name for t in results)} : {', '.join(t.type for t in results)}"
    attributes = f" attributes {{mhlo.num_partitions = {devices} : i32}}" if devices > 1 else ""
    opening = ["  func.func @main(", *head, f"  ) -> ({outputs}) {{"]
    lines = [f"module @topos{attributes} {{", *mesh, *opening, *body, returned, "  }", "}"]
    return "\n".join(lines) + "\n"


def _read_densely(plan: Plan, reduced: Reduced) -> set[int]:
    """Return the nodes whose numbers are read otherwise than as a selection."""
    columns = plan.columns
    dense = {columns.index(symbol, "emit_stablehlo") for symbol in plan.results}
    for node in reduced.nodes:
        selects = isinstance(columns.opcodes[node], (Gather, Scatter))
        dense.update(reduced.reads(node)[: 1 if selects else None])
    return dense


def _leaf(writer: Writer, payload: Tensor, node: int, is_dense: bool) -> Term:
    """Write a constant; one that is read as a selection alone is written as the indices that it holds."""
    term = Term(f"%v{node}", tuple(payload.shape), writer.element.name)
    if not is_dense:
        indices = payload.indices()
        assert indices is not None  # the plan has been lowered: a constant selection is one-hot
        writer.positions[term.name] = writer.integers(indices)
        return term
    array = np.asarray(payload, writer.element.element.dtype)
    if not np.any((array == 0) & np.signbit(array)):
        writer.unsigned.add(term.name)
    text = writer.element.dense(array)
    writer.lines.append(f"{term.name} = stablehlo.constant dense<{text}> : {term.type}")
    return term


def _sharding(shape: Sequence[int], devices: int, axis: int | None = None) -> str:
    """Return the attribute that cuts a value along an axis, or keeps it whole; nothing for one device."""
    axes = [f'{{"{AXIS}"}}' if i == axis else "{}" for i in range(len(shape))]
    return f" {{sdy.sharding = #sdy.sharding<@{MESH}, [{', '.join(axes)}]>}}" if devices > 1 else ""


Plan.emit_stablehlo = emit_stablehlo
