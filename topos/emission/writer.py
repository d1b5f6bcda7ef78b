"""`Writer`: appends operations of StableHLO as text, and names what they compute."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from topos.emission.emittable import TYPES, Emittable
from topos.payload.tensor import nested


class Term(NamedTuple):
    """A value of the text: its name, extents and the type of its numbers."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def type(self) -> str:
        """The type, as in ``tensor<2x3xf32>``."""
        return f"tensor<{''.join(f'{extent}x' for extent in self.shape)}{self.kind}>"


class Writer:
    """The body of a function. `begin` names the node whose operations follow, `end` gives it the last result.

    Attributes:
        element: how the network's numbers are written.
        positions: of a selection (by its name), the indices that it holds.
        unsigned: names of constants among whose numbers is no -0.
    """

    def __init__(self, element: Emittable) -> None:
        self.element = element
        self.lines: list[str] = []
        self.positions: dict[str, Term] = {}
        self.unsigned: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], str], Term] = {}
        self._node, self._count, self._last = "", 0, -1

    # ---- names
    def begin(self, node: int, comment: str) -> None:
        """Start a node."""
        self._node, self._count, self._last = f"%v{node}", 0, -1
        self.lines.append(f"// {comment}")

    def end(self, result: Term) -> Term:
        """Finish the node: what was computed last takes its name. A view of another term keeps that one's."""
        if self._last < 0 or not self.lines[self._last].startswith(f"{result.name} ="):
            return result
        named = Term(self._node, result.shape, result.kind)
        self.lines[self._last] = named.name + self.lines[self._last][len(result.name) :]
        return named

    def append(self, operation: str, shape: Sequence[int], kind: str) -> Term:
        """Append an operation of one result; ``{type}`` in its text stands for the result's type."""
        self._count += 1
        term = Term(f"{self._node}_{self._count}", tuple(shape), kind)
        self._last = len(self.lines)
        self.lines.append(f"{term.name} = {operation.replace('{type}', term.type)}")
        return term

    def append_all(self, operation: str, shapes: Sequence[Sequence[int]], kind: str) -> list[Term]:
        """Append an operation of several results of one type of number; ``{type}`` stands for their types."""
        if len(shapes) == 1:
            return [self.append(operation, shapes[0], kind)]
        self._count += 1
        name = f"{self._node}_{self._count}"
        found = [Term(f"{name}#{place}", tuple(shape), kind) for place, shape in enumerate(shapes)]
        self.lines.append(f"{name}:{len(found)} = {operation.replace('{type}', f'({listed(found)[1]})')}")
        return found

    # ---- operations
    def operation(self, name: str, operands: Sequence[Term], shape: Sequence[int], kind: str, detail: str = "") -> Term:
        """Append ``stablehlo.name`` with its functional type."""
        names, types = listed(operands)
        return self.append(f"stablehlo.{name} {names}{detail} : ({types}) -> {{type}}", shape, kind)

    def elementwise(self, name: str, *operands: Term) -> Term:
        """Append an operation whose operands and result have one type."""
        a = operands[0]
        names = ", ".join(term.name for term in operands)
        return self.append(f"stablehlo.{name} {names} : {{type}}", a.shape, a.kind)

    def compare(self, direction: str, a: Term, b: Term) -> Term:
        """Append a comparison: the mask is of type i1."""
        types = f"({a.type}, {b.type})"
        text = f"stablehlo.compare {direction}, {a.name}, {b.name}, FLOAT : {types} -> {{type}}"
        return self.append(text, a.shape, "i1")

    def select(self, mask: Term, a: Term, b: Term) -> Term:
        """Append the choice of `a` where the mask is set, else `b`."""
        text = f"stablehlo.select {mask.name}, {a.name}, {b.name} : {mask.type}, {{type}}"
        return self.append(text, a.shape, a.kind)

    def convert(self, a: Term, kind: str) -> Term:
        """Append a conversion, rounded once; nothing where the type is that already."""
        return a if a.kind == kind else self.operation("convert", [a], a.shape, kind)

    def widened(self, a: Term) -> Term:
        """Return a term in the type that sums and maps are computed in."""
        return self.convert(a, self.element.accumulation or a.kind)

    def narrowed(self, a: Term) -> Term:
        """Return a term in the network's type again."""
        return self.convert(a, self.element.name)

    def reshape(self, a: Term, shape: Sequence[int]) -> Term:
        """Append a reshape; nothing where the shape is that already."""
        return a if a.shape == tuple(shape) else self.operation("reshape", [a], shape, a.kind)

    def spread(self, a: Term, shape: Sequence[int], axes: Sequence[int]) -> Term:
        """Append a broadcast: axis i of `a` is axis ``axes[i]`` of the result."""
        return self.operation("broadcast_in_dim", [a], shape, a.kind, f", dims = {list(axes)}")

    def slice(self, a: Term, axis: int, start: int, length: int, step: int = 1) -> Term:
        """Append ``length`` positions of an axis, `step` apart."""
        if (start, step, length) == (0, 1, a.shape[axis]):
            return a
        stops = [*a.shape]
        stops[axis] = start + (length - 1) * step + 1
        ranges = [f"0:{stop}" for stop in stops]
        ranges[axis] = f"{start}:{stops[axis]}" + (f":{step}" if step > 1 else "")
        shape = (*a.shape[:axis], length, *a.shape[axis + 1 :])
        return self.operation("slice", [a], shape, a.kind, f" [{', '.join(ranges)}]")

    def pad(self, a: Term, axis: int, low: int, full: int, between: int = 0) -> Term:
        """Append zeros before, between and after the positions of an axis, to `full` in all."""
        span = (a.shape[axis] - 1) * (between + 1) + 1
        if (low, between, span) == (0, 0, full):
            return a
        lows, highs, inner = ([0] * len(a.shape) for _ in range(3))
        lows[axis], highs[axis], inner[axis] = low, full - low - span, between
        detail = f", low = {lows}, high = {highs}, interior = {inner}"
        shape = (*a.shape[:axis], full, *a.shape[axis + 1 :])
        return self.operation("pad", [a, self.zero((), a.kind)], shape, a.kind, detail)

    def reduce(self, function: str, a: Term, axes: Sequence[int], start: Term) -> Term:
        """Append a reduction of axes, which are removed."""
        shape = [extent for axis, extent in enumerate(a.shape) if axis not in axes]
        operands = f"({a.name} init: {start.name}) applies stablehlo.{function}"
        types = f"({a.type}, {start.type}) -> {{type}}"
        text = f"stablehlo.reduce{operands} across dimensions = {list(axes)} : {types}"
        return self.append(text, shape, a.kind)

    def total(self, a: Term, axes: Sequence[int]) -> Term:
        """Append a sum in the accumulation type. It starts from -0, which leaves every number as it is."""
        wide = self.widened(a)
        return self.reduce("add", wide, axes, self.real(-0.0, (), wide.kind))

    def real(self, number: float, shape: Sequence[int], kind: str) -> Term:
        """Return a constant of equal numbers; each is written once."""
        return self.constant(TYPES[kind].literal(TYPES[kind].element(number)), shape, kind)

    def zero(self, shape: Sequence[int], kind: str) -> Term:
        """Return a constant of zeros."""
        return self.constant("0.0", shape, kind)

    def constant(self, dense: str, shape: Sequence[int], kind: str) -> Term:
        """Return the constant ``dense<...>``; each is written once."""
        key = (dense, tuple(shape), kind)
        if key not in self._constants:
            name = f"%c{len(self._constants)}"
            term = self._constants[key] = Term(name, tuple(shape), kind)
            self.lines.append(f"{name} = stablehlo.constant dense<{dense}> : {term.type}")
        return self._constants[key]

    def integers(self, array: Any) -> Term:
        """Return a constant of integers."""
        given = np.asarray(array)
        return self.constant(nested([str(x) for x in given.flat], given.shape), given.shape, "i32")

    def iota(self, shape: Sequence[int], axis: int) -> Term:
        """Append the positions along an axis."""
        return self.append(f"stablehlo.iota dim = {axis} : {{type}}", shape, "i32")

    # ---- rows and positions
    def gather(self, a: Term, indices: Term, axis: int) -> Term:
        """Append the positions of an axis that an index tensor names: its axes take the axis's place."""
        rank, where = len(a.shape), len(indices.shape)
        shape = (*a.shape[:axis], *indices.shape, *a.shape[axis + 1 :])
        offsets = [i for i in range(len(shape)) if not axis <= i < axis + where]
        sizes = [1 if i == axis else a.shape[i] for i in range(rank)]
        axes = f"offset_dims = {offsets}, collapsed_slice_dims = [{axis}], start_index_map = [{axis}]"
        numbers = f"dimension_numbers = #stablehlo.gather<{axes}, index_vector_dim = {where}>"
        settings = f"{numbers}, slice_sizes = array<i64: {', '.join(map(str, sizes))}>, indices_are_sorted = false"
        return self.append(generic("gather", [a, indices], settings), shape, a.kind)

    def scatter(self, a: Term, indices: Term, axis: int, extent: int) -> Term:
        """Append `a` added into zeros: its axes from `axis` on, as many as the index has, go where that says."""
        where = len(indices.shape)
        shape = (*a.shape[:axis], extent, *a.shape[axis + where :])
        windows = [i for i in range(len(a.shape)) if not axis <= i < axis + where]
        # Zeros of its own: the reference interpreter adds into the operand, where others would read it.
        zero = self.zero((), a.kind)
        zeros = self.spread(zero, shape, [])
        axes = f"inserted_window_dims = [{axis}], scatter_dims_to_operand_dims = [{axis}], index_vector_dim = {where}"
        numbers = f"scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {windows}, {axes}>"
        settings = f"{numbers}, indices_are_sorted = false, unique_indices = false"
        return self.append(generic("scatter", [zeros, indices, a], settings, applied(a.kind, "add")), shape, a.kind)


def listed(terms: Sequence[Term]) -> tuple[str, str]:
    """Return the names and the types of terms."""
    return ", ".join(term.name for term in terms), ", ".join(term.type for term in terms)


def generic(name: str, operands: Sequence[Term], settings: str, *regions: str) -> str:
    """Return ``stablehlo.name`` in MLIR's generic form; ``{type}`` stands for its result's type."""
    names, types = listed(operands)
    bodies = f" ({', '.join(regions)})" if regions else ""
    return f'"stablehlo.{name}"({names}) <{{{settings}}}>{bodies} : ({types}) -> {{type}}'


def region(kind: str, lines: Sequence[str], result: str) -> str:
    """Return a function of two numbers, %a and %b, that returns %s, of type `result`."""
    head = f"^bb0(%a: tensor<{kind}>, %b: tensor<{kind}>):"
    return "\n".join(["{", head, *(f"  {line}" for line in lines), f"  stablehlo.return %s : {result}", "}"])


def applied(kind: str, function: str) -> str:
    """Return an operation of two numbers as a function."""
    return region(kind, [f"%s = stablehlo.{function} %a, %b : tensor<{kind}>"], f"tensor<{kind}>")
