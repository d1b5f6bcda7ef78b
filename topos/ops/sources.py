"""Sources: nodes without operands, whose payload is given."""

from __future__ import annotations

from dataclasses import dataclass

from topos.ops.opcode import Opcode


@dataclass(frozen=True)
class Source(Opcode):
    """A kind without operands."""

    arity = 0


@dataclass(frozen=True)
class Leaf(Source):
    """A constant of the spec."""


@dataclass(frozen=True)
class Parameter(Source):
    """A value that training changes: a slot of `Parameters`."""


@dataclass(frozen=True)
class Input(Source):
    """A value that each run may feed."""
