"""`Symbol`: the name by which everything after recording speaks of a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from topos.errors import SymbolError


class Counted:
    """What has a length, and is true also where that is 0."""

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it."""
        return len(self) == 0

    def __bool__(self) -> bool:
        return True


class Family:
    """The origin that a tape, its network, its symbols and its tables share; compared by identity."""

    __slots__ = ("__weakref__",)

    def __deepcopy__(self, memo: object) -> Family:
        return self


class Symbol:
    """A detached name: equal and hashable by (family, position), valid across sealing and reopening.

    >>> symbol = Tape().input(0.0).symbol
    >>> symbol, symbol.index
    (n#0, 0)
    """

    __slots__ = ("_hash", "family", "index")

    def __init__(self, family: Family, index: int) -> None:
        self.family, self.index = family, index
        self._hash = hash((id(family), index))  # symbols are keys of feeds, step after step

    def detach(self) -> Symbol:
        """Return itself."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and self.index == other.index and self.family is other.family

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Symbol, (self.family, self.index)

    def __repr__(self) -> str:
        return f"n#{self.index}"


# Where a symbol is taken, a `Value` of a live tape does too.
SymbolLike: TypeAlias = Any


def symbol_of(given: SymbolLike) -> Symbol:
    """Return the symbol that `given` is or names.

    Raises:
        SymbolError: it is neither a Symbol nor a Value.
    """
    if isinstance(given, Symbol):
        return given
    found = getattr(given, "symbol", None)
    if isinstance(found, Symbol):
        return found
    raise SymbolError(f"{given!r} is no symbol: give a Symbol, or the Value while its tape records")


def detach(tree: Any) -> Any:
    """Return the same nesting of tuples, lists and dicts with every Value replaced by its symbol.

    What has a ``detach`` method is asked; None and other objects stay as they are.

    >>> x = Tape().input(0.0)
    >>> detach({"pair": (x, [x])})
    {'pair': (n#0, [n#0])}
    """
    if type(tree) is tuple or hasattr(tree, "_fields"):  # a shape or an opcode is a tuple too, and whole
        members = [detach(member) for member in tree]
        return type(tree)(*members) if hasattr(tree, "_fields") else tuple(members)
    if isinstance(tree, list):
        return [detach(member) for member in tree]
    if isinstance(tree, Mapping):
        return {key: detach(member) for key, member in tree.items()}
    method = getattr(tree, "detach", None)
    return method() if callable(method) else tree


def position(symbol: SymbolLike, family: Family, count: int, what: str, kept: str) -> int:
    """Return the position of a symbol among the first `count` nodes of a family.

    Raises:
        SymbolError: it belongs to another family, or is newer than what is `kept`.
    """
    found = symbol_of(symbol)
    if found.family is not family:
        raise SymbolError(f"{what}: {found!r} belongs to another recording")
    if found.index >= count:
        raise SymbolError(f"{what}: {found!r} is newer than this {kept} of {count} nodes")
    return found.index
