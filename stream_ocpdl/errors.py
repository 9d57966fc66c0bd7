"""What can go wrong, sorted by who must act.

    OcpdlError
    ├── ConfigError     the operator: a setting or an argument makes no sense   (also a ValueError)
    ├── DataError       the producer of the data: this input cannot be learned  (also a ValueError)
    ├── NumericError    whoever scaled the data: a step left the range of floating point
    ├── StateError      the operator: these bytes are not the state they should be
    ├── DecodeError     the producer of the data: these bytes are not a message  (also a DataError)
    ├── LineageError    the operator: journal, checkpoint, input and settings do not belong together
    ├── InputLost       the operator: input that has to be read (again) is gone
    ├── TooMuchRefused  the operator: nearly nothing of the input can be learned
    ├── Stopped         nobody: asked to stop before there was anything to finish
    ├── Fenced          nobody: another process has taken over, and this one must stop
    ├── StoreError      the operator: the directory of checkpoints, or of compiled kernels, cannot be written
    └── BrokerError     the broker, or the way to it: tried again, and given up in the end
        ├── Denied      the operator: the broker refuses who we are, or what we may do; not tried again
        ├── QueueFull   the producer: tensors come faster than the broker takes them
        └── Unanswered  the operator: no service is running that would do what was asked for

`exit_code` is what a command ends with:

    0   done, or stopped as it was asked to
    1   a bug, or promises that `verify`, `replay` or the demo found broken
    2   a setting: the command line, a file, the environment, a topic that is not as it must be
    3   the data
    4   the history: journal, checkpoints and settings do not belong together, or input is gone
    5   another process has taken over; a replica stands by instead, so that `run` does not end with it
    6   the broker, the way to it, what it refuses (a password, a certificate, an ACL), or a directory that cannot be
        written; or no service that answers a request
    9   too much of the input was refused, see `refusals`
   10   told a second time to stop: ended at once; nothing is lost, what was not committed is learned again

`validate` tells its layers apart: 2 is syntax (YAML, names, types), 7 semantics, 6 the connection, 4 the history,
8 the topics; and `topics check` ends with 8.

An error leaves everything as it was: a learner that raised still has the state of the step before, unless it learns in
place and the result was not finite.
"""

SEMANTICS, TOPICS = 7, 8
"""What `validate` ends with where `run` ends with 2: each setting is well-formed, but …"""


IMPATIENT = 10
"""What a process ends with that was told a second time to stop."""


class OcpdlError(Exception):
    """The root of every error this package raises on purpose."""

    exit_code = 1


class ConfigError(OcpdlError, ValueError):
    """A setting or an argument makes no sense; the message names it and says what would."""

    exit_code = 2


class DataError(OcpdlError, ValueError):
    """An input cannot be learned; the message names the argument and the first offending place."""

    exit_code = 3


class NumericError(OcpdlError, ArithmeticError):
    """A step had a result that is not finite; it was discarded."""

    exit_code = 3


class StateError(OcpdlError, ValueError):
    """Bytes or a state do not belong to this problem, or are damaged."""

    exit_code = 4


class DecodeError(DataError):
    """The bytes of a message are not what its format asks for."""


class LineageError(OcpdlError):
    """A journal, a checkpoint or a configuration belongs to another history; going on would mix them."""

    exit_code = 4


class InputLost(OcpdlError):
    """Input that has to be read, or read again, is no longer there."""

    exit_code = 4


class TooMuchRefused(OcpdlError):
    """So much of the input is refused that something else is wrong; what is beyond the limit was not committed."""

    exit_code = 9


class Stopped(OcpdlError):
    """The service was asked to stop, and had nothing to finish."""

    exit_code = 0


class Fenced(OcpdlError):
    """Another process writes this model now; whatever this one has in memory is void."""

    exit_code = 5


class StoreError(OcpdlError):
    """A checkpoint or a compiled kernel cannot be written; the state is safe, in the journal."""

    exit_code = 6


class BrokerError(OcpdlError):
    """The broker did not do what it was asked for until the deadline, or refused for good."""

    exit_code = 6


class Denied(BrokerError):
    """The broker refuses who we are, or what we want to do, and will go on to; the message says what would help."""


class QueueFull(BrokerError):
    """There is no room for another tensor: they come faster than the broker takes them."""


class Unanswered(BrokerError):
    """A request was written, and no service answered it in time."""
