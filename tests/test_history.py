"""The past for people: versions, comparisons, files, and a model rebuilt and audited without a broker."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl.audit import Past
from stream_ocpdl.cli import main
from stream_ocpdl.cli.replay import rebuilt, windowed, write
from stream_ocpdl.errors import ConfigError, InputLost, LineageError, StateError
from stream_ocpdl.ocpdl.schedules import Balanced, Constant, PowerLaw, name_of, named
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL
from stream_ocpdl.stream.checkpoint import DirectoryStore, ReadOnly, manifest_of
from stream_ocpdl.stream.messages import Snapshot, Version
from stream_ocpdl.stream.snapshots import Published, choose, load, save
from stream_ocpdl.stream.starting import Start, warm_from
from tests.fakes import Journal, Source, Store
from tests.test_events import learned, plan, rollback


def published(world):
    return [Published(Snapshot.from_bytes(value), 0, value) for value in world.stream("snapshots")]


def past(world, source=None, said=None):
    store = ReadOnly(Store(world, str))
    return Past(
        plan(), source or Source(world), Journal(world), store, SERIAL, (said if said is not None else []).append
    )


class Trimmed(Source):
    """An input whose first records are gone."""

    def __init__(self, world, low):
        super().__init__(world)
        self.low = low

    def earliest(self):
        return dict.fromkeys(self.partitions, self.low)

    def start(self, positions):
        if any(offset < self.low for offset in positions.values()):
            raise InputLost("gone")
        super().start(positions)


# ── versions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_choosing_a_version():
    """By step it is that of the newest epoch; by epoch and step, or its whole name, the one that is meant."""
    world, _ = learned((8, rollback("a", 2)))
    found = published(world)

    names = {text: str(choose(iter(found), text)[0].snapshot.version) for text in ("latest", "4", "0/4", "model/0/0/4")}
    assert names == {"latest": "model/0/1/4", "4": "model/0/1/4", "0/4": "model/0/0/4", "model/0/0/4": "model/0/0/4"}
    assert [one.snapshot.version for one in choose(iter(found), "0/4", "1")] == [
        Version("model", 4),
        Version("model", 1),
    ]
    with pytest.raises(ConfigError, match="no snapshot 5; those on the topic go from model/0/0/1 to model/0/1/4"):
        choose(found, "5")
    with pytest.raises(ConfigError, match="no snapshot was published"):
        choose([], "latest")
    with pytest.raises(ConfigError, match="no snapshot of shard 1 was published"):
        choose(found, "latest", shard=1)


def test_a_version_of_another_shard():
    """Its whole name says which; all else is of the shard that is meant, and so is what an audit counts."""
    world, _ = learned()
    found = published(world)
    other = [replace(one.snapshot, version=one.snapshot.version._replace(shard=1)) for one in found]
    both = [*found, *(Published(snapshot, 0, snapshot.to_bytes()) for snapshot in other)]

    assert choose(both, "model/1/0/4", "4")[0].snapshot.version == Version("model", 4, 1)
    assert choose(both, "4", shard=1)[0].snapshot.version == Version("model", 4, 1)
    assert choose(both, "latest")[0].snapshot.version == Version("model", 12)
    audit = past(world).audit(both)
    assert len(audit.published) == len(audit.agree) == len(found)


def test_loadings_in_files(tmp_path):
    """What was saved is read; what is no such file, or a pickle, is refused in one line."""
    loadings = [np.random.default_rng(0).random((n, 2)) for n in (3, 11)]
    save(tmp_path / "a.npz", loadings, "model/0/0/4")

    assert all(map(np.array_equal, load(tmp_path / "a.npz"), loadings))
    assert warm_from(None, str(tmp_path / "a.npz")).origin == "file a.npz"
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 no zip")
    np.savez(tmp_path / "c.npz", U1=np.array([{}], object), allow_pickle=True)
    np.save(tmp_path / "d.npy", np.ones(3))
    (tmp_path / "d.npy").rename(tmp_path / "d.npz")
    for name in ("b", "c", "d", "missing"):
        with pytest.raises(ConfigError, match=r"cannot be read as a \.npz file"):
            load(tmp_path / f"{name}.npz")
    with pytest.raises(ConfigError, match="cannot be written"):
        save(tmp_path / "nowhere" / "a.npz", loadings, "x")


@pytest.mark.parametrize("text", ["soon", "2031-05-04T12:00", "2031-13-01", "", "1969-01-01T00:00Z", "5"])
def test_starts_that_are_none(text):
    """A time needs its zone, and has to be one."""
    with pytest.raises(ConfigError, match="start must be earliest, latest or a time"):
        Start.read(text)


@pytest.mark.parametrize("schedule", [PowerLaw(0.76), PowerLaw(0.75, 0.6), PowerLaw(1), Balanced(), Constant(0.05)])
def test_names_of_schedules(schedule):
    """A schedule that is named and read again is the same, to the last bit."""
    assert named(name_of(schedule)) == schedule


@pytest.mark.parametrize(
    "text", ["", "power", "power a", "power 1 2 3", "constant", "balanced 1", "constant nan", "tri 1"]
)
def test_names_that_are_none(text):
    """A name that is none is refused with those that are."""
    with pytest.raises(ConfigError, match="weights"):
        named(text)


# ── rebuilt ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_step_is_rebuilt(tmp_path):
    """Digest and origin are told; both files hold the state."""
    world, end = learned((8, rollback("a", 2)))
    told, lines, good = rebuilt(past(world), 7, 1, tmp_path / "7.state")

    assert good
    assert (
        told["digest"] == end.progress.state.digest() == State.from_bytes((tmp_path / "7.state").read_bytes()).digest()
    )
    assert told["base"] >= 0
    assert any("made from the checkpoint" in line for line in lines)
    world.checkpoints = []
    again, lines, _ = rebuilt(past(world), 7, None, tmp_path / "7.npz")
    assert (again["digest"], again["base"], again["replayed"]) == (told["digest"], -1, 7)
    assert any("made from the genesis" in line for line in lines)
    with np.load(tmp_path / "7.npz") as file:
        assert np.array_equal(file["A"], end.progress.state.aggregates.A)
        assert np.array_equal(file["B"], np.asarray(end.progress.state.aggregates.B))
    with pytest.raises(ConfigError, match="cannot be written"):
        write(Path("/nowhere/x.state"), end.progress.state)


def test_what_cannot_be_rebuilt():
    """Without its input a step is gone, and the window says so; a step behind a kept checkpoint is not."""
    world, _ = learned()
    source = Trimmed(world, 12)
    spans = windowed(past(world, source))[0]["spans"]

    assert [(s["first"], s["last"], s["rebuilt"]) for s in spans] == [
        (0, 0, True),
        (1, 2, False),
        (3, 3, True),
        (4, 6, False),
        (7, 12, True),
    ]
    assert rebuilt(past(world, source), 9, None, None)[0]["replayed"] == 2
    with pytest.raises(InputLost):
        rebuilt(past(world, source), 4, None, None)


def test_an_audit():
    """Everything agrees; a snapshot that was changed differs; one before all that can be replayed is not checked."""
    world, end = learned((8, rollback("a", 2)))
    found = published(world)
    audit = past(world).audit(found)

    assert audit.replayed.progress.state.digest() == end.progress.state.digest()
    assert (len(audit.agree), audit.differ, audit.unchecked) == (4, [], [])
    other = replace(found[1].snapshot, tensors=7)
    forged = [found[0], Published(other, 0, other.to_bytes()), *found[2:]]
    assert past(world).audit(forged).differ == [Version("model", 4)]
    newer = [Published(one.snapshot, 0, replace(one.snapshot, software="x").to_bytes()) for one in found]
    newer = [Published(Snapshot.from_bytes(one.value), 0, one.value) for one in newer]
    assert len(past(world).audit(newer).agree) == 4


def test_an_audit_of_what_is_left():
    """It begins with the first checkpoint after which all input is there; without any there is nothing to be said."""
    world, end = learned()
    audit = past(world, Trimmed(world, 12)).audit(published(world))

    assert audit.replayed.base == 7
    assert audit.replayed.progress.state.digest() == end.progress.state.digest()
    assert [version.t for version in audit.unchecked] == [1, 4]
    assert [version.t for version in audit.agree] == [8, 12]
    world.checkpoints = []
    with pytest.raises(LineageError, match="nothing can be replayed"):
        past(world, Trimmed(world, 20)).audit([])


def test_looking_changes_nothing(tmp_path):
    """A store that is only looked at keeps what it has, also what is refused."""
    world, end = learned()
    store = DirectoryStore(tmp_path, "model")
    store.open()
    store.save(replace(manifest_of(plan(), end.progress, 3, "x"), link="0" * 64), end.progress.state.parts)
    before = sorted(tmp_path.rglob("*"))
    rebuilt(replace(past(world), store=ReadOnly(store)), 7, None, None)

    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(StateError, match="only looked at"):
        ReadOnly(store).save(None, None)


def test_a_checkpoint_of_long_ago_stays(tmp_path):
    """The one that was just written is not the one to be removed, also if all others are newer."""
    _, end = learned()
    store = DirectoryStore(tmp_path, "model")
    store.open()
    for offset in (10, 11, 12, 4):
        store.save(manifest_of(plan(), end.progress, offset, "x"), end.progress.state.parts)

    assert [candidate.manifest.journal_offset for candidate in store.candidates()] == [12, 11, 4]


MISTAKES = {
    "two at once": (["replay", "--window", "--audit"], "exclude each other"),
    "out of nothing": (["replay", "--out", "x.npz"], "--out and --epoch go with --to-step"),
    "another file": (["replay", "--to-step", "1", "--out", "x.txt"], "must end with .npz or .state"),
    "no change": (["reconfigure"], "there is nothing to change"),
    "no weights": (["reconfigure", "--weights", "heavy"], "weights must be"),
    "no radius": (["reconfigure", "--radius", "-1"], "radius must be a positive number"),
    "no place": (["dlq", "list", "--at", "0:x"], "--at must be a partition and an offset, such as 0:1200, not '0:x'"),
    "less than nothing": (["reconfigure", "--ridge", "-1"], "ridge must be nonnegative"),
}


@pytest.mark.parametrize(("words", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told_before_anything_is_asked(words, said):
    """One line, code 2, and no broker is needed for it."""
    result = CliRunner().invoke(main, words)

    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
