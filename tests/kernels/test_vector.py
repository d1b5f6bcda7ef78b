"""`VectorTable`: every operation, emitted and run, has the bits that `NumpyTable` computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import bits
from tests.kernels.calls import call_routine, compiled
from tests.kernels.interpreted import NumpyTable
from topos.kernels import elements, store
from topos.kernels.access import routine
from topos.kernels.target import assemble
from topos.kernels.vector import LANES, VectorTable


def _mask(name: str) -> Any:
    return lambda o, a, b: o.select(getattr(o, name)(a, b), o.real(1.0), o.real(2.0))


def _whole(name: str) -> Any:
    return lambda o, a, b: o.from_bits(getattr(o, name)(o.to_bits(a), o.to_bits(b)))


def _shift(name: str, share: float) -> Any:
    return lambda o, a: o.from_bits(getattr(o, name)(o.to_bits(a), int(share * (o.width - 1))))


def _compare(name: str) -> Any:
    return lambda o, a, b: o.select(getattr(o, name)(o.to_bits(a), o.to_bits(b)), a, b)


def _rare(o: Any, x: Any) -> Any:
    index = o.iand(o.to_bits(x), o.whole(3))
    return o.from_bits(o.iadd(o.to_bits(x), o.lookup([1, -7, 1 << (o.width - 1), 1 << 20], index)))


REAL = {
    "add": (2, lambda o, a, b: o.add(a, b)),
    "sub": (2, lambda o, a, b: o.sub(a, b)),
    "mul": (2, lambda o, a, b: o.mul(a, b)),
    "div": (2, lambda o, a, b: o.div(a, b)),
    "fma": (3, lambda o, a, b, c: o.fma(a, b, c)),
    "sqrt": (1, lambda o, a: o.sqrt(a)),
    "to_real": (1, lambda o, a: o.to_real(o.to_bits(a))),
    "constants": (1, lambda o, a: o.add(o.mul(a, o.real(0.1)), o.real(1e-45))),
}
"""Operations that may make a NaN: its sign and payload are free."""

BITS = {
    "neg": (1, lambda o, a: o.neg(a)),
    "abs": (1, lambda o, a: o.abs(a)),
    **{name: (2, _mask(name)) for name in ("lt", "le", "eq", "gt", "ge")},
    "is_nan": (1, lambda o, a: o.select(o.is_nan(a), o.real(-0.0), a)),
    "both": (2, lambda o, a, b: o.select(o.both(o.lt(a, b), o.lt(o.real(0.0), a)), a, b)),
    "either": (2, lambda o, a, b: o.select(o.either(o.lt(a, b), o.is_nan(a)), a, b)),
    "negate": (2, lambda o, a, b: o.select(o.negate(o.lt(a, b)), a, b)),
    "select wholes": (2, lambda o, a, b: o.from_bits(o.select(o.lt(a, b), o.to_bits(b), o.whole(-3)))),
    **{name: (2, _whole(name)) for name in ("iadd", "isub", "iand", "ior", "ixor")},
    **{f"{n} {s}": (1, _shift(n, s)) for n in ("shl", "lshr", "ashr") for s in (0, 0.3, 1)},
    **{name: (2, _compare(name)) for name in ("ilt", "ieq")},
    "whole": (1, lambda o, a: o.from_bits(o.iadd(o.to_bits(a), o.whole((1 << o.width) - 2)))),
    "rarely": (1, lambda o, a: o.rarely(o.lt(a, o.real(-1e30)), o.neg(a), _rare, a)),
    "rarely not": (1, lambda o, a: o.rarely(o.lt(o.abs(a), o.real(0.0)), a, _rare, a)),
}
"""Operations that move bits: every NaN keeps all of them."""


def operand(width: int, count: int, seed: int) -> np.ndarray:
    """Return numbers of drawn bits, ordinary ones, and special ones, in drawn places."""
    generator = np.random.default_rng(seed)
    real, unsigned = np.dtype(f"f{width // 8}"), np.dtype(f"u{width // 8}")
    wild = generator.integers(0, 2**width, count, dtype=unsigned).view(real)
    tame = generator.normal(size=count).astype(real)
    tiny = np.finfo(real).smallest_subnormal
    listed = np.array([0.0, -0.0, 1, -1, 2, np.inf, -np.inf, np.nan, tiny, -tiny, np.finfo(real).max], real)
    special = generator.choice(listed, count)
    with np.errstate(all="ignore"):
        return np.choose(generator.integers(0, 3, count), [wild, tame, special]).astype(real)


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("name", [*REAL, *BITS])
def test_an_operation_has_the_bits_of_numpy(name: str, width: int) -> None:
    """Emitted and run over blocks and a tail, an operation gives what it gives over NumPy arrays."""
    arity, function = (REAL | BITS)[name]
    count = 12 * LANES[width] + 5
    operands = [operand(width, count, seed) for seed in range(arity)]
    expected = NumpyTable(width)(function, *operands)
    got = compiled(function, arity, width)(*operands)
    unsigned = f"u{width // 8}"
    if name in REAL:
        assert (bits(got) == bits(expected)).all()
    else:
        assert (got.view(unsigned) == np.ascontiguousarray(expected).view(unsigned)).all()


def test_double_computes_at_64_bits() -> None:
    """`double` widens exactly, runs its body at 64 bits, and rounds once."""

    def function(o: Any, a: Any, b: Any) -> Any:
        return o.double(lambda w, x, y: w.sub(w.mul(x, y), w.div(x, w.add(y, w.real(3.0)))), a, b)

    a, b = operand(32, 203, 1), operand(32, 203, 2)
    assert (bits(compiled(function, 2, 32)(a, b)) == bits(NumpyTable(32)(function, a, b))).all()


def polynomial(o: Any, a: Any, b: Any, c: Any) -> Any:
    """A function of three operands whose lanes a wrong tail would show."""
    small = o.lt(o.abs(a), o.real(0.5))
    return o.rarely(small, o.fma(a, b, c), lambda o, a, b: o.div(a, o.add(b, o.real(4.0))), a, b)


@pytest.mark.parametrize("width", [32, 64])
def test_tails_equal_bodies(width: int) -> None:
    """Any count of values gives the bits that each value has anywhere, and writes nothing past it."""
    most = 2 * LANES[width] + 3
    operands = [operand(width, most, seed) for seed in range(5, 8)]
    kind = elements.MEMORY[f"f{width}"]
    address = store._load(f"polynomial{width}", assemble(str(routine(polynomial, 3, f"polynomial{width}", kind, kind))))
    alone = NumpyTable(width)(polynomial, *operands)
    for count in range(most + 1):
        out = np.full(most, 42.0, operands[0].dtype)
        call_routine(address, out, *operands, count=count)
        assert (bits(out[:count]) == bits(alone[:count])).all(), count
        assert (out[count:] == 42.0).all(), count


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_result_may_replace_an_operand(width: int, place: int) -> None:
    """`out` may be any of the operands."""
    count = 3 * LANES[width] + 7
    operands = [operand(width, count, seed) for seed in range(5, 8)]
    name = f"in_place{width}_{place}"
    kind = elements.MEMORY[f"f{width}"]
    address = store._load(name, assemble(str(routine(polynomial, 3, name, kind, kind))))
    expected = NumpyTable(width)(polynomial, *operands)
    call_routine(address, operands[place], *operands)
    assert (bits(operands[place]) == bits(expected)).all()


@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_16_bit_memory_widens_computes_and_rounds_once(element: str) -> None:
    """A routine over 16-bit memory is widen, compute at f32, narrow; in place too, tails included."""
    kind = elements.MEMORY[element]
    generator = np.random.default_rng(7)
    raw = [generator.integers(0, 2**16, 300 + 7, dtype=np.uint16) for _ in range(3)]
    o = NumpyTable(32)
    with np.errstate(all="ignore"):
        wide = [kind.widen(o, array.astype(np.int32)) for array in raw]
        result = polynomial(o, *wide)
        narrow = kind.narrow(o, result).astype(np.uint16)
    nan = np.isnan(result)
    got = compiled(polynomial, 3, 32, kind, kind)(*raw)
    with np.errstate(all="ignore"):
        assert (np.isnan(kind.widen(o, got.astype(np.int32))) == nan).all()
    assert (got[~nan] == narrow[~nan]).all()
    name = f"in_place_{element}"
    address = store._load(name, assemble(str(routine(polynomial, 3, name, kind, kind))))
    call_routine(address, raw[1], *raw)
    assert (raw[1][~nan] == narrow[~nan]).all()


def test_the_text_names_no_cpu() -> None:
    """One text serves every target: no triple, no features, no intrinsic of a CPU, fixed vectors."""
    text = str(routine(polynomial, 3, "tested", elements.MEMORY["f32"], elements.MEMORY["f32"]))
    declared = {line.split("@")[1].split("(")[0].strip('"') for line in text.splitlines() if "declare" in line}
    assert declared == {"llvm.masked.load.v16f32.p0", "llvm.ctpop.i16", "llvm.cttz.i16", "llvm.fma.v16f32"}
    assert "target-" not in text
    assert "vscale" not in text


def test_an_operation_is_one_instruction_of_the_whole_vector() -> None:
    """Constants are rounded once to the width: 0.1 is the f32 nearest to it."""
    from llvmlite import ir

    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "empty")
    table = VectorTable(ir.IRBuilder(function.append_basic_block()), 32, 4)
    assert float(np.float32(0.1)) == table.real(0.1).constant[0].constant
    assert table.real(float("-inf")).constant[0].constant == float("-inf")
    assert table.whole(2**31).constant[0].constant == -(2**31)
