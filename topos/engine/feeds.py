"""Feeds: what a caller gives for an input, checked, as a tensor of the recording's element."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from topos.errors import ElementError, FeedError, PositionError, ShapeError, SymbolError
from topos.graph import Columns, SymbolLike, symbol_of
from topos.ops import Input
from topos.payload import Tensor

# ``{symbol: array}`` or pairs; the last feed of an input counts.
Feeds: TypeAlias = Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None


# The tensors that inputs are fed, by node.
Fed: TypeAlias = dict[int, Tensor]


def pairs(feeds: Feeds) -> Iterable[tuple[Any, Any]]:
    """Return the (symbol, data) pairs of feeds in any form."""
    if feeds is None:
        return ()
    if isinstance(feeds, Mapping):
        return feeds.items()
    is_whole = isinstance(feeds, (str, Tensor, np.ndarray)) or not isinstance(feeds, Iterable)
    found: list[Any] = [feeds] if is_whole else list(feeds)
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in found):
        raise FeedError(f"feeds are {{input: data}}, or pairs of these, not {type(feeds).__name__} {feeds!r}")
    return found


def bind_feeds(columns: Columns, feeds: Feeds) -> Fed:
    """Return the fed tensors by node, of the network's element: copies of foreign arrays.

    Raises:
        FeedError: a symbol is foreign, newer, or no input; a payload has another shape or element.
    """
    nodes = [(input_node(columns, given), data) for given, data in pairs(feeds)]
    return {node: bound_feed(columns, node, data) for node, data in nodes}


def bound_feed(columns: Columns, node: int, data: Any) -> Tensor:
    """Return the tensor that an input is fed: a copy of a foreign array.

    Raises:
        FeedError: as `bind_feeds`.
    """
    tensor, expected = feed_tensor(columns, node, data), columns.shapes[node]
    if tensor.shape != expected:
        raise FeedError(f"{columns.label(node)} has shape {expected}, the feed {tensor.shape}")
    return tensor


def input_node(columns: Columns, given: SymbolLike) -> int:
    """Return the input that a feed names.

    Raises:
        FeedError: the symbol is foreign, newer, or no input.
    """
    try:
        node = columns.index(symbol_of(given), "feed")
    except SymbolError as error:
        raise FeedError(str(error)) from None
    if not isinstance(columns.opcodes[node], Input):
        raise FeedError(f"{columns.label(node)} is no input: only what tape.input recorded can be fed")
    return node


def feed_tensor(columns: Columns, node: int, data: Any) -> Tensor:
    """Return fed data as a tensor of the recording's element; foreign arrays are copied.

    Raises:
        FeedError: the data holds no numbers of the element, or ids outside the vocabulary.
    """
    element = columns.element
    selected = selection_of(columns, node, data)
    if selected is not None:
        return selected
    try:
        tensor = data if isinstance(data, Tensor) else Tensor(data, element=element)
    except (ElementError, ShapeError) as error:
        raise FeedError(f"{columns.label(node)} cannot take this feed: {error}") from error
    if tensor.element is not element:
        rule = f"{columns.label(node)} holds {element.name}, the feed {tensor.element.name}"
        raise FeedError(f"{rule}: convert it, e.g. tensor.convert({element.name!r})")
    return tensor


def selection_of(columns: Columns, node: int, data: Any, sequence: bool = False) -> Tensor | None:
    """Return integer ids, one per row, as a selection, where the input's own payload is one; else None.

    Arguments:
        columns: the record.
        node: the input.
        data: as many ids as the input has rows, in any shape.
        sequence: whether a leading axis of steps comes before them.

    Raises:
        FeedError: an id is outside the vocabulary.
    """
    if isinstance(data, Tensor) or not columns.payloads[node].is_selection:
        return None
    try:
        ids = np.asarray(data)
    except ValueError:  # ragged: what reads numbers says so
        return None
    count, vocabulary = columns.shapes[node]
    steps = (ids.shape or (0,))[0] if sequence else 1
    if ids.dtype.kind not in "iu" or ids.size == 0 or ids.size != steps * count:
        return None
    try:
        return Tensor.selection(ids, vocabulary, element=columns.element)  # type: ignore[arg-type]
    except PositionError as error:
        raise FeedError(f"{columns.label(node)} cannot take this feed: {error}") from error
