"""StableHLO text outside topos: checked, interpreted by the reference interpreter, compiled by XLA and by IREE.

XLA, the parser and the interpreter come with JAX (the extra ``stablehlo``). IREE has packages of its own; since the
parser checks its text too, the extra ``iree`` brings JAX beside them.
This is a thin layer over their public entry points: arrays go in and come out, and the bits are theirs.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numpy as np

from topos.backend.formula import Formula
from topos.emission.module import arguments
from topos.engine.feeds import Feeds, bind_feeds
from topos.engine.plan import Plan
from topos.engine.run import Run, check_parameters
from topos.errors import BackendUnavailable, EmitError, FeedError, UnreadableError
from topos.graph import Columns, Parameters, Slots, SymbolLike
from topos.ops import Parameter
from topos.payload import Tensor, element_of

__all__ = ["Executable", "Served", "compile", "interpret", "validate"]

# NumPy arrays, one per argument or result.
Arrays = list[Any]

# The shape and dtype of each argument or result.
Signature = list[tuple[tuple[int, ...], Any]]


def _package(name: str, extra: str) -> Any:
    """Import a package of an extra.

    Raises:
        BackendUnavailable: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        remedy = f"pip install '.[{extra}]' in a checkout ({error})"
        raise BackendUnavailable(f"topos.stablehlo needs {name}: {remedy}") from error


@contextmanager
def _parsed(text: str) -> Iterator[tuple[Any, Any]]:
    """Parse and verify text; yield (module, its function main) in a context that knows the dialects.

    Raises:
        EmitError: it is no valid module with a function main; the message is the parser's.
        BackendUnavailable: JAX is not installed.
    """
    jax = _package("jax", "stablehlo")
    ir = _package("jax.extend.mlir.ir", "stablehlo")
    # The public way to a context with every dialect of JAX: that of a program lowered by it.
    with jax.jit(lambda: 0).lower().compiler_ir().context, ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
            module.operation.verify()
        except ir.MLIRError as error:
            raise EmitError(f"no valid StableHLO: {error}") from error
        functions = [op for op in module.body.operations if op.operation.name == "func.func"]
        mains = [function for function in functions if function.name.value == "main"]
        if not mains:
            raise EmitError("no valid StableHLO: there is no function @main")
        yield module, mains[0]


def _signature(kinds: Any) -> Signature:
    return [(tuple(kind.shape), element_of(str(kind.element_type)).dtype) for kind in kinds]


def validate(text: str) -> None:
    """Check that text is a valid module with a function `main`.

    Raises:
        EmitError: it is not; the message is the parser's or verifier's.
        BackendUnavailable: JAX is not installed.

    >>> network, out = Tape.record(lambda tape: tape.input([1.0, 2.0]) * 2.0)
    >>> text = network.entry(out).lower().emit_stablehlo()
    >>> stablehlo.validate(text)
    """
    with _parsed(text):
        pass


# ---- the reference interpreter


def interpret(text: str, arrays: Sequence[Any]) -> Arrays:
    """Run a module on StableHLO's reference interpreter: slow, and what the specification says.

    Raises:
        EmitError: the text is not valid, or holds a batch norm: the interpreter has none, and would end the process.
        FeedError: an argument does not fit the function.
        BackendUnavailable: JAX is not installed.

    >>> network, out = Tape.record(lambda tape: tape.input([1.0, 2.0]) * 2.0)
    >>> text = network.entry(out).lower().emit_stablehlo()
    >>> stablehlo.interpret(text, [[3.0, 4.0]])
    [array([6., 8.], dtype=float32)]
    """
    with _parsed(text) as (module, main):
        if '"stablehlo.batch_norm_' in text:
            remedy = "emit_stablehlo(plain=[Formula.BATCH_NORM_TRAINING, Formula.BATCH_NORM_INFERENCE])"
            raise EmitError(f"the reference interpreter has no batch norm: emit its formula, with {remedy}")
        ir = _package("jax.extend.mlir.ir", "stablehlo")
        hlo = _package("jax.extend.mlir.dialects.stablehlo", "stablehlo")
        passes = _package("jax.extend.mlir.passmanager", "stablehlo")
        # The interpreter knows no CHLO, and cannot hand out a bf16.
        hlo.register_stablehlo_passes()
        pipeline = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
        passes.PassManager.parse(pipeline).run(module.operation)
        kinds, results = main.type.inputs, _signature(main.type.results)
        _return_wide(ir, hlo, main)

        def place(position: int, array: Any) -> Any:
            kind, stored = kinds[position], np.ascontiguousarray(array)
            if stored.dtype.name == "bfloat16":  # which the buffer protocol does not describe
                stored = stored.view(np.uint16)
            return ir.DenseElementsAttr.get(stored, type=kind.element_type, shape=list(kind.shape))

        def run(placed: Arrays) -> Arrays:
            found = hlo.eval_module(module, placed)
            return [np.array(a).astype(dtype) for a, (_, dtype) in zip(found, results, strict=True)]

        return Executable(_signature(kinds), place, run)(*arrays)


def _return_wide(ir: Any, hlo: Any, main: Any) -> None:
    """Let a function return its bf16 numbers as f32."""
    *_, last = main.entry_block.operations
    wide = []
    with ir.InsertionPoint(last):
        for value in last.operands:
            is_narrow = str(value.type.element_type) == "bf16"
            kind = ir.RankedTensorType.get(value.type.shape, ir.F32Type.get()) if is_narrow else value.type
            wide.append(hlo.convert(kind, value) if is_narrow else value)
        _package("jax.extend.mlir.dialects.func", "stablehlo").ReturnOp(wide)
    last.operation.erase()
    signature = ir.FunctionType.get(main.type.inputs, [value.type for value in wide])
    main.attributes["function_type"] = ir.TypeAttr.get(signature)


# ---- compilers


class Executable(NamedTuple):
    """A compiled module. Call it with arrays in the order of the function's arguments.

    Attributes:
        signature: the arguments' shapes and dtypes.
        place: brings an argument of the right type (by its position) to where the module runs.
        run: runs placed arguments and returns NumPy arrays.

    >>> network, out = Tape.record(lambda tape: tape.input([1.0, 2.0]) * 2.0)
    >>> text = network.entry(out).lower().emit_stablehlo()
    >>> stablehlo.compile(text).signature
    [((2,), dtype('float32'))]
    """

    signature: Signature
    place: Callable[[int, Any], Any]
    run: Callable[[Arrays], Arrays]

    def __call__(self, *arrays: Any) -> Arrays:
        """Run the module.

        Raises:
            FeedError: an argument does not fit the function.
        """
        if len(arrays) != len(self.signature):
            raise FeedError(f"main takes {len(self.signature)} arguments, {len(arrays)} given")
        return self.run([self.put(i, array) for i, array in enumerate(arrays)])

    def put(self, position: int, array: Any) -> Any:
        """Bring an argument to where the module runs: `run` takes what this returns.

        Raises:
            FeedError: its shape differs.
        """
        shape, dtype = self.signature[position]
        given = np.asarray(array, dtype)
        if given.shape != shape:
            raise FeedError(f"argument {position} of main has shape {list(shape)}, not {list(given.shape)}")
        return self.place(position, given)


def compile(text: str, compiler: str = "xla", options: Mapping[str, Any] = {}) -> Executable:
    """Compile a module for this machine.

    Arguments:
        text: StableHLO; where it names several devices, XLA's first ones are taken.
        compiler: ``"xla"``, on JAX's default device, or ``"iree"``, on the CPU.
        options: the compiler's own, by name: ``xla_backend_optimization_level`` of XLA, ``iree-opt-level`` of IREE.

    Raises:
        EmitError: the text is not valid, or the compiler refuses it.
        BackendUnavailable: a package is not installed, or there are fewer devices than the text names.

    >>> network, out = Tape.record(lambda tape: tape.input([1.0, 2.0]) * 2.0)
    >>> text = network.entry(out).lower().emit_stablehlo()
    >>> double = stablehlo.compile(text)
    >>> double([3.0, 4.0])
    [array([6., 8.], dtype=float32)]
    """
    if compiler not in _COMPILERS:
        raise EmitError(f"compile: the compilers are {', '.join(_COMPILERS)}, not {compiler!r}")
    return _COMPILERS[compiler](text, options)


def _on_xla(text: str, options: Mapping[str, Any]) -> Executable:
    with _parsed(text) as (module, main):
        signature, results = _signature(main.type.inputs), len(main.type.results)
        cuts = _cuts(main)
        attributes = module.operation.attributes
        parts = attributes["mhlo.num_partitions"].value if "mhlo.num_partitions" in attributes else 1
    jax, backend = _package("jax", "stablehlo"), _package("jax.extend.backend", "stablehlo")
    devices = jax.devices()[:parts]
    if len(devices) < parts:
        remedy = f"the CPU counts as several with XLA_FLAGS=--xla_force_host_platform_device_count={parts}"
        raise BackendUnavailable(f"the text is for {parts} devices, XLA sees {len(devices)}; {remedy}")
    chosen = {"xla_allow_excess_precision": False, **options}
    try:
        settings = backend.get_compile_options(1, parts, np.arange(parts).reshape(1, parts), chosen)
        program = backend.get_backend().compile_and_load(text, tuple(devices), settings)
    except jax.errors.JaxRuntimeError as error:
        raise EmitError(f"XLA refuses the module: {error}") from error
    mesh = jax.sharding.Mesh(np.array(devices), ("batch",))
    places = [jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in cuts]

    def place(position: int, array: Any) -> Any:
        with jax.enable_x64(True):
            return jax.device_put(array, places[position])

    def run(placed: Arrays) -> Arrays:
        found = program.execute_sharded(placed).disassemble_into_single_device_arrays()
        return [np.asarray(parts[0]) for parts in found[:results]]

    return Executable(signature, place, run)


def _cuts(main: Any) -> list[list[str | None]]:
    """Return, for each axis of each argument, the axis of the mesh over which it is cut, None where it is whole."""
    attributes = main.attributes
    if "arg_attrs" not in attributes:
        return [[]] * len(main.type.inputs)
    given = [str(a["sdy.sharding"]) if "sdy.sharding" in a else "" for a in attributes["arg_attrs"]]
    return [[name.strip('"') or None for name in re.findall(r"\{([^{}]*)\}", text)] for text in given]


def _on_iree(text: str, options: Mapping[str, Any]) -> Executable:
    with _parsed(text) as (_, main):
        signature, results = _signature(main.type.inputs), _signature(main.type.results)
        if any(any(axes) for axes in _cuts(main)):
            raise BackendUnavailable("IREE runs on one device here: emit the module without batch axes")
    compiler, runtime = _package("iree.compiler", "iree"), _package("iree.runtime", "iree")
    chosen = {"iree-input-demote-f64-to-f32": "false", "iree-llvmcpu-target-cpu": "host", **options}
    flags = [f"--{name}={value}" for name, value in chosen.items()]
    try:
        binary = compiler.compile_str(text, input_type="stablehlo", target_backends=["llvm-cpu"], extra_args=flags)
    except compiler.CompilerToolError as error:
        raise EmitError(f"IREE refuses the module: {error}") from error
    main_function = runtime.load_vm_flatbuffer(binary, driver="local-task").main

    def run(placed: Arrays) -> Arrays:
        found = main_function(*placed)
        each = found if isinstance(found, (tuple, list)) else [found]
        # IREE hands out a bf16 as its bits.
        return [np.asarray(a.to_host()).view(dtype) for a, (_, dtype) in zip(each, results, strict=True)]

    return Executable(signature, lambda _, array: array, run)


_COMPILERS: Mapping[str, Callable[[str, Mapping[str, Any]], Executable]] = {"xla": _on_xla, "iree": _on_iree}


# ---- plans

# What plans are compiled without: XLA takes a variance as E[x^2] - E[x]^2, of which large means leave nothing, and
# IREE has no gradient.
PLAIN = (Formula.BATCH_NORM_TRAINING,)


@dataclass
class Served:
    """A plan that another compiler runs, with feeds and parameters by symbol as at home.

    Arguments:
        plan: what was emitted.
        executable: its text, compiled.

    >>> network, (x, out) = Tape.record(lambda tape: ((x := tape.input([1.0, 2.0])), x * 2.0))
    >>> served = network.entry(out).lower().on_xla()
    >>> print(served.forward(network.parameters(), {x: [3.0, 4.0]}).of(out))
    [6.0, 8.0]
    """

    plan: Plan
    executable: Executable
    _weights: tuple[Any, Arrays] = field(default=(None, []), repr=False)

    def forward(self, parameters: Parameters, feeds: Feeds = None) -> Run:
        """Run the plan elsewhere: its results are within rounding of `Plan.forward`'s.

        The parameters of the last run stay where they were brought. Rules about data are not checked.

        Raises:
            ParametersError, FeedError: as `Plan.forward`.
        """
        plan, columns = self.plan, self.plan.columns
        check_parameters(plan.slots, parameters, exact=False)
        tensors = bind_feeds(columns, feeds)
        nodes = arguments(plan)
        count = sum(isinstance(columns.opcodes[node], Parameter) for node in nodes)
        put = self.executable.put
        if self._weights[0] is not parameters:
            payloads = parameters.payloads()
            weights = [put(i, payloads[plan.slots.by_node[node]]) for i, node in enumerate(nodes[:count])]
            self._weights = (parameters, weights)
        inputs = [put(count + i, tensors.get(n, columns.payloads[n])) for i, n in enumerate(nodes[count:])]
        found = self.executable.run([*self._weights[1], *inputs])
        results = zip(plan.results, found, strict=True)
        values = {s.index: Tensor(array, element=columns.element) for s, array in results}
        source: Any = _Answers(columns, plan.slots, values)
        return Run(source)


class _Answers(NamedTuple):
    """What a foreign compiler computed, as `Run` asks for it."""

    columns: Columns
    slots: Slots
    values: dict[int, Tensor]

    def read(self, node: int) -> Tensor:
        if node not in self.values:
            rule = "the plan's results alone came back; declare it with entry.observe([...])"
            raise UnreadableError(f"{self.columns.label(node)} is not readable: {rule}")
        return self.values[node]

    def cotangents(self, target: int) -> NoReturn:
        remedy = "record the gradients with tape.differentiate and make them results"
        rule = "a foreign compiler ran this plan forward"
        raise UnreadableError(f"backward of {self.columns.label(target)}: {rule}; {remedy}")


def on_xla(plan: Plan, batch: Mapping[SymbolLike, int] | None = None, devices: int = 1) -> Served:
    """Return this plan compiled by XLA: ``plan.on_xla().forward(parameters, feeds)``.

    Arguments:
        plan: what is compiled.
        batch: inputs with the axis that is cut over the devices, as `Plan.emit_stablehlo` takes it.
        devices: how many.

    Raises:
        EmitError, ShapeError, SymbolError: as `Plan.emit_stablehlo`; or XLA refuses the module.
        BackendUnavailable: JAX is not installed, or there are fewer devices.
    """
    return Served(plan, compile(plan.emit_stablehlo(batch, devices, PLAIN)))


def on_iree(plan: Plan) -> Served:
    """Return this plan compiled by IREE for the CPU: ``plan.on_iree().forward(parameters, feeds)``.

    Raises:
        EmitError: as `Plan.emit_stablehlo`; or IREE refuses the module.
        BackendUnavailable: IREE, or JAX, whose parser reads the text, is not installed.
    """
    # IREE cannot send the gradient of a pool to windows that overlap.
    return Served(plan, compile(plan.emit_stablehlo(plain=(*PLAIN, Formula.REDUCE_WINDOW)), "iree"))


Plan.on_xla = on_xla
Plan.on_iree = on_iree
