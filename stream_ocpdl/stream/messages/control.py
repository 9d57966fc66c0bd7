"""What an operator asks of a running model: a request on its control topic, which the owner answers in the journal."""

from dataclasses import dataclass, field
from typing import Any, Self

from stream_ocpdl.stream.messages.fields import Fields
from stream_ocpdl.stream.messages.framing import Payload, frame, unframe
from stream_ocpdl.stream.messages.terms import changes

ACTIONS = ("reconfigure", "rollback")


@dataclass(frozen=True, slots=True)
class Request:
    """Other terms from now on, or the state of an earlier step."""

    id: str
    """By which the answer is known."""
    action: str
    change: dict[str, Any] = field(default_factory=dict)
    """Of a reconfiguration: the terms that are to be others (see `Terms`)."""
    t: int = 0
    """Of a rollback: the step whose state is wanted."""
    epoch: int = 0
    """Of a rollback: the epoch of that step."""
    present: int = 0
    """Of a rollback: the epoch in which the model was when it was asked for; in a later one it is void."""

    def to_bytes(self) -> bytes:
        """A header and nothing else."""
        header: dict[str, Any] = {"kind": "control", "id": self.id, "action": self.action}
        if self.action == "rollback":
            return frame(header | {"t": self.t, "epoch": self.epoch, "present": self.present})
        return frame(header | self.change)

    @classmethod
    def from_bytes(cls, value: Payload | None) -> Self:
        """The request."""
        header, payload = unframe(value)
        fields = Fields(header, "control")
        fields.nothing(payload)
        name, action = fields.text("id", 1, 64), fields.one_of("action", ACTIONS)
        if action == "rollback":
            return cls(name, action, {}, fields.count("t"), fields.count("epoch"), fields.count("present"))
        return cls(name, action, changes(fields))
