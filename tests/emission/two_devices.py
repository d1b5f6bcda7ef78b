"""A training step on two virtual devices, compared with one: a process that `tests/test_stablehlo.py` starts."""

from __future__ import annotations

import numpy as np

from tests.emission.envelope import FACTOR, UNIT, difference, excess, report
from tests.emission.training import CONV, step_of


def main() -> None:
    """Print the largest difference over the envelope."""
    step, exact = step_of(CONV, "f32"), step_of(CONV, "f64")
    batch = CONV.batch(np.random.default_rng(3))
    plan, parameters = step.plan(), step.network.parameters()
    feeds = {step.inputs[name]: np.asarray(array, np.float32) for name, array in batch.items()}
    powers = dict(zip(step.powers, (0.9, 0.999), strict=True))
    cut = {step.inputs["x"]: 0, step.inputs["t"]: 0}
    text = plan.emit_stablehlo(cut, devices=2)
    assert text.count('[{"batch"}') == 2
    one = plan.on_xla().forward(parameters, feeds | powers)
    two = plan.on_xla(cut, devices=2).forward(parameters, feeds | powers)
    wide = {exact.inputs[name]: np.asarray(np.float32(array), float) for name, array in batch.items()}
    powers = dict(zip(exact.powers, (0.9, 0.999), strict=True))
    reference = exact.plan().forward(exact.network.parameters(), wide | powers)
    worst = 0.0
    for narrow, broad in zip(plan.results, exact.plan().results, strict=True):
        a, b = one.of(narrow).numpy(), two.of(narrow).numpy()
        apart = difference(a, [reference.of(broad).numpy()], UNIT["f32"])
        worst = max(worst, excess(b, a, FACTOR * apart))
    assert worst <= 1
    report(f"2 devices, largest difference {worst:.3f} of the envelope")


if __name__ == "__main__":
    main()
