"""From a chain to its row on a card: values stay in registers, and every line of them is read once per phase.

A phase adds up what lines hold, or takes the greatest, computing it from what the chain reads; another works on the values
per line that come of it, which lie in memory; the last one writes. What several phases need is computed in each of them.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from topos.kernels import rows
from topos.kernels.chains import OVER
from topos.kernels.reference import R_BLOCK
from topos.kernels.rows import EACH, GREATEST, LINE, TOTAL
from topos.ops.chain import Step
from topos.ops.emit import Emitter, Operand, Operands, collapse, compute_element
from topos.payload.shape import Shape


class _Part(NamedTuple):
    """A value of a chain, of a line or a position, by a routine; what a line combines has its element for one."""

    kind: int
    name: int
    routine: str
    sources: tuple[int, ...]


def _parts(steps: Sequence[Step], element: str) -> tuple[list[_Part], dict[int, int]]:
    """Return the parts that steps are made of, and by step the value per line that it repeats."""
    wide, parts, same = compute_element(element), list[_Part](), dict[int, int]()

    def add(kind: int, routine: str, *sources: int, name: int = 0) -> int:
        parts.append(_Part(kind, name or -1 - len(parts), routine, sources))
        return parts[-1].name

    for step in steps:
        given, kind = [same.get(source, source) for source in step.sources], LINE if step.is_row else EACH
        if step.family == "spread":
            same[step.node] = given[0]
        elif step.kind != OVER:
            add(kind, f"{step.family}.{element}", *given, name=step.node)
        else:
            if step.family.startswith("row"):
                add(TOTAL if step.family == "row_sum" else GREATEST, wide, *given)
            else:  # what `reduction` states of logarithms
                shift = add(LINE, f"finite_or_zero.{wide}", add(GREATEST, wide, *given))
                shifted = add(EACH, f"sub.{wide}", *given, shift)
                log = add(LINE, f"ln.{wide}", add(TOTAL, wide, add(EACH, f"exp.{wide}", shifted)))
                add(kind, *((f"add.{wide}", shift, log) if step.is_row else (f"log_difference.{wide}", shifted, log)))
            if element == wide:
                parts[-1] = parts[-1]._replace(name=step.node)
            else:
                add(kind, f"narrow.{element}", parts[-1].name, name=step.node)
    return parts, same


def lower(
    emitter: Emitter, steps: Sequence[Step], frame: Shape, reads: Operands, outputs: Sequence[int], targets: Operands
) -> dict[int, Operand] | None:
    """Append the row of a chain and return its outputs, as `chain.lower`; None where lines are longer than a block."""
    parts, same = _parts(steps, next(iter(reads.values())).element)
    by_line = any(part.kind != EACH for part in parts)
    if by_line and frame[-1] > R_BLOCK:
        return None
    places: dict[int, Operand] = dict(reads)
    for kind, name, routine, _ in parts:
        if kind != EACH or name in outputs:
            shape = frame if kind == EACH else Shape(frame[:-1])
            places[name] = targets.get(name) or emitter.allocate(shape, routine.rpartition(".")[2])
    slots = {name: number for number, name in enumerate(places)}
    phases: list[rows.Phase] = []

    def add(kind: int, inside: Sequence[_Part], stored: Collection[int], combined: Sequence[int] = ()) -> None:
        values = slots | {part.name: ~number for number, part in enumerate(inside)}
        work = tuple((part.routine, tuple(values[source] for source in part.sources)) for part in inside)
        stores = tuple((values[name], slots[name]) for name in stored)
        phases.append((kind, work, stores, (values[combined[0]], slots[combined[1]]) if combined else ()))

    def needed(names: Collection[int]) -> list[_Part]:
        wanted = set(names)
        for part in reversed(parts):
            if part.kind == EACH and part.name in wanted:
                wanted.update(part.sources)
        return [part for part in parts if part.kind == EACH and part.name in wanted]

    for part in parts:
        if part.kind == LINE:
            add(LINE, [part], [part.name])
        elif part.kind != EACH:
            add(part.kind, needed(part.sources), (), (part.sources[0], part.name))
    written = [part.name for part in parts if part.kind == EACH and part.name in outputs]
    if written:
        add(EACH, needed(written), written)
    append(emitter, frame, by_line, list(places.values()), phases)
    found = {node: places[same.get(node, node)] for node in outputs}
    for node in same.keys() & found.keys():
        found[node] = found[node].view(found[node].layout.broadcast_along(frame.rank - 1, frame[-1]))
    return found


def append(emitter: Emitter, frame: Shape, by_line: bool, places: Sequence[Operand], phases: list[rows.Phase]) -> None:
    """Append the row of phases over a frame, whose last axis is a line, or of single positions."""
    walks, end = [(*o.layout.strides, 0)[: frame.rank] for o in places], frame.rank - by_line
    extents, merged = collapse(frame[:end], [walk[:end] for walk in walks])
    strides = [[*walk, *(own[end:] or (0,))] for walk, own in zip(merged, walks, strict=True)]
    given = [(o.element, o.place, own) for o, own in zip(places, strides, strict=True)]
    emitter.append(rows.positions(extents, frame[-1] if by_line else 1, given, phases))
