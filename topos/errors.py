"""Every error of topos: one tree, each also the built-in error that a Python user would catch."""

__all__ = [
    "ToposError", "ShapeError", "PositionError", "ElementError", "ExportError", "SealedError", "TapeError", "SymbolError",
    "UsageError", "UnreadableError", "FeedError", "ParametersError", "DataError", "CheckpointError", "EmitError",
    "BackendUnavailable", "DeviceError", "DeviceMemoryError",
]  # fmt: skip


class ToposError(Exception):
    """The root of the tree."""


class ShapeError(ToposError, ValueError):
    """Shapes, axes or extents do not fit an operation."""


class PositionError(ToposError, IndexError):
    """An index or slice is outside an axis or a vocabulary."""


class ElementError(ToposError, TypeError):
    """A number, array or operation does not fit an element."""


class ExportError(ToposError, BufferError):
    """Numbers have no form in another library's protocol."""


class SealedError(ToposError, RuntimeError):
    """A tape or network was used after it had been sealed or reopened."""


class TapeError(ToposError, ValueError):
    """Values of different tapes met."""


class SymbolError(ToposError, LookupError):
    """A symbol or name does not belong to the network, table or run that was asked."""


class UsageError(ToposError, TypeError):
    """A call was made with what it does not take: a recorded value as a number, an argument of the wrong kind or range."""


class UnreadableError(ToposError, LookupError):
    """A value was asked for that the run did not compute or keep."""


class FeedError(ToposError, ValueError):
    """A feed names no input, or does not fit it."""


class ParametersError(ToposError, ValueError):
    """A table of parameters does not fit a network or another table."""


class DataError(ToposError, ValueError):
    """The data of a run broke a rule that shapes cannot express; raised after the run."""


class CheckpointError(ToposError, ValueError):
    """A file does not hold what a model or network needs; nothing was changed."""


class EmitError(ToposError, NotImplementedError):
    """A plan has no text in a target language."""


class BackendUnavailable(ToposError, RuntimeError):  # noqa: N818 - the name of the field's reference
    """A backend cannot run here; the message says what is missing and how to get it."""


class DeviceError(ToposError, RuntimeError):
    """A device failed: it was lost, or a kernel did; what lies in the memory of this process is intact."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The memory of a device is used up."""
