"""What can go wrong, sorted by who must act.

    OcpdlError
    ├── ConfigError     the operator: a setting or an argument makes no sense   (also a ValueError)
    ├── DataError       the producer of the data: this input cannot be learned  (also a ValueError)
    ├── NumericError    whoever scaled the data: a step left the range of floating point
    └── StateError      the operator: these bytes are not the state they should be

An error leaves everything as it was: a learner that raised still has the state of the step before.
"""


class OcpdlError(Exception):
    """The root of every error this package raises on purpose."""


class ConfigError(OcpdlError, ValueError):
    """A setting or an argument makes no sense; the message names it and says what would."""


class DataError(OcpdlError, ValueError):
    """An input cannot be learned; the message names the argument and the first offending place."""


class NumericError(OcpdlError, ArithmeticError):
    """A step had a result that is not finite; it was discarded."""


class StateError(OcpdlError, ValueError):
    """Bytes or a state do not belong to this problem, or are damaged."""
