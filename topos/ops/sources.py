"""Sources: nodes without operands, whose payload is given."""

from __future__ import annotations

from dataclasses import dataclass

from topos.ops.opcode import Opcode


@dataclass(frozen=True)
class Leaf(Opcode):
    """A constant of the spec."""


@dataclass(frozen=True)
class Parameter(Opcode):
    """A value that training changes: a slot of `Parameters`."""


@dataclass(frozen=True)
class Input(Opcode):
    """A value that each run may feed."""
