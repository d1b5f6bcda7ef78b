"""`Path`: where a parameter stands in a tree of modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from topos.errors import UsageError


@dataclass(frozen=True)
class Segment:
    """One step of a parameter's path: ``Segment.Index(2)`` or ``Segment.Name("weights")``.

    >>> print(Segment.Index(2), Segment.Name("weights"))
    2 weights
    """

    value: Any
    Index: ClassVar[type[Segment]]
    Name: ClassVar[type[Segment]]

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class _Index(Segment):
    """A child's position."""

    value: int


@dataclass(frozen=True)
class _Name(Segment):
    """A field's name: a Python identifier, so that the dotted form is unambiguous."""

    value: str

    def __post_init__(self) -> None:
        if not str.isidentifier(self.value):
            raise UsageError(f"Segment.Name({self.value!r}): a name is an identifier, e.g. 'weights'")


Segment.Index, Segment.Name = _Index, _Name


@dataclass(frozen=True)
class Path:
    """The path of one parameter in a tree of modules, ending in its own name; its text is the dotted form.

    >>> print(Path((Segment.Index(2), Segment.Name("weights"))))
    2.weights
    """

    segments: tuple[Segment, ...]

    def __str__(self) -> str:
        return ".".join(map(str, self.segments))
