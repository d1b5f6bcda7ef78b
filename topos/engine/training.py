"""A training step as one program: forward, recorded gradients and update, and many of them in one entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from topos.engine.arena import ArenaPool, LeanEmitter
from topos.engine.plan import Plan, emit_schedule
from topos.engine.program import Bound, Lowered, data_error
from topos.engine.run import Feeds, Run, bind_feeds, check_parameters, feed_tensor, input_node
from topos.engine.schedule import Schedule
from topos.errors import ElementError, FeedError, ShapeError, UnreadableError
from topos.graph.adjoints import Adjoints
from topos.graph.parameters import Parameters, Slots
from topos.graph.symbol import Symbol
from topos.graph.tape import Tape
from topos.graph.trace import Trace
from topos.ops.emit import TABLE, Operand
from topos.payload.layout import Layout
from topos.payload.shape import Shape
from topos.payload.tensor import Tensor

RATE, LOSSES, STATE = -2, -3, -4
"""Keys of what a step binds beside inputs: learning rate, losses, and state entries from -4 down."""

KEPT = 8
"""Programs of steps that a plan keeps: one per derivative and optimizer."""

CHUNK = 256
"""Steps per native entry of a sequence: between entries Python looks for Ctrl-C."""


def adjoints_of(plan: Plan, given: Adjoints | None) -> Adjoints:
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
        raise UnreadableError(
            f"this plan computes {len(found)} recorded derivatives by parameters: say which one to follow, "
            f"plan.step(..., adjoints=adjoints)"
        )
    if not found or not fits(found[0]):
        raise UnreadableError(
            "this plan computes no recorded gradients of a rank-0 loss by parameters: record them with "
            "adjoints = tape.differentiate(loss, parameters) and lower network.entry(adjoints.roots)"
        )
    return found[0]


class Training:
    """The program of a plan's step under one optimizer: forward, gradients, and the update in place.

    The optimizer's formula is recorded once over the flat table, and lowered like any other spec. The tables
    that it works on are copies of the caller's, which never change.
    """

    __slots__ = ("adjoints", "layouts", "lowered", "plan", "pool")

    def __init__(self, plan: Plan, adjoints: Adjoints, optimizer: Any, state: tuple[Any, ...]) -> None:
        columns, slots = plan.columns, plan.slots
        self.plan, self.adjoints = plan, adjoints
        emitter = LeanEmitter(release=True)
        operands: list[Any] = emit_schedule(emitter, columns, slots, plan.schedule)
        target = self.adjoints.target.index
        emitter.begin(target, None, [])
        gradient = self._flat_gradient(emitter, operands)
        emitter.end(gradient, [])
        loss = operands[target]  # may be a parameter: read before the update
        emitter.copy(loss, emitter.input(LOSSES, loss.element, Layout.dense(loss.layout.shape)))
        _emit_update(emitter, optimizer, slots, gradient, state)
        self.lowered = Lowered(columns, slots, operands, emitter.finish())
        self.pool = ArenaPool(self.lowered.program.size)
        self.layouts = {node: Layout.dense(columns.shapes[node]) for node in columns.inputs}

    def _flat_gradient(self, emitter: LeanEmitter, operands: list[Any]) -> Operand:
        """Gather the gradients into one dense vector, slot by slot; slots without one are zero."""
        slots = self.plan.slots
        assert slots.element.kernel is not None
        shape = Shape((slots.total,))
        whole = {wrt.index for wrt in self.adjoints.wrt}.issuperset(slots.nodes)
        make = emitter.allocate if whole else emitter.zeros
        flat = make(shape, slots.element.kernel)
        for wrt, gradient in self.adjoints.pairs:
            emitter.copy(operands[gradient.index], flat.view(slots.layouts[slots.by_node[wrt.index]]))
        return flat

    def run(
        self, parameters: Parameters, feeds: Mapping[int, Any], rate: Any, state: tuple[Any, ...], steps: int
    ) -> tuple[Run, Any, Parameters, tuple[Any, ...]]:
        """Run `steps` steps and return (the last run, losses, parameters, state).

        Arguments:
            parameters: where to start.
            feeds: per input node, an array of the element's storage with a leading axis of steps.
            rate: one learning rate, or one per step.
            state: the optimizer's, advanced to the first step.
            steps: how many.

        Raises:
            DataError: the data of a step broke a rule. Nothing has changed then.
        """
        plan, lowered, slots = self.plan, self.lowered, self.plan.slots
        table = np.array(parameters.buffer)
        memory = [np.array(e.buffer if isinstance(e, Parameters) else e.dense_buffer()) for e in state]
        losses = np.empty(steps, slots.element.raw)
        count: Any = 0 if steps == 1 else np.arange(steps)
        item, banks = losses.itemsize, lowered.banks()
        banks = banks.reshape(1, -1) if steps == 1 else np.tile(banks, (steps, 1))
        banks[:, TABLE] = table.ctypes.data
        tensors = {
            node: Tensor.of_buffer(slots.element, a[-1].reshape(-1), self.layouts[node])
            for node, a in feeds.items()
        }
        bound = Bound(lowered, parameters.buffer, tensors, self.pool.take())
        for position, key, form in lowered.varying:
            if key == RATE:
                banks[:, position] = rate.ctypes.data + (count * item if rate.size > 1 else 0)
            elif key == LOSSES:
                banks[:, position] = losses.ctypes.data + count * item
            elif key <= STATE:
                banks[:, position] = memory[STATE - key].ctypes.data
            elif key in feeds and form == "values":
                array = feeds[key]
                banks[:, position] = array.ctypes.data + count * (array.nbytes // steps)
            elif key in feeds:
                shape = plan.columns.shapes[key]
                for step_, row in enumerate(feeds[key]):
                    tensor = Tensor.of_buffer(slots.element, row, Layout.dense(shape))
                    banks[step_, position], held = lowered.address(tensor, key, form)
                    bound.held.append(held)
            else:
                banks[:, position], held = lowered.address(bound.input(key), key, form)
                bound.held.append(held)
        for first in range(0, steps, CHUNK):
            _, error = lowered.program.run(banks[first : first + CHUNK], bound.arena)
            if error is not None:
                raise data_error(lowered.columns, *error)
        after = tuple(
            Parameters(entry.slots, block) if isinstance(entry, Parameters) else entry
            for entry, block in zip(state, memory, strict=True)
        )
        return plan.run_of(bound), losses, Parameters(parameters.slots, table), after


def _emit_update(
    emitter: LeanEmitter, optimizer: Any, slots: Slots, gradient: Operand, state: tuple[Any, ...]
) -> None:
    """Record the optimizer's formula over the flat table, lower it, and write the results back in place."""
    kernel, shape = slots.element.kernel, Shape((slots.total,))
    assert kernel is not None
    dense, spread = Layout.dense(shape), Layout(shape, (0,))
    tape = Tape(slots.element)
    given: dict[int, Operand] = {}

    def input_at(operand: Operand) -> Trace:
        value = tape.input(Tensor.counted(shape, 0, element=slots.element))
        given[value.index] = operand
        return Trace(value)

    parameter = input_at(Operand(TABLE, 0, kernel, dense))
    step = input_at(gradient)
    rate = input_at(emitter.input(RATE, kernel, spread))
    entries = [
        input_at(emitter.input(STATE - i, kernel, dense if isinstance(entry, Parameters) else spread))
        for i, entry in enumerate(state)
    ]
    decays = Trace(tape.leaf(_decay_mask(optimizer, slots)))
    result, after = optimizer.formula(parameter, step, rate, tuple(entries), decays)
    written = [(result, parameter)]
    written += [(a, e) for a, e, s in zip(after, entries, state, strict=True) if isinstance(s, Parameters)]
    results = [new.value.index for new, _ in written]
    operands: list[Any] = emit_schedule(
        emitter, tape.columns, slots, Schedule(tape.columns, results, False), given
    )
    moves = [
        (operands[new.value.index], given[old.value.index]) for new, old in written if new.value != old.value
    ]
    for i, (source, _) in enumerate(moves):
        if any(source is given[old.value.index] for _, old in written):  # is itself written to: save it first
            saved = emitter.allocate(shape, kernel)
            emitter.copy(source, saved)
            moves[i] = (saved, moves[i][1])
    for source, target in moves:
        emitter.copy(source, target)


def _decay_mask(optimizer: Any, slots: Slots) -> Tensor:
    """Return 1 for every number of a parameter that decays, else 0."""
    flags = np.zeros(slots.total, np.float32)
    for node, layout in zip(slots.nodes, slots.layouts, strict=True):
        like = Tensor.counted(layout.shape, 0, element=slots.element)
        if optimizer.decays(Symbol(slots.family, node), like):
            flags[layout.offset : layout.offset + layout.shape.volume] = 1
    return Tensor(flags, element=slots.element)


def _training(plan: Plan, adjoints: Adjoints | None, optimizer: Any, state: tuple[Any, ...]) -> Training:
    """Return the program of a plan's step along a derivative under an optimizer's formula: the latest are kept."""
    if adjoints is None:
        # The plan's spec is frozen: what it follows by itself is looked for once, not in every step.
        if plan.derivative is None:
            plan.derivative = adjoints_of(plan, None)
        chosen = plan.derivative
    else:
        chosen = adjoints_of(plan, adjoints)
    key = (chosen.target, chosen.pairs, optimizer.signature())
    found = plan.trainings.get(key)
    if found is None:
        found = Training(plan, chosen, optimizer, state)
        while len(plan.trainings) >= KEPT:
            plan.trainings.pop(next(iter(plan.trainings)), None)
        plan.trainings[key] = found
    made: Training = found
    return made


def _stacked_feeds(plan: Plan, feeds: Feeds) -> tuple[dict[int, Any], int]:
    """Return the fed sequences by node, dense and of the element's storage, and their common length.

    Raises:
        FeedError: a feed names no input, has no leading axis of steps, or the lengths differ.
    """
    columns = plan.columns
    stacked: dict[int, Any] = {}
    steps = -1
    for given, data in feeds.items() if isinstance(feeds, Mapping) else feeds or ():
        node = input_node(columns, given)
        tensor = feed_tensor(columns, node, data)
        shape, expected = tensor.shape, columns.shapes[node]
        if shape.rank == 0 or shape[1:] != expected:
            wanted = ", ".join(["steps", *map(str, expected)])
            raise FeedError(f"{columns.label(node)}: a sequence of feeds has shape [{wanted}], not {shape}")
        if steps not in (-1, shape[0]):
            raise FeedError(f"{columns.label(node)} is fed {shape[0]} steps, another input {steps}")
        steps = shape[0]
        stacked[node] = tensor.dense_buffer().reshape((steps, -1))
    if steps < 0:
        raise FeedError("steps: feed at least one input with a leading axis of steps")
    return stacked, steps


def _rates(plan: Plan, learning_rate: Any, steps: int) -> Any:
    """Return one rate, or one per step, in the element's storage.

    Raises:
        ShapeError: neither one value nor one per step.
    """
    element = plan.slots.element
    if type(learning_rate) is float and element.raw.kind == "f":
        with np.errstate(over="ignore"):
            return np.array([learning_rate], element.raw)
    tensor = learning_rate if isinstance(learning_rate, Tensor) else Tensor(learning_rate, element=element)
    if tensor.shape.volume not in (1, steps):
        raise ShapeError(
            f"learning_rate of shape {tensor.shape}: give one value, or one for each of {steps} steps"
        )
    return tensor.convert(element).dense_buffer()


def _checked(plan: Plan, parameters: Parameters, optimizer: Any) -> None:
    check_parameters(plan.slots, parameters)
    for entry in optimizer.state or ():
        if isinstance(entry, Parameters):
            check_parameters(plan.slots, entry)
    if plan.slots.element.kernel is None:
        raise ElementError(
            f"plan.step runs native elements, not {plan.slots.element.name}: use plan.forward, "
            f"run.recorded_gradients and optimizer.step"
        )


def step(
    self: Plan,
    parameters: Parameters,
    feeds: Feeds,
    optimizer: Any,
    learning_rate: Any,
    adjoints: Adjoints | None = None,
) -> tuple[Run, Parameters]:
    """Run forward, recorded gradients and update in one native entry; the optimizer's state advances.

    `adjoints` says which recorded derivative to follow, where the plan computes several (clipped gradients, say).

    Raises:
        UnreadableError: the plan computes no recorded gradients by parameters, or several.
        ParametersError, FeedError, ShapeError, DataError: as `Plan.forward`; nothing has changed then.
    """
    _checked(self, parameters, optimizer)
    tensors = bind_feeds(self.columns, feeds, self.borrows)
    state = optimizer.advance(optimizer.start(parameters) if optimizer.state is None else optimizer.state)
    training = _training(self, adjoints, optimizer, state)
    arrays = {node: tensor.dense_buffer().reshape((1, -1)) for node, tensor in tensors.items()}
    rate = _rates(self, learning_rate, 1)
    run, _, stepped, optimizer.state = training.run(parameters, arrays, rate, state, 1)
    return run, stepped


def steps(
    self: Plan,
    parameters: Parameters,
    feeds: Feeds,
    optimizer: Any,
    learning_rate: Any,
    adjoints: Adjoints | None = None,
) -> tuple[Tensor, Parameters]:
    """Run a step per entry of a sequence of feeds, natively, and return (losses, parameters).

    An optimizer whose state has rank-0 entries (Adam's powers of beta) takes one native entry per step, others
    one per some hundred. Ctrl-C between entries raises KeyboardInterrupt; nothing has changed then.

    Arguments:
        self: the plan.
        parameters: where to start.
        feeds: per input, an array with a leading axis of steps; other inputs keep their payload.
        optimizer: its state advances by as many steps.
        learning_rate: one value, or one per step.
        adjoints: which recorded derivative to follow, where the plan computes several.

    Raises:
        FeedError: a feed has no leading axis of steps, or the lengths differ.
    """
    _checked(self, parameters, optimizer)
    stacked, count = _stacked_feeds(self, feeds)
    rates = _rates(self, learning_rate, count)
    state = optimizer.start(parameters) if optimizer.state is None else optimizer.state
    losses = np.empty(count, self.slots.element.raw)
    stride = count if all(isinstance(entry, Parameters) for entry in state) else 1
    for first in range(0, count, stride):
        state = optimizer.advance(state)
        part = slice(first, first + stride)
        arrays = {node: array[part] for node, array in stacked.items()}
        training = _training(self, adjoints, optimizer, state)
        rate = rates if rates.size == 1 else rates[part]
        _, losses[part], parameters, state = training.run(parameters, arrays, rate, state, stride)
    optimizer.state = state
    return Tensor.of_buffer(self.slots.element, losses, Layout.dense(Shape((count,)))), parameters


Plan.step = step
Plan.steps = steps
