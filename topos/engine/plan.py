"""`Plan`: an entry lowered. What is not declared is not computed, kept or materialised."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

from topos.backend.formula import Formula
from topos.engine.arena import LeanEmitter
from topos.engine.catalog.election import AT_HOME
from topos.engine.catalog.pattern import PatternMatch, candidates, elected
from topos.engine.catalog.units import Units
from topos.engine.entry import Entry
from topos.engine.feeds import Feeds, bind_feeds
from topos.engine.program import Lowered, check, source
from topos.engine.run import Run, Walked, check_parameters, finished
from topos.engine.schedule import Schedule
from topos.graph import Columns, Network, Node, Parameters, Slots, SymbolLike
from topos.graph.columns import node_of, spec_lines
from topos.graph.symbol import Counted
from topos.ops import Leaf
from topos.ops.arithmetic import Elementwise
from topos.ops.emit import ARENA, Operand, Operands
from topos.payload import Tensor


class Plan(Counted):
    """A compiled reading of a recorded prefix. It outlives a reopening of its network.

    Arguments:
        network: the spec; its nodes so far are the plan's.
        entry: what to compute and keep.
        poison: fill freed memory with NaN (a debugging aid).
        fuse: carry out the groups of the catalog as one (for comparisons alone: no bit depends on it).

    Attributes:
        results: the readable values in declared order, each once.
        can_backward: whether runs answer `Run.backward`.
        numerics: the posture of runs.

    >>> network, (x, y) = Tape.record(lambda tape: (lambda x: (x, x * x))(tape.input(3.0)))
    >>> plan = network.entry(y).lower()
    >>> print(plan.forward(network.parameters(), {x: 4.0}).of(y))
    16.0
    """

    lowering: ClassVar[type[Lowered]] = Lowered
    formulas: ClassVar[Collection[Formula]] = AT_HOME

    step: Callable[..., tuple[Run, Parameters]]
    steps: Callable[..., tuple[Tensor, Parameters]]
    profile: Callable[..., Any]
    emit_stablehlo: Callable[..., str]
    on_xla: Callable[..., Any]
    on_iree: Callable[..., Any]

    def __init__(self, network: Network, entry: Entry, poison: bool = False, fuse: bool = True) -> None:
        self.entry, self.results = entry, entry.results
        self.can_backward, self.numerics = entry.backward, entry.numerics
        columns = network.columns
        results = [columns.index(symbol, "entry") for symbol in self.results]
        self.columns: Columns = columns.fork()
        self.slots: Slots = network.slots
        self.schedule = Schedule(self.columns, results, entry.backward)
        self.trainings: dict[Any, Any] = {}
        self.latest: Any = None
        self.derivative: Any = None
        fused = self.formulas if fuse and columns.element.kernel is not None else ()
        self.units = Units(self.columns, self.schedule, fused)
        self.lowered: Lowered | None = None
        if columns.element.kernel is not None:
            emitter = self.emitter(not entry.backward, poison)
            operands = emit_schedule(emitter, self.slots, self.units)
            kept = self.schedule.kept
            self.lowered = self.lowering(self.columns, self.slots, operands, emitter.finish(), kept=kept)

    def emitter(self, release: bool, poison: bool = False) -> LeanEmitter:
        """Return what appends the rows of this plan, or of a training step of it."""
        return LeanEmitter(release, poison)

    # ---- readers
    def __len__(self) -> int:
        return len(self.schedule.nodes)

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena of one run (0 for a user's number type)."""
        return 0 if self.lowered is None else self.lowered.program.size

    def node(self, symbol: SymbolLike) -> Node:
        """Return a snapshot of a node of the prefix."""
        return node_of(self.columns, self.columns.index(symbol, "node"))

    def nodes(self) -> list[Node]:
        """Return the scheduled nodes in order."""
        return [node_of(self.columns, node) for node in self.schedule.nodes]

    def live_series(self) -> list[tuple[int, int]]:
        """Return (node, elements alive once it is computed) along the schedule; a group counts at its root."""
        return self.units.live_series(release=not self.entry.backward)

    def candidates(self) -> list[PatternMatch]:
        """Return the groups of the catalog that a consumer of the plan may carry out as one, in order of priority.

        It elects none of which a node outside reads an interior.
        """
        return candidates(self.columns, self.schedule, self.slots.family)

    def patterns(self) -> list[PatternMatch]:
        """Return the groups that runs of this plan carry out as one; none in backward posture."""
        return elected(self.units, self.slots.family)

    def describe(self) -> str:
        """Return the schedule as text: each node's spec line with how long its value lives, then totals."""
        schedule, columns, units = self.schedule, self.columns, self.units
        made = {node for unit in units.nodes for node in units.made(unit)}
        verb = "releasable after" if self.entry.backward else "freed after"
        lines = []
        for node, spec in zip(schedule.nodes, spec_lines(columns, schedule.nodes), strict=True):
            end = units.last.get(node)
            kept = "retained" if node in schedule.retained and node not in schedule.readable else "kept"
            if node not in made:
                kept = f"same as {units.same[node]}" if node in units.same else "fused"
            lines.append(f"{spec:<52}  {kept if end is None else f'{verb} {end}'}")
        posture = "retain" if self.entry.backward else "forward"
        evaluated = f"{len(schedule.nodes)} of {len(columns)} nodes evaluated"
        lines.append(f"plan: {posture}, {evaluated}, {len(schedule.readable)} readable, {self.numerics.value}")
        matches = self.patterns()
        if matches:
            replaced = sum(len(match.nodes) for match in matches)
            groups = f"{len(matches)} group{'s' * (len(matches) != 1)}"
            lines.append(f"fused: {groups} in place of {replaced} nodes")
        total = units.live_series(release=False)[-1][1]
        node, peak = max(units.live_series(release=True), key=lambda point: point[1])
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
        check_parameters(self.slots, parameters, exact=False)
        lowered = self.lowered
        if lowered is None:
            tensors = bind_feeds(self.columns, feeds)
            return Run(Walked(parameters, self.columns, tensors, self.schedule.nodes), self.schedule)
        return finished(lowered, lowered.start(feeds), parameters, self.schedule)

    def __repr__(self) -> str:
        return f"Plan({len(self)} of {len(self.columns)} nodes, {len(self.results)} results)"

    def __deepcopy__(self, memo: object) -> Plan:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (Network(self.columns), self.entry)


def emit_schedule(
    emitter: LeanEmitter, slots: Slots, units: Units, given: Operands | None = None, targets: Operands | None = None
) -> list[Operand | None]:
    """Append the rows of a schedule: arena offsets from liveness, in place where an operand dies.

    `given` says where some sources lie already, and `targets` where some results may be written.
    """
    columns, schedule = units.columns, units.schedule
    operands: list[Any] = [None] * len(columns)
    checks = set(columns.checks)
    for node in units.nodes:
        opcode = columns.opcodes[node]
        if given is not None and node in given:
            operands[node] = given[node]
            continue
        if opcode.is_source:
            operands[node] = source(emitter, columns, slots, node)
            continue
        freed = [operands[i] for i in units.releases.get(node, ())]
        # A source is asked for no bank: that would make its values needed where its indices are.
        dead = [operand for operand in freed if operand.source is None and operand.bank == ARENA]
        chain = units.chains.get(node)
        emitter.begin(node, dead if chain or isinstance(opcode, Elementwise) else [])
        reads = [operands[i] for i in units.reads(node)]
        if node in units.same:
            results = {node: reads[0]}
        elif chain is not None:
            results = chain.lower(emitter, columns, targets or {}, *reads)
        else:
            lower: Any = units.groups[node].lower if node in units.groups else opcode.lower
            results = {node: lower(emitter, *reads)}
        for made, result in results.items():
            is_placed = targets is not None and result is targets.get(made)
            operands[made] = result if is_placed else _own(emitter, columns, schedule, made, result)
            if made in checks:
                check(emitter, made, result)
        emitter.end([operands[made] for made in results], dead)
    return operands


def _own(emitter: LeanEmitter, columns: Columns, schedule: Schedule, node: int, result: Operand) -> Operand:
    """Return a result, copied where it is read after the run and would alias a feed or the parameters."""
    if node not in schedule.readable or result.bank == ARENA or _is_leaf_view(columns, node):
        return result
    copied = emitter.allocate(result.layout.shape, result.element)
    emitter.copy(result, copied)
    return copied


def _is_leaf_view(columns: Columns, node: int) -> bool:
    """Whether a value that lies in a source is a view of a leaf, which nothing changes."""
    while columns.operands[node]:
        node = columns.operands[node][0]
    return isinstance(columns.opcodes[node], Leaf)
