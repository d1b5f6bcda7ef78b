"""Sources: nodes without operands, whose payload is given."""

from topos.ops.opcode import Opcode


class Source(Opcode):
    """A kind without operands."""

    arity = 0


class Leaf(Source):
    """A constant of the spec."""


class Parameter(Source):
    """A value that training changes: a slot of `Parameters`."""


class Input(Source):
    """A value that each run may feed."""
