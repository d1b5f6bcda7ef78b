"""`Plan`: an entry lowered. What is not declared is not computed, kept or materialised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topos.backend.numerics import Numerics
from topos.engine.arena import ArenaPool, LeanEmitter
from topos.engine.entry import Entry
from topos.engine.program import Bound, Lowered, check, source
from topos.engine.run import Feeds, Run, bind_feeds, check_parameters, walk
from topos.engine.schedule import Schedule
from topos.errors import UnreadableError
from topos.graph.columns import Columns, Node, node_of, spec_line
from topos.graph.network import Network
from topos.graph.parameters import Parameters, Slots
from topos.graph.symbol import Symbol, SymbolLike
from topos.ops import Leaf
from topos.ops.emit import ARENA
from topos.payload.tensor import Tensor


class Plan:
    """A compiled reading of a recorded prefix. It outlives a reopening of its network.

    Arguments:
        network: the spec; its nodes so far are the plan's.
        entry: what to compute and keep.
        poison: fill freed memory with NaN (a debugging aid).
    """

    __slots__ = ("_columns", "_lowered", "_pool", "_schedule", "_slots", "entry")

    def __init__(self, network: Network, entry: Entry, poison: bool = False) -> None:
        self.entry = entry
        columns = network.columns
        results = [columns.index(symbol, "entry") for symbol in entry.results]
        self._columns: Columns = columns.fork()
        self._slots: Slots = network.slots
        self._schedule = Schedule(self._columns, results, entry.backward)
        self._lowered: Lowered | None = None
        if columns.element.kernel is not None:
            self._lowered = _lower(self._columns, self._slots, self._schedule, not entry.backward, poison)
            self._pool = ArenaPool(self._lowered.program.size)

    # ---- readers
    def __len__(self) -> int:
        return len(self._schedule.nodes)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is scheduled."""
        return not self._schedule.nodes

    def __bool__(self) -> bool:
        return True

    @property
    def can_backward(self) -> bool:
        """Whether runs answer `Run.backward`."""
        return self.entry.backward

    @property
    def numerics(self) -> Numerics:
        """The posture of runs."""
        return self.entry.numerics

    @property
    def results(self) -> tuple[Symbol, ...]:
        """The readable values in declared order, each once."""
        return self.entry.results

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena of one run (0 for a user's number type)."""
        return 0 if self._lowered is None else self._lowered.program.size

    def node(self, symbol: SymbolLike) -> Node:
        """Return a snapshot of a node of the prefix."""
        return node_of(self._columns, self._columns.index(symbol, "node"))

    def nodes(self) -> list[Node]:
        """Return the scheduled nodes in order."""
        return [node_of(self._columns, node) for node in self._schedule.nodes]

    def live_series(self) -> list[tuple[int, int]]:
        """Return (node, elements alive once it is computed) along the schedule."""
        return self._schedule.live_series(release=not self.entry.backward)

    def describe(self) -> str:
        """Return the schedule as text: each node's spec line with how long its value lives, then totals."""
        schedule, columns = self._schedule, self._columns
        named = {index: name for name, index in columns.names.items()}
        verb = "releasable after" if self.entry.backward else "freed after"
        lines = []
        for node in schedule.nodes:
            spec = spec_line(
                node,
                columns.opcodes[node],
                list(columns.operands[node]),
                columns.shapes[node],
                named.get(node),
            )
            end = schedule.released_at(node)
            kept = "retained" if node in schedule.retained and node not in schedule.readable else "kept"
            lines.append(f"{spec:<52}  {kept if end is None else f'{verb} {end}'}")
        posture = "retain" if self.entry.backward else "forward"
        lines.append(
            f"plan: {posture}, {len(schedule.nodes)} of {len(columns)} nodes evaluated, "
            f"{len(schedule.readable)} readable, {self.entry.numerics.value}"
        )
        total = schedule.live_series(release=False)[-1][1]
        node, peak = max(schedule.live_series(release=True), key=lambda point: point[1])
        word = "release floor" if self.entry.backward else "peak"
        lines.append(f"live: {word} {peak} elements at {node}, retain-all {total}")
        return "\n".join(lines)

    # ---- runs
    def forward(self, parameters: Parameters, feeds: Feeds = None) -> Run:
        """Run the plan. Any number of threads may, with different parameters and feeds.

        Raises:
            ParametersError: a foreign table, or one with fewer slots than the plan needs.
            FeedError: a feed names no input of the prefix or does not fit it.
            DataError: the data broke a rule that shapes cannot express.
        """
        columns = self._columns
        check_parameters(self._slots, parameters, exact=False)
        tensors = bind_feeds(columns, feeds)
        if self._lowered is None:
            run = walk(columns, parameters, tensors, self._schedule.nodes)
            return Run(columns, self._slots, self._guarded(run._read), self._reverse(run._reverse))
        bound = Bound(self._lowered, parameters.buffer, tensors, arena=self._pool.take())
        return Run(columns, self._slots, self._guarded(bound.read), self._reverse(bound.cotangents))

    def _guarded(self, read: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
        readable, columns = self._schedule.readable, self._columns

        def guarded(node: int) -> Tensor:
            if node not in readable:
                raise UnreadableError(
                    f"{columns.label(node)} is not readable: the plan keeps its results alone; "
                    f"declare it with entry.observe([...])"
                )
            return read(node)

        return guarded

    def _reverse(self, reverse: Callable[[int], Any]) -> Callable[[int], Any]:
        if self.entry.backward:
            return reverse

        def refused(target: int) -> Any:
            raise UnreadableError(
                f"backward of {self._columns.label(target)}: this plan is forward-only; lower "
                f"entry(...).backward(), or record the gradients with tape.differentiate"
            )

        return refused

    def __repr__(self) -> str:
        return f"Plan({len(self)} of {len(self._columns)} nodes, {len(self.results)} results)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (Network(self._columns), self.entry)


def _lower(columns: Columns, slots: Slots, schedule: Schedule, release: bool, poison: bool) -> Lowered:
    """Lower the schedule: arena offsets from liveness, in place where an operand dies."""
    emitter = LeanEmitter(release, poison)
    operands: list[Any] = [None] * len(columns)
    checks = set(columns.checks)
    for node in schedule.nodes:
        opcode = columns.opcodes[node]
        if opcode.is_source:
            operands[node] = source(emitter, columns, slots, node)
            continue
        freed = [operands[i] for i in schedule.releases.get(node, ())]
        dead = [operand for operand in freed if operand.bank == ARENA]
        emitter.begin(node, opcode, dead)
        result = opcode.lower(emitter, *[operands[i] for i in columns.operands[node]])
        if node in schedule.readable and result.bank != ARENA and not _is_leaf_view(columns, node):
            # A result never aliases a feed or the parameters.
            copied = emitter.allocate(result.layout.shape, result.element)
            emitter.copy(result, copied)
            result = copied
        operands[node] = result
        if node in checks:
            check(emitter, node, result)
        emitter.end(result, dead)
    return Lowered(columns, slots, operands, emitter.finish())


def _is_leaf_view(columns: Columns, node: int) -> bool:
    """Whether a value that lies in a source is a view of a leaf, which nothing changes."""
    while columns.operands[node]:
        node = columns.operands[node][0]
    return isinstance(columns.opcodes[node], Leaf)
