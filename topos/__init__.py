"""topos: an autodiff compiler stack. Record a graph, inspect it, differentiate it, compile it, emit it."""

from topos import compiler, debug, errors, model, reference, stablehlo
from topos.compiler import *
from topos.derivatives import Dual, hessian, hvp, jacobian, jvp
from topos.engine import profile as _profile  # attaches Plan.profile
from topos.engine import training as _training  # attaches Plan.step and Plan.steps
from topos.errors import *
from topos.kernels.runtime import num_threads, set_num_threads
from topos.kernels.store import warmup
from topos.model import *
from topos.proof import Proof, prove

__all__ = [
    "Dual", "Proof", "debug", "hessian", "hvp", "jacobian", "jvp", "num_threads", "prove", "reference",
    "set_num_threads", "stablehlo", "warmup",
]  # fmt: skip
__all__ += compiler.__all__
__all__ += errors.__all__
__all__ += model.__all__

del _profile, _training


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib import metadata  # takes 20 ms

        return metadata.version("topos")
    raise AttributeError(f"module 'topos' has no attribute {name!r}")
