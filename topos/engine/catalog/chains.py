"""Chains: elementwise operations, and reductions of rows among them, that one row of a program carries out.

Every node has a stage. Along an edge stages never fall, and they rise wherever an edge joins two units, so units
never wait for each other in a circle, whatever chains the nodes of one stage form.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from topos.graph.columns import Columns
from topos.kernels.chains import FULL, OVER, ROW
from topos.kernels.elements import MEMORY
from topos.ops import BroadcastAlong, LogSoftmax, LogSumExp, Opcode, SumAlong
from topos.ops.arithmetic import Elementwise
from topos.ops.chain import Step
from topos.ops.emit import Emitter, Operand, Operands
from topos.ops.reduction import Along
from topos.payload.shape import Shape

# Bytes of the longest row that a chain reduces.
LONGEST = 1 << 15

# Steps of the longest chain.
MOST = 64

# What a unit reads, by its node.
Reads = Callable[[int], tuple[int, ...]]

_FAMILIES: dict[type[Opcode], str] = {SumAlong: "row_sum", LogSoftmax: "log_softmax", LogSumExp: "logsumexp"}


@dataclass(eq=False)
class Chain:
    """Nodes that run together: `frame` is the shape of whole values, `steps` are in recording order."""

    frame: Shape
    steps: list[Step] = field(default_factory=list)
    reads: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    @property
    def root(self) -> int:
        """The last node."""
        return self.steps[-1].node

    @property
    def nodes(self) -> list[int]:
        """All of them."""
        return [step.node for step in self.steps]

    @property
    def has_rows(self) -> bool:
        """Whether rows are reduced in it, or values per row repeated."""
        return any(step.kind != FULL for step in self.steps)

    def lower(self, emitter: Emitter, columns: Columns, targets: Operands, *operands: Operand) -> dict[int, Operand]:
        """Append the rows and return the outputs: one row, or one per step where rows are too long."""
        values = dict(zip(self.reads, operands, strict=True))
        found = emitter.chain(self.steps, self.frame, values, self.outputs, targets)
        if found is None:
            emitter.keep()  # a later step may read what dies here
            for step in self.steps:
                given = [values[source] for source in columns.operands[step.node]]
                opcode = columns.opcodes[step.node]
                if isinstance(opcode, LogSoftmax):  # of a part of the whole, which may have fewer axes
                    opcode = LogSoftmax(self.frame.rank - 1)
                values[step.node] = opcode.lower(emitter, *given)
            found = {node: values[node] for node in self.outputs}
        return found


# A node's step, with the chains that it joins into one.
Joined = tuple[Step, list[Chain]]


def find(columns: Columns, nodes: Sequence[int], reads: Reads, grouped: Mapping[int, object]) -> dict[int, Chain]:
    """Return the chains among the nodes of a schedule, by node; `grouped` ones are taken."""
    stages: dict[int, int] = {}
    homes: dict[int, Chain] = {}
    readers: dict[tuple[int, int], Chain] = {}  # the chain of a stage that read a node last
    for node in nodes:
        operands = columns.operands[node]
        stage = max((stages[operand] for operand in reads(node)), default=-1)
        even = stage + stage % 2
        joined = None
        if operands and node not in grouped:
            near = [homes[o] for o in operands if stages[o] == even and o in homes]
            joined = _joined(columns, node, near, [readers.get((even, o)) for o in operands])
            if joined is None and near:
                even += 2
            if joined is None:
                joined = _started(columns, node)
        if joined is None:
            stages[node] = stage + 1 - stage % 2
            continue
        step, chains = joined
        home = chains[0]
        for other in chains[1:]:
            home.steps = sorted(home.steps + other.steps, key=lambda member: member.node)
            homes.update((member.node, home) for member in other.steps)
            readers.update(((even, o), home) for member in other.steps for o in member.sources)
        home.steps.append(step)
        homes[node], stages[node] = home, even
        readers.update(((even, o), home) for o in operands)
    return {node: home for node, home in homes.items() if len(home.steps) > 1}


def _joined(columns: Columns, node: int, near: list[Chain], beside: list[Chain | None]) -> Joined | None:
    """Return a node's step with the chains of its stage that it joins into one, those that it reads from first.

    It has to join all that it reads from, `near`; others that read what it reads, `beside`, where they fit.
    """
    chains = list(dict.fromkeys(near))
    total = sum(len(home.steps) for home in chains)
    for home in beside:
        if home is None or home in chains or total + len(home.steps) >= MOST:
            continue
        if home.frame == chains[0].frame if chains else step_of(columns, node, home.frame, True):
            chains.append(home)
            total += len(home.steps)
    if not chains or total >= MOST or any(home.frame != chains[0].frame for home in chains):
        return None
    step = step_of(columns, node, chains[0].frame, True)
    return None if step is None else (step, chains)


def _started(columns: Columns, node: int) -> Joined | None:
    """Return a node's step with a chain that it begins."""
    frame = columns.shapes[columns.operands[node][0]]
    # A single number starts no chain: what it is repeated over would have to wait for that chain.
    step = None if frame.volume == 1 else step_of(columns, node, frame, False)
    return None if step is None else (step, [Chain(frame)])


def step_of(columns: Columns, node: int, frame: Shape, joins: bool) -> Step | None:
    """Return what a node is over a frame; None where it does not fit. It may be a row's value where it `joins`."""
    opcode, operands = columns.opcodes[node], columns.operands[node]
    shape, given = columns.shapes[node], columns.shapes[operands[0]]
    if isinstance(opcode, Elementwise):
        if shape == frame:
            return Step(node, opcode.function, FULL, False, operands)
        return Step(node, opcode.function, ROW, True, operands) if joins and shape == frame[:-1] else None
    kernel = columns.element.kernel
    if kernel is None or frame.rank == 0 or frame[-1] * MEMORY[kernel].size > LONGEST:
        return None
    last = frame.rank - 1
    if isinstance(opcode, BroadcastAlong):
        fits = opcode.axis == last and shape == frame and given != frame
        return Step(node, "spread", OVER, False, operands) if joins and fits else None
    if isinstance(opcode, Along) and opcode.axis == last and given == frame:
        return Step(node, _FAMILIES[type(opcode)], OVER, shape != frame, operands)
    return None


def ordered(nodes: Sequence[int], chains: Mapping[int, Chain], reads: Reads) -> list[int]:
    """Return the units that are computed (a chain by its root), each after what it reads."""
    units: list[int] = []
    done: set[int] = set()
    for node in nodes:
        if node in chains and chains[node].root != node:
            continue
        waiting = [node]
        while waiting:
            unit = waiting[-1]
            before = [chains[r].root if r in chains else r for r in reads(unit)]
            missing = [] if unit in done else [other for other in before if other not in done]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if unit not in done:
                done.add(unit)
                units.append(unit)
    return units


def close(chains: Mapping[int, Chain], used: set[int]) -> None:
    """Settle what each chain reads and writes: a member is an output where it is used outside."""
    distinct = list(dict.fromkeys(chains.values()))
    for one in distinct:
        members = set(one.nodes)
        one.reads = tuple(dict.fromkeys(s for step in one.steps for s in step.sources if s not in members))
    used = used.union(*(one.reads for one in distinct))
    for one in distinct:
        one.outputs = tuple(node for node in one.nodes if node in used)
