"""What an account must be allowed to do, as an authorizer of Kafka counts it: operations on resources, an ACL each."""

from typing import Literal, NamedTuple

Operation = Literal["Read", "Write", "Describe", "DescribeConfigs", "Create"]
Kind = Literal["topic", "group", "transactional-id"]


class Permission(NamedTuple):
    """One ACL."""

    operation: Operation
    kind: Kind
    name: str
    why: str = ""
    prefixed: bool = False
    """Whether all are meant whose name begins so."""

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name}{'…' if self.prefixed else ''}"

    def command(self, servers: str, principal: str) -> str:
        """What gives it to an account.

        >>> Permission("Write", "topic", "weather.codes").command("kafka:9092", "User:learner")[-76:]
        '--add --allow-principal User:learner --operation Write --topic weather.codes'
        """
        return (
            f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal {principal}"
            f" --operation {self.operation} --{self.kind} {self.name}"
            f"{' --resource-pattern-type prefixed' if self.prefixed else ''}"
        )

    def missing(self, servers: str = "…", principal: str = "User:…") -> str:
        """The line for somebody who has to mend it."""
        why = f" ({self.why})" if self.why else ""
        return f"the broker denies us {self}{why}; allow it with: {self.command(servers, principal)}"


def own_ids(group: str) -> Permission:
    """The ids of a group whose members have one each, which nobody knows before.

    >>> str(own_ids("weather.encoders"))
    'Write on transactional-id weather.encoders.…'
    """
    return Permission("Write", "transactional-id", f"{group}.", "exactly once", prefixed=True)
