"""`Plan.profile`: where a run spends its time, by instruction and by recording line."""

from typing import Any, NamedTuple

import numpy as np

from topos.engine.feeds import Feeds
from topos.engine.plan import Plan
from topos.engine.run import check_parameters
from topos.errors import ElementError
from topos.graph import Parameters
from topos.ops.emit import TABLE


class Timing(NamedTuple):
    """One instruction: its kernel, the node it belongs to, that node's recording line, and its seconds."""

    kernel: str
    node: int
    line: str
    seconds: float


class Profile(NamedTuple):
    """The timings of a run, in program order."""

    timings: tuple[Timing, ...]

    @property
    def seconds(self) -> float:
        """The sum of all instructions."""
        return sum(timing.seconds for timing in self.timings)

    def by_line(self) -> list[tuple[str, float]]:
        """Return (recording line, seconds), the most expensive first."""
        return _totals((timing.line, timing.seconds) for timing in self.timings)

    def by_kernel(self) -> list[tuple[str, float]]:
        """Return (kernel, seconds), the most expensive first."""
        return _totals((timing.kernel, timing.seconds) for timing in self.timings)

    def __str__(self) -> str:
        total = self.seconds or 1.0
        lines = [f"{spent * 1e6:10.1f} us {spent / total:6.1%}  {line}" for line, spent in self.by_line()]
        return "\n".join([*lines, f"{self.seconds * 1e6:10.1f} us in {len(self.timings)} instructions"])


def _totals(pairs: Any) -> list[tuple[str, float]]:
    totals: dict[str, float] = {}
    for key, seconds in pairs:
        totals[key] = totals.get(key, 0.0) + seconds
    return sorted(totals.items(), key=lambda item: -item[1])


def profile(self: Plan, parameters: Parameters, feeds: Feeds = None, repeats: int = 5) -> Profile:
    """Run the plan instruction by instruction and return the least time of each over `repeats` runs.

    Each instruction is a native entry of its own here, whose cost (about 1 us) is measured and taken off.

    Raises:
        ParametersError, FeedError, DataError: as `Plan.forward`.
        ElementError: a user's number type has no instructions.
    """
    check_parameters(self.slots, parameters, exact=False)
    lowered = self.lowered
    if lowered is None:
        raise ElementError(f"profile: {self.columns.element.name} runs in Python and has no instructions")
    program = lowered.program
    frame = lowered.start(feeds)
    lowered.bring(frame, TABLE, parameters)
    best = np.full(len(program.starts), np.inf)
    for _ in range(max(1, repeats)):
        best = np.minimum(best, program.timed(frame.address))
    frame.held.clear()
    lowered.report(frame)
    where, rows = self.columns.where, zip(program.row_kernels, program.nodes, best, strict=True)
    return Profile(tuple(Timing(kernel, node, where(node), float(seconds)) for kernel, node, seconds in rows))


Plan.profile = profile
