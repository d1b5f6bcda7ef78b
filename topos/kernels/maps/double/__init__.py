"""The maps of float64, each within 1.5 ulp (powf 2) of the exact value, in fused multiply-adds.

Coefficients are minimax fits (Remez exchange at 45 digits); a comment gives each one's error. Every function
keeps the sign of zero, and a NaN gives a NaN.
"""

from topos.kernels.maps.double.error import erf, erf_derivative
from topos.kernels.maps.double.exponential import exp, expm1, tanh
from topos.kernels.maps.double.logarithm import ln, log1p, powf
from topos.kernels.maps.double.trigonometric import cos, sin

__all__ = ["cos", "erf", "erf_derivative", "exp", "expm1", "ln", "log1p", "powf", "sin", "tanh"]
