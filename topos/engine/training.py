"""A training step as one program: forward, recorded gradients and update, and many of them in one entry."""

import functools
from typing import Any, TypeAlias

import numpy as np

from topos.engine.arena import LeanEmitter
from topos.engine.catalog.units import Units
from topos.engine.feeds import Fed, Feeds, bound_feed, feed_tensor, input_node, pairs, selection_of
from topos.engine.frames import Block, Frame, Pool
from topos.engine.plan import Plan, emit_schedule
from topos.engine.program import data_error
from topos.engine.run import Run, check_parameters, finished
from topos.engine.schedule import Schedule
from topos.errors import ElementError, FeedError, ShapeError, UnreadableError, UsageError
from topos.graph import Adjoints, Columns, Parameters, Slots, Tape, Value
from topos.ops.emit import FIRST, TABLE, Operand, memory_of
from topos.payload import Layout, Shape, Tensor

# Keys of what a step binds beside inputs; entry i of the state is read at STATE - 2i, written at STATE - 2i - 1.
RATE, LOSSES, TABLE_AFTER, STATE = -2, -3, -4, -10

# The recorded derivative that a step follows; None is the only one that a plan computes.
Followed: TypeAlias = Adjoints | None

# What an optimizer remembers: tables, and single numbers.
State: TypeAlias = tuple[Any, ...]

# Programs of steps that a plan keeps: one per derivative and optimizer.
KEPT = 8

SCALAR = Shape.scalar()


def adjoints_of(plan: Plan, given: Followed) -> Adjoints:
    """Return the recorded derivative that a step follows: the given one, or the only one the plan computes.

    Raises:
        UnreadableError: its roots are not all results of the plan, it is no derivative of a rank-0 loss by
            parameters, or none was given and the plan computes several.
    """
    results, slots, columns = set(plan.results), plan.slots, plan.columns

    def fits(adjoints: Adjoints) -> bool:
        by_parameters = all(wrt.index in slots.by_node for wrt in adjoints.wrt)
        is_loss = columns.shapes[columns.index(adjoints.target, "adjoints")].rank == 0
        return bool(adjoints.pairs) and by_parameters and is_loss and results.issuperset(adjoints.roots)

    found = [given] if given is not None else list({a.pairs: a for a in columns.adjoints if fits(a)}.values())
    if len(found) > 1:
        rule = f"this plan computes {len(found)} recorded derivatives by parameters"
        raise UnreadableError(f"{rule}: say which one to follow, plan.step(..., adjoints=adjoints)")
    if not found or not fits(found[0]):
        rule = "this plan computes no recorded gradients of a rank-0 loss by parameters"
        remedy = "adjoints = tape.differentiate(loss, parameters) and lower network.entry(adjoints.roots)"
        raise UnreadableError(f"{rule}: record them with {remedy}")
    return found[0]


class Training:
    """The program of a plan's step under one optimizer: forward, gradients, and the update.

    The optimizer's formula is recorded once over the flat table, and lowered like any other spec. It reads
    tables and writes others: what it was given never changes.
    """

    def __init__(self, plan: Plan, adjoints: Adjoints, asked: Followed, optimizer: Any, state: State) -> None:
        columns, slots = plan.columns, plan.slots
        self.plan, self.adjoints, self.asked, self.kind = plan, adjoints, asked, type(optimizer)
        values = {name: value for name, value in vars(optimizer).items() if name != "state"}
        fixed = all(isinstance(value, (int, float, str, Tensor, np.generic)) for value in values.values())
        self._values = values if fixed else None
        emitter = plan.emitter(True)
        operands: list[Any] = emit_schedule(emitter, slots, plan.units)
        target = self.adjoints.target.index
        emitter.begin(target, [])
        gradient = self._flat_gradient(emitter, operands)
        emitter.end([gradient], [])
        loss = operands[target]
        emitter.copy(loss, emitter.input(LOSSES, loss.element, Layout.dense(loss.layout.shape)))
        _emit_update(plan, emitter, optimizer, gradient, state)
        singles = RATE, LOSSES, *(STATE - 2 * i for i, entry in enumerate(state) if not isinstance(entry, Parameters))
        self.lowered = plan.lowering(columns, slots, operands, emitter.finish(), singles, kept=plan.schedule.kept)
        raw, positions, program = slots.element.raw, self.lowered.positions, self.lowered.program

        def bank(key: int) -> int:
            return positions[key][0][0] if key in positions else -1

        self.table, self.losses, self.rate = bank(TABLE_AFTER), bank(LOSSES), bank(RATE)
        # Per entry of the state: where it is read, where it is written, its offset in the block, its layout there.
        self.states: list[tuple[int, int, int, Layout]] = []
        offset = 0
        for i, entry in enumerate(state):
            shape = Shape((slots.total,)) if isinstance(entry, Parameters) else SCALAR
            layout = Layout(shape, (1,) * shape.rank, offset)
            self.states.append((bank(STATE - 2 * i), bank(STATE - 2 * i - 1), offset, layout))
            offset += shape.volume
        self.tables = Pool(functools.partial(Block, program, slots.total, raw))
        self.tensors = Pool(functools.partial(Block, program, offset, raw))

    def serves(self, optimizer: Any, asked: Followed) -> bool:
        """Whether an optimizer has the very class and numbers that this was made for."""
        if type(optimizer) is not self.kind or asked is not self.asked or self._values is None:
            return False
        given = optimizer.__dict__
        for name, value in self._values.items():
            if given.get(name) is not value:
                return False
        return len(given) == len(self._values) + 1

    def _flat_gradient(self, emitter: LeanEmitter, operands: list[Any]) -> Operand:
        """Gather the gradients into one dense vector, slot by slot; slots without one are zero."""
        slots = self.plan.slots
        shape = Shape((slots.total,))
        whole = {wrt.index for wrt in self.adjoints.wrt}.issuperset(slots.nodes)
        make = emitter.allocate if whole else emitter.zeros
        flat = make(shape, slots.element.name)
        for wrt, gradient in self.adjoints.pairs:
            emitter.copy(operands[gradient.index], flat.view(slots.layouts[slots.by_node[wrt.index]]))
        return flat

    def step(self, parameters: Parameters, feeds: Feeds, rate: Any, state: State) -> tuple[Run, Parameters, State]:
        """Run one step and return (the run, parameters, state)."""
        plan, lowered = self.plan, self.lowered
        frame = lowered.start(feeds)
        if type(rate) is float and plan.slots.element.raw.char in "fd":
            frame.rooms[RATE].data[()] = rate  # rounds to infinity without a warning
        else:
            frame.rooms[RATE][...] = _rates(plan, rate, 1)[0]
        table = self.tables.take()
        frame.words[self.table] = table.address
        block = None
        if state:
            block = self.tensors.take()
            self._bind_state(frame, state, block)
        run = finished(lowered, frame, parameters, plan.schedule)
        after = () if block is None else self._state(state, block)
        return run, self._table(parameters, table.memory, table.address), after

    def _bind_state(self, frame: Frame, state: State, block: Block) -> None:
        """Let a step read the state where it lies, and write the next one into a block."""
        words, item = frame.words, block.memory.itemsize
        for i, (read, written, offset, _) in enumerate(self.states):
            if read >= 0:
                self.lowered.bring(frame, read, state[i], STATE - 2 * i)
            words[written] = block.address + offset * item

    def _table(self, like: Parameters, memory: Any, address: int) -> Parameters:
        """Return a table that was written; slots newer than the plan keep their numbers."""
        slots = like.slots
        if slots.total > len(memory):
            return Parameters(slots, np.concatenate([memory.view(like.buffer.dtype), like.buffer[len(memory) :]]))
        return self.lowered.tables(slots, memory, address)

    def _state(self, state: State, block: Block) -> State:
        """Return the state that lies in a block."""
        memory, item = block.memory, block.memory.itemsize
        after: list[Any] = []
        for entry, (_, _, offset, layout) in zip(state, self.states, strict=True):
            if isinstance(entry, Parameters):
                part = memory[offset : offset + layout.shape[0]]
                after.append(self._table(entry, part, block.address + offset * item))
            else:
                after.append(self.lowered.singles.of_buffer(entry.element, memory, layout))
        return tuple(after)

    def run(
        self, parameters: Parameters, feeds: Fed, rates: Any, state: State, steps: int
    ) -> tuple[Any, Parameters, State]:
        """Run `steps` steps and return (losses, parameters, state).

        Two tables and two states take turns: a step reads one and writes the other.

        Raises:
            DataError: the data of a step broke a rule. Nothing has changed then.
        """
        lowered, item = self.lowered, self.plan.slots.element.raw.itemsize
        frame = lowered.pool.take()
        frame.fed = 0
        tables, blocks = ([pool.take(), pool.take()] for pool in (self.tables, self.tensors))
        for node in lowered.inputs:
            if node not in feeds:
                lowered.place(frame, node, lowered.columns.payloads[node])
        if state:
            self._bind_state(frame, state, blocks[0])
        if rates.size == 1:
            frame.rooms[RATE][...] = rates[0]
        at_losses, losses = lowered.program.placed(np.empty(steps, rates.dtype))
        count = np.arange(steps)
        lowered.bring(frame, TABLE, parameters)
        banks = np.tile(frame.words[: FIRST + len(lowered.program.sources)], (steps, 1))

        def alternate(read: int, written: int, places: list[int]) -> None:
            banks[0::2, written], banks[1::2, written] = places
            if read >= 0:
                banks[1:, read] = banks[:-1, written]

        alternate(TABLE, self.table, [table.address for table in tables])
        for read, written, offset, _ in self.states:
            alternate(read, written, [block.address + offset * item for block in blocks])
        banks[:, self.losses] = at_losses + count * item
        if rates.size > 1 and self.rate >= 0:
            at_rates, held = lowered.program.placed(rates)
            frame.held.append(held)
            banks[:, self.rate] = at_rates + count * item
        for node, rows in feeds.items():
            for position, form in lowered.positions.get(node, ()):
                array = _laid(lowered.columns, node, rows, form)
                at_array, held = lowered.program.placed(array)
                frame.held.append(held)
                banks[:, position] = at_array + count * (array.nbytes // steps)
        try:
            lowered.walk(frame, banks)
        finally:
            frame.held.clear()
        last = (steps - 1) % 2
        table = tables[last]
        stepped = self._table(parameters, table.memory, table.address)
        return losses.view(rates.dtype), stepped, self._state(state, blocks[last])


def _emit_update(plan: Plan, emitter: LeanEmitter, optimizer: Any, gradient: Operand, state: State) -> None:
    """Record how the state advances and the optimizer's formula over the flat table, and lower both."""
    slots = plan.slots
    kernel, shape = slots.element.name, Shape((slots.total,))
    dense, spread, single = Layout.dense(shape), Layout(shape, (0,)), Layout.dense(SCALAR)
    tape = Tape(slots.element)
    given: dict[int, Operand] = {}

    def input_at(operand: Operand) -> Value:
        value = tape.input(Tensor.counted(operand.layout.shape, 0, element=slots.element))
        given[value.index] = operand
        return value

    parameter = input_at(Operand(TABLE, 0, kernel, dense))
    step = input_at(gradient)
    rate = input_at(emitter.input(RATE, kernel, spread))
    layouts = [dense if isinstance(entry, Parameters) else single for entry in state]
    entries = [input_at(emitter.input(STATE - 2 * i, kernel, layout)) for i, layout in enumerate(layouts)]
    before = tuple(e if isinstance(e, Parameters) else value for e, value in zip(state, entries, strict=True))
    advanced = optimizer.advance(before)
    for i, (old, new) in enumerate(zip(before, advanced, strict=True)):
        if not isinstance(old, Parameters):
            entries[i] = old.fixed(new)
        elif new is not old:
            call = f"{type(optimizer).__name__}.advance changes entry {i} of its state"
            raise UsageError(f"{call}: only rank-0 entries advance before the formula")
    spreads = [e if e.shape == shape else e.broadcast(shape) for e in entries]
    decays = tape.leaf(_decay_mask(optimizer, slots))
    result, after = optimizer.formula(parameter, step, rate, tuple(spreads), decays)
    written = [(result, emitter.input(TABLE_AFTER, kernel, dense))]
    for i, layout in enumerate(layouts):
        new = after[i] if layout is dense else entries[i]
        written.append((new, emitter.input(STATE - 2 * i - 1, kernel, layout)))
    results = [new.index for new, _ in written]
    targets = {new.index: target for new, target in written}
    units = Units(tape.columns, Schedule(tape.columns, results, False), formulas=plan.formulas)
    operands: list[Any] = emit_schedule(emitter, slots, units, given, targets)
    for new, target in written:
        if operands[new.index] is not target:
            emitter.copy(operands[new.index], target)


def _decay_mask(optimizer: Any, slots: Slots) -> Tensor:
    """Return 1 for every number of a parameter that decays, else 0."""
    zeros = Parameters(slots, np.zeros(slots.total, slots.element.raw))
    pairs = zip(zeros.symbols(), zeros.payloads(), strict=True)
    masks = [payload.constant_like(int(optimizer.decays(symbol, payload))) for symbol, payload in pairs]
    return Tensor(Parameters.of_tensors(slots, masks).buffer.view(slots.element.dtype), element=slots.element)


def _training(plan: Plan, adjoints: Followed, optimizer: Any, state: State) -> Training:
    """Return the program of a plan's step along a derivative under an optimizer's formula: the latest are kept."""
    latest: Training | None = plan.latest
    if latest is not None and latest.serves(optimizer, adjoints):
        return latest
    if adjoints is None and plan.derivative is None:  # looked for once, not in every step: a plan's spec is frozen
        plan.derivative = adjoints_of(plan, None)
    chosen = plan.derivative if adjoints is None else adjoints_of(plan, adjoints)
    key = (chosen.target, chosen.pairs, optimizer.signature())
    found: Training | None = plan.trainings.get(key)
    if found is None:
        found = Training(plan, chosen, adjoints, optimizer, state)
        while len(plan.trainings) >= KEPT:
            plan.trainings.pop(next(iter(plan.trainings)), None)
        plan.trainings[key] = found
    plan.latest = found
    return found


def _sequence(columns: Columns, node: int, data: Any) -> Tensor:
    """Return the feeds of all steps in one tensor: dense numbers, or selections one after the other.

    They are given as an array with a leading axis of steps (of ids for a selection), or as a list of selections.

    Raises:
        FeedError: it does not fit the input.
    """
    expected = columns.shapes[node]
    listed = isinstance(data, (list, tuple)) and len(data) > 0
    if listed and all(isinstance(d, Tensor) and d.is_selection for d in data):
        ids: Any = np.concatenate([bound_feed(columns, node, d).indices() for d in data])
        return Tensor.selection(ids, expected[1], element=columns.element)
    rows = selection_of(columns, node, data, sequence=True)
    if rows is None:
        rows = feed_tensor(columns, node, data)
        if rows.shape.rank == 0 or rows.shape[1:] != expected:
            wanted = ", ".join(["steps", *map(str, expected)])
            raise FeedError(f"{columns.label(node)}: a sequence of feeds has shape [{wanted}], not {rows.shape}")
    return rows


def _laid(columns: Columns, node: int, rows: Tensor, form: str) -> Any:
    """Return the feeds of all steps in a form, contiguous, step after step.

    Raises:
        DataError: indices are asked for, and a row is not one-hot.
    """
    if form == "indices" and not rows.is_selection:
        vocabulary = rows.shape[-1]
        rows = rows.reshape([rows.shape.volume // vocabulary, vocabulary])
    found = memory_of(rows, form, dense=True)
    if found is None:
        hot = next(r for r in range(rows.shape[0]) if rows.narrow(0, r, 1).indices() is None)
        count = columns.shapes[node][0]
        raise data_error(columns, node, hot % count, hot // count)
    return found


def _sequences(plan: Plan, feeds: Feeds) -> tuple[Fed, int]:
    """Return the fed sequences by node and their common length.

    Raises:
        FeedError: a feed names no input, has no leading axis of steps, or the lengths differ.
    """
    columns = plan.columns
    sequences: Fed = {}
    steps = -1
    for given, data in pairs(feeds):
        node = input_node(columns, given)
        rows = sequences[node] = _sequence(columns, node, data)
        count = rows.shape.volume // columns.shapes[node].volume
        if steps not in (-1, count):
            raise FeedError(f"{columns.label(node)} is fed {count} steps, another input {steps}")
        steps = count
    if steps < 0:
        raise FeedError("steps: feed at least one input with a leading axis of steps")
    return sequences, steps


def _rates(plan: Plan, learning_rate: Any, steps: int) -> Any:
    """Return one rate, or one per step, in the element's storage.

    Raises:
        ShapeError: neither one value nor one per step.
    """
    element = plan.slots.element
    tensor = learning_rate if isinstance(learning_rate, Tensor) else Tensor(learning_rate, element=element)
    if tensor.shape.volume not in (1, steps):
        raise ShapeError(f"learning_rate of shape {tensor.shape}: give one value, or one for each of {steps} steps")
    return tensor.convert(element).dense_buffer()


def _state(plan: Plan, parameters: Parameters, optimizer: Any) -> State:
    """Check parameters and state, and return the state, made where there is none.

    Raises:
        ParametersError: a foreign table, or one with fewer slots than the plan needs.
        ElementError: a user's number type; or see `Optimizer.remembered`.
        UsageError: there is no optimizer.
    """
    slots = plan.slots
    check_parameters(slots, parameters, exact=False)
    if plan.lowered is None:
        remedy = "use plan.forward, run.recorded_gradients and optimizer.step"
        raise ElementError(f"plan.step runs native elements, not {slots.element.name}: {remedy}")
    if isinstance(optimizer, type) or not hasattr(optimizer, "remembered"):
        raise UsageError(f"plan.step: an optimizer is needed, such as topos.Sgd(), not {optimizer!r}")
    state: State = optimizer.remembered(parameters)
    for entry in state:
        if isinstance(entry, Parameters):
            check_parameters(slots, entry, exact=False)
    return state


def step(
    self: Plan, parameters: Parameters, feeds: Feeds, optimizer: Any, learning_rate: Any, adjoints: Followed = None
) -> tuple[Run, Parameters]:
    """Run forward, recorded gradients and update in one native entry; the optimizer's state advances.

    `adjoints` says which recorded derivative to follow, where the plan computes several (clipped gradients, say).

    Raises:
        UnreadableError: the plan computes no recorded gradients by parameters, or several.
        ParametersError, FeedError, ShapeError, DataError: as `Plan.forward`; nothing has changed then.
    """
    state = _state(self, parameters, optimizer)
    training = _training(self, adjoints, optimizer, state)
    run, stepped, optimizer.state = training.step(parameters, feeds, learning_rate, state)
    return run, stepped


def steps(
    self: Plan, parameters: Parameters, feeds: Feeds, optimizer: Any, learning_rate: Any, adjoints: Followed = None
) -> tuple[Tensor, Parameters]:
    """Run a step per entry of a sequence of feeds, natively, and return (losses, parameters).

    There is one native entry for some hundred steps. Ctrl-C between two of them raises KeyboardInterrupt;
    nothing has changed then.

    Arguments:
        self: the plan.
        parameters: where to start.
        feeds: per input, an array with a leading axis of steps (integer ids too), or a list of selections;
            other inputs keep their payload.
        optimizer: its state advances by as many steps.
        learning_rate: one value, or one per step.
        adjoints: which recorded derivative to follow, where the plan computes several.

    Raises:
        UnreadableError, ParametersError: as `Plan.step`.
        FeedError: a feed has no leading axis of steps, or the lengths differ.
        ShapeError: there are neither one nor as many learning rates.
        DataError: as `Plan.forward`; the message names the step.
    """
    state = _state(self, parameters, optimizer)
    sequences, count = _sequences(self, feeds)
    rates = _rates(self, learning_rate, count)
    training = _training(self, adjoints, optimizer, state)
    losses, stepped, optimizer.state = training.run(parameters, sequences, rates, state, count)
    return Tensor.of_buffer(self.slots.element, losses, Layout.dense(Shape((count,)))), stepped


Plan.step = step
Plan.steps = steps
