"""The form of the text: what it takes and returns, in which order, how it is read, how long it is."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers import drawn, positions
from topos import F32, EmitError, Plan, ShapeError, SymbolError, Tape, Tensor, UsageError


def simple() -> tuple[Plan, dict]:
    """Return a plan with named parameters and inputs, some of which it does not need."""

    def build(tape: Tape) -> dict:
        x = tape.input(np.zeros((4, 3)), name="x")
        unused = tape.parameter(np.zeros(7), name="unused")
        w = tape.parameter(drawn((3, 2), F32), name="w")
        y = tape.input(np.zeros((4, 2)), name="y")
        error = x @ w - y
        return {"x": x, "y": y, "w": w, "unused": unused, "loss": (error * error).sum(), "error": error}

    network, names = Tape.record(build)
    return network.entry(names["loss"]).observe(names["error"]).lower(), names


def test_arguments_and_results_are_in_order() -> None:
    """Parameters come before inputs, each in recording order; what is not needed is absent; results as declared."""
    plan, _ = simple()
    lines = plan.emit_stablehlo().splitlines()
    assert lines[0] == "module @topos {"
    assert [re.sub(" +", " ", line.strip()) for line in lines[2:5]] == [
        "%arg0: tensor<3x2xf32>, // 2 Parameter [3, 2] w",
        "%arg1: tensor<4x3xf32>, // 0 Input [4, 3] x",
        "%arg2: tensor<4x2xf32> // 3 Input [4, 2] y",
    ]
    assert lines[5] == "  ) -> (tensor<f32>, tensor<4x2xf32>) {"
    assert lines[-3] == "    return %v7, %v5 : tensor<f32>, tensor<4x2xf32>"


def test_each_node_is_named_by_its_line_of_describe() -> None:
    """Every node's operations stand below its spec line, and the last of them is named after it."""
    plan, _ = simple()
    text = plan.emit_stablehlo()
    for node in plan.nodes():
        if not node.is_source:
            below = text[text.index(f"// {node.symbol.index}  {node.name}") :]
            assert f"%v{node.symbol.index} = " in below


def test_postures_give_one_text() -> None:
    """A plan that keeps what backward reads has the text of its forward twin."""
    plan, names = simple()
    network, again = Tape.record(lambda tape: (tape.parameter([1.0, 2.0]) * 3).sum())
    assert network.entry(again).lower().emit_stablehlo() == network.entry(again).backward().lower().emit_stablehlo()
    del plan, names


def test_sources_may_be_results() -> None:
    """A result that is an argument or a constant is returned as it is."""
    network, results = Tape.record(lambda tape: [tape.input([1.0]), tape.leaf([2.0]), tape.parameter([3.0])])
    text = network.entry(results).lower().emit_stablehlo()
    assert "return %arg1, %v1, %arg0 : tensor<1xf32>, tensor<1xf32>, tensor<1xf32>" in text


def test_constant_selections_are_indices() -> None:
    """A one-hot constant of 50,000 columns is written as its positions, not as a matrix; inputs are dense."""
    chosen = Tensor.selection([7, 49_999], 50_000)

    def build(tape: Tape) -> list:
        table = tape.input(np.zeros((50_000, 2)))
        return [table.gather(tape.leaf(chosen)), table.gather(tape.input(chosen))]

    network, results = Tape.record(build)
    text = network.entry(results).lower().emit_stablehlo()
    assert "dense<[7, 49999]> : tensor<2xi32>" in text
    assert "%arg1: tensor<2x50000xf32>" in text
    assert len(text) < 3000


def test_windows_are_no_giant_constants() -> None:
    """The text of a fold and unfold does not grow with the extents."""

    def length(extent: int) -> int:
        def build(tape: Tape) -> list:
            x = tape.parameter(np.zeros((2, extent)))
            windows = [x.unfold(1, 3, 1, 1), x.unfold(1, 40, 2, 1)]
            return [*windows, windows[0].fold(1, 3, 1, 1, extent), windows[1].fold(1, 40, 2, 1, extent)]

        network, results = Tape.record(build)
        text = network.entry(results).lower().emit_stablehlo()
        assert text.count('stablehlo.gather"(') == text.count('stablehlo.scatter"(') == 1
        return len(re.sub("[0-9]+", "0", text))

    assert length(100) == length(90_000)


def test_the_text_is_linear_in_the_nodes() -> None:
    """10,000 nodes make twice the lines of 5,000 (half a second: `bench/bench_emission.py` measures it)."""

    def lines(nodes: int) -> int:
        def build(tape: Tape) -> object:
            value = tape.parameter(np.ones((2, 3)))
            for _ in range(nodes // 8):
                value = ((value * 0.5).tanh() + value).scale(value).permute([1, 0]).reshape([2, 3])
            return value

        network, result = Tape.record(build)
        return network.entry(result).lower().emit_stablehlo().count("\n")

    short, long = lines(5000), lines(10_000)
    assert 1.9 * short < long < 2.1 * short


def test_sharding_is_in_the_text() -> None:
    """Inputs of a batch are cut along its axis, everything else is whole; without one nothing is said."""
    plan, names = simple()
    text = plan.emit_stablehlo({names["x"]: 0, names["y"]: 0}, devices=2)
    assert 'module @topos attributes {mhlo.num_partitions = 2 : i32} {\n  sdy.mesh @devices = <["batch"=2]>' in text
    assert '%arg1: tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@devices, [{"batch"}, {}]>},' in text
    assert "%arg0: tensor<3x2xf32> {sdy.sharding = #sdy.sharding<@devices, [{}, {}]>}," in text
    assert "-> (tensor<f32> {sdy.sharding = #sdy.sharding<@devices, []>}" in text
    assert "sdy" not in plan.emit_stablehlo()


def test_shardings_that_do_not_fit() -> None:
    """An axis that is not there or not divisible, a foreign symbol and an input that is not needed are refused."""
    plan, names = simple()
    with pytest.raises(ShapeError, match=r"named 'x'.*shape \[4, 3\] cannot be cut along axis 1 into 2 parts"):
        plan.emit_stablehlo({names["x"]: 1}, devices=2)
    with pytest.raises(ShapeError, match="axis 2"):
        plan.emit_stablehlo({names["x"]: 2}, devices=2)
    with pytest.raises(EmitError, match=r"named 'unused'.*is no input that the plan needs"):
        plan.emit_stablehlo({names["unused"]: 0}, devices=2)
    with pytest.raises(EmitError, match=r"named 'w'.*is no input that the plan needs"):
        plan.emit_stablehlo({names["w"]: 0}, devices=2)
    with pytest.raises(UsageError, match=r"emit_stablehlo\(devices=0\): there is at least one"):
        plan.emit_stablehlo(devices=0)
    with pytest.raises(SymbolError):
        plan.emit_stablehlo({simple()[1]["x"]: 0}, devices=2)


def test_selections_are_shared() -> None:
    """The indices of one selection are computed once."""

    def build(tape: Tape) -> list:
        selection = tape.input(positions(3, 4, F32))
        rows = tape.parameter(drawn((4, 2), F32)).gather(selection)
        return [rows, rows.scatter(selection)]

    network, results = Tape.record(build)
    assert network.entry(results).lower().emit_stablehlo().count("stablehlo.iota") == 1
