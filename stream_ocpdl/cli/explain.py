"""`stream-ocpdl explain`: what became of one record of the input, and what the model makes of it."""

import json
from pathlib import Path
from typing import Any

import click

from stream_ocpdl.cli.options import Reading, reached, with_settings
from stream_ocpdl.cli.tap import line, safe, short
from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.ocpdl.arrays import BigArray, Sparse
from stream_ocpdl.ocpdl.explanation import Explanation
from stream_ocpdl.ocpdl.explanation import explain as explained
from stream_ocpdl.stream.describing import described, moment
from stream_ocpdl.stream.history import records_of
from stream_ocpdl.stream.kafka import Connection
from stream_ocpdl.stream.letters import Choice, read_letters
from stream_ocpdl.stream.lookup import Fate, code_of, fate, nearest, record_at, tensor_of
from stream_ocpdl.stream.messages import Code, DeadLetter, JournalRecord, Position, Record, Snapshot, Tensor
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.sampling import place
from stream_ocpdl.stream.snapshots import published
from stream_ocpdl.stream.topics import TopicJournal, Topics

Told = dict[str, Any]


@click.command()
@with_settings
@click.argument("where", metavar="[TOPIC:]PARTITION:OFFSET")
@click.option(
    "--atoms", type=click.IntRange(1), default=5, show_default=True, help="How many atoms, and indices a mode."
)
@click.option("--json", "as_json", is_flag=True, help="The same as JSON on standard output.")
def explain(config: Path | None, overrides: tuple[str, ...], where: str, atoms: int, as_json: bool) -> None:
    """Say what became of one record of the input.

    Which step learned it, with what code; or why it was refused. The place is one of the input, or of a code or dead
    letter, which speaks of one. Shows the atoms it is made of, by their share in the reconstruction, and where in each
    mode it differs from that. The dictionary is the published one nearest to that of the code; what is no longer to be
    found is said, and is no error.

    Example: stream-ocpdl explain 0:3 --config service.yaml
    """
    settings, connection = reached(config, overrides)
    plan, topics = settings.plan(), settings.topics()
    if plan.rounds is not None:
        raise ConfigError(
            f"{plan.model} learns from partials, in which single tensors are not told apart; each has its code with"
            " encoders.emit: both, which stream-ocpdl tap codes shows"
        )
    position = meant(connection, topics, where)
    told: Told = {"topic": topics.input, "partition": position.partition, "offset": position.offset, "missing": []}
    record = record_at(connection, topics.input, position)
    if record is None:
        told["missing"].append("the record: it is not there (any more)")
    else:
        told["record"] = described(record, plan.format, plan.shape)
    shard = position.partition % settings.shards
    found = fate(
        records_of(TopicJournal(connection, topics.journal, shard)), position, Reading("records of the journal")
    )
    told |= outcome(found) | {"shard": shard}
    if found.refused is not None:
        told["letter"] = letter(connection, topics, position, told)
    if found.learned is not None:
        told |= seen(connection, plan, record, found.learned, atoms, told)
    click.echo(json.dumps(told, indent=1, allow_nan=False) if as_json else "\n".join(page(safe(told))))


def meant(connection: Connection, topics: Topics, where: str) -> Position:
    """The place in the input that is meant."""
    topic = where.rpartition(":")[0].rpartition(":")[0]
    position = place(where.removeprefix(f"{topic}:") if topic else where)
    if topic in ("", "input", topics.input):
        return position
    for stream, decode in (("codes", Code.from_bytes), ("dead-letters", DeadLetter.from_bytes)):
        name = topics.named(stream)
        if topic in (stream, name):
            record = record_at(connection, name, position)
            if record is None:
                raise ConfigError(f"{name} has no record at {position.partition}:{position.offset}")
            message = decode(record.value)
            return message.position if isinstance(message, Code) else message.record.position
    raise ConfigError(f"{topic} is neither {topics.input}, {topics.codes} nor {topics.dead_letters}")


def outcome(found: Fate) -> Told:
    """What the journal says."""
    told: Told = {"step": None, "epoch": found.epoch, "model_step": found.t}
    if found.learned is not None:
        step = found.learned
        told |= {"outcome": "learned" if found.remembered else "forgotten", "step": step.t, "weight": step.weight}
        told |= {"epoch": step.epoch or 0}
    elif found.refused is not None:
        told |= {"outcome": "refused", "error": found.refused.error, "reason": found.refused.reason}
        told |= {"step": found.refused_at}
    elif found.lost:
        told["outcome"] = "lost"
    elif found.reached is None or found.position.offset >= found.reached:
        told |= {"outcome": "waiting", "reached": found.reached}
    else:
        told["outcome"] = "passed over"
    return told


def letter(connection: Connection, topics: Topics, position: Position, told: Told) -> Told | None:
    """Its dead letter."""
    choice = Choice(places=[f"{position.partition}:{position.offset}"])
    found = next(read_letters(connection, topics.dead_letters, choice), None)
    if found is None:
        told["missing"].append(f"its dead letter: {topics.dead_letters} does not have it")
        return None
    return {"written": moment(found.written), "replayed_from": found.replayed_from, "software": found.letter.software}


def seen(
    connection: Connection, plan: Plan, record: Record | None, step: JournalRecord, atoms: int, told: Told
) -> Told:
    """Its code, and what that makes of it."""
    topics = Topics.of(plan.model, plan.topic, plan.shards)
    position, tensor = Position(told["partition"], told["offset"]), None
    if record is not None:
        position, tensor = tensor_of(connection, plan, record, step)
        if tensor is None:
            told["missing"].append("the tensor: pieces of it are gone, or the topic is another by now")
    code = code_of(connection, topics.codes, position, -1 if record is None else record.timestamp, Reading("codes"))
    if code is None:
        told["missing"].append(f"its code: {topics.codes} does not have it (any more)")
        return {}
    found: Told = {"dictionary": str(code.dictionary), "loss": code.loss}
    found["code"] = {str(r): float(h) for r, h in enumerate(code.code) if h != 0}
    snapshot = nearest(published(connection, topics.snapshots), code.dictionary)
    if snapshot is None:
        told["missing"].append(f"a dictionary: {topics.snapshots} has none of epoch {code.dictionary.epoch}")
        return found
    found |= {"snapshot": str(snapshot.version), "steps_apart": snapshot.step - code.dictionary.t}
    if tensor is None:
        return found
    try:
        return found | explanation(
            explained(folded(tensor, snapshot), snapshot.loadings, code.code), snapshot, code, atoms
        )
    except DataError as error:
        told["missing"].append(f"an explanation: {error}")
        return found


def folded(tensor: Tensor, snapshot: Snapshot) -> BigArray:
    """The tensor in the shape of a snapshot's loadings, if it is one of its shape."""
    array, layout = tensor.array, snapshot.layout
    X = array.whole() if isinstance(array, Sparse) else array
    return X if layout is None or X.shape != layout.shape else layout.fold(X)


def explanation(made: Explanation, snapshot: Snapshot, code: Code, atoms: int) -> Told:
    """Atoms and residual, for machines."""
    names = snapshot.modes
    modes = [
        {"mode": name, "largest": [{"index": k, "share": float(made.residual[i][k])} for k in made.largest(i, atoms)]}
        for i, name in enumerate(names)
    ]
    strongest = made.strongest(atoms)
    return {
        "energy": made.energy,
        "error": made.error,
        "explained": made.explained,
        "atoms": [{"atom": r, "share": float(made.shares[r]), "code": float(code.code[r])} for r in strongest],
        "residual": modes,
        "worst": {"cell": list(made.worst), "difference": made.difference},
    }


def page(told: Told) -> list[str]:
    """All of it for people."""
    head = f"{told['topic']} {told['partition']}:{told['offset']}"
    lines = [f"{head}: {said(told)}"]
    if "record" in told:
        lines.append(line(told["record"]).strip())
    if told.get("letter"):
        before = f", sent back from {told['letter']['replayed_from']}" if told["letter"]["replayed_from"] else ""
        lines.append(f"dead letter of {told['letter']['written']}{before}")
    if "dictionary" in told:
        lines.append(f"coded with {told['dictionary']}, loss {short(told['loss'])}, {len(told['code'])} atoms not zero")
    if "snapshot" in told:
        lines.append(f"under the dictionary {told['snapshot']}{apart(told['steps_apart'])}")
    if "atoms" in told:
        lines += pictured(told)
    return lines + [f"not found: {what}" for what in told["missing"]]


def said(told: Told) -> str:
    """What became of it."""
    at = f"of epoch {told['epoch']}, shard {told['shard']}; the model is at step {told['model_step']}"
    learned = f"learned by step {told['step']} {at}"
    reached = told.get("reached")
    return {
        "learned": learned,
        "forgotten": f"{learned}, and has forgotten it: it went back to an earlier step since",
        "refused": f"refused after step {told['step']} {at}\n{told.get('error')}: {told.get('reason')}",
        "lost": "neither learned nor refused: it was gone before it was read, and the journal notes it as lost",
        "waiting": f"not learned yet; its partition is done up to {'nothing' if reached is None else reached} {at}",
        "passed over": "below what is done, and not in the journal: before the model's start, or never committed",
    }[str(told["outcome"])]


def apart(steps: int) -> str:
    """How near a dictionary is to that of the code."""
    if steps == 0:
        return ", the very one of the code"
    away = f"{abs(steps)} step{'s' * (abs(steps) > 1)}"
    if steps < 0:
        return f", {away} older than that of the code: what follows is nearly so"
    return f", {away} younger than that of the code, for there is no older one: what follows is nearly so"


def pictured(told: Told) -> list[str]:
    """Atoms and residual, for people."""
    worst = told["worst"]
    lines = [
        f"explained {told['explained']:.1%}: of ‖X‖² = {short(told['energy'])} the atoms leave {short(told['error'])}"
    ]
    lines += [
        f"  atom {a['atom']:4}  {a['share']:7.1%} of the reconstruction, code {short(a['code'])}" for a in told["atoms"]
    ]
    if told["error"] > 0:
        lines.append("the rest by mode, indices with the largest shares:")
        for mode in told["residual"]:
            shares = ", ".join(f"{entry['index']} ({entry['share']:.1%})" for entry in mode["largest"])
            lines.append(f"  {mode['mode']}: {shares}")
        cell = ", ".join(map(str, worst["cell"]))
        lines.append(
            f"  most at ({cell}): {abs(worst['difference']):.4g} {'more' if worst['difference'] > 0 else 'less'}"
        )
    return lines
