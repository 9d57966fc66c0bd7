"""What became of one record: the mathematics, the journal's word, and the command on a real Apache Kafka."""

import json
import uuid

import numpy as np
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from stream_ocpdl import TensorProducer, read_codes, read_snapshots
from stream_ocpdl.cli import main
from stream_ocpdl.errors import DataError
from stream_ocpdl.ocpdl.aggregates import reconstruction
from stream_ocpdl.ocpdl.explanation import explain
from stream_ocpdl.ocpdl.synthetic import chain, truth
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.lookup import Fate, fate
from stream_ocpdl.stream.messages import JournalRecord, Position, Refused, Target, Tensor
from tests.test_kafka import PARTITIONS, Model, eventually, learned, lingering, model, process  # noqa: F401  (fixtures)
from tests.test_kafka_lost import trim

RANDOM = np.random.default_rng(0)


def dictionary(*shape, rank=3):
    return [RANDOM.random((rows, rank)) for rows in shape]


@pytest.mark.parametrize("shape", [(5,), (4, 3), (3, 4, 2), (2, 3, 2, 2)])
def test_shares_are_those_of_their_definition(shape):
    """Energy, error and shares are those of sums over all cells; shares of atoms and of each mode add up to one."""
    loadings, code, X = dictionary(*shape), RANDOM.random(3), RANDOM.random(shape)
    atoms = [reconstruction([U[:, r : r + 1] for U in loadings], np.ones(1)) * code[r] for r in range(3)]
    full, R = sum(atoms), X - sum(atoms)
    found = explain(X, loadings, code)

    assert np.allclose(reconstruction(loadings, code), full)
    assert np.isclose(found.energy, (X**2).sum())
    assert np.isclose(found.error, (R**2).sum())
    assert np.allclose(found.shares, [(atom * full).sum() / (full**2).sum() for atom in atoms])
    assert np.isclose(found.shares.sum(), 1)
    for i, part in enumerate(found.residual):
        assert np.allclose(part, [(np.take(R, k, axis=i) ** 2).sum() / (R**2).sum() for k in range(shape[i])])
    assert abs(R[found.worst]) == np.abs(R).max()
    assert np.isclose(found.difference, R[found.worst])


def test_missing_cells_and_nothing():
    """A cell that was not observed differs from nothing; a code of zeros has no atoms; what does not fit is refused."""
    loadings = [np.eye(2), np.eye(2)]
    gap = explain(np.array([[np.nan, 0.0], [0.0, 3.0]]), loadings, np.array([5.0, 3.0]))
    zero = explain(np.zeros((2, 2)), loadings, np.zeros(2))

    assert (gap.energy, gap.error, gap.explained) == (9.0, 0.0, 1.0)
    assert gap.largest(0, 5) == []
    assert (zero.explained, zero.strongest(5)) == (1.0, [])
    with pytest.raises(DataError, match="do not fit"):
        explain(np.zeros((2, 3)), loadings, np.zeros(2))


def test_the_synthetic_chain_is_the_same_again():
    """The same seed gives the same tensors, and they are mixtures of the truth but for the noise."""
    loadings = truth((6, 5), 2, seed=3)
    first, again = ([next(stream) for stream in [chain(loadings, 3, 0.0)] for _ in range(5)] for _ in range(2))

    assert np.array_equal(first, again)
    flat = np.stack([X.ravel() for X in first])
    assert np.linalg.matrix_rank(flat, tol=1e-9) <= 2


def step(t, *used, **more):
    return JournalRecord("step", "ab" * 32, t=t, used=used, reached={0: used[-1][2] + 1}, **more)


def test_the_word_of_a_journal():
    """Learned, refused, lost, waiting: as the journal says."""
    refusal = Refused(0, 3, "DataError", "no")
    journal = list(enumerate([step(1, (0, 0, 2)), step(2, (0, 4, 6), refused=(refusal,), lost=((0, 7, 7),))]))

    assert fate(journal, Position(0, 1)).learned.t == 1
    assert fate(journal, Position(0, 5)).learned.t == 2
    assert fate(journal, Position(0, 3)).refused == refusal
    assert fate(journal, Position(0, 7)).lost
    unknown = fate(journal, Position(1, 0))
    assert (unknown.learned, unknown.reached) == (None, None)
    assert fate([], Position(0, 0)) == Fate(Position(0, 0))


def test_a_rollback_forgets_and_may_remember_again():
    """A record is forgotten by a state that went back before it, and known to one that went back to a later record."""
    first, second = step(1, (0, 0, 0)), step(2, (0, 1, 1))

    def back(to, offset, epoch):
        return JournalRecord("rollback", "ab" * 32, t=to, reached={0: 9}, epoch=epoch, target=Target(0, to, offset))

    journal = [first, second, back(1, 0, 1), step(2, (0, 2, 2)), back(2, 1, 2)]
    known = [[fate(enumerate(journal[:n]), Position(0, k)).remembered for k in range(3)] for n in (2, 3, 4, 5)]

    assert known == [[True, True, False], [True, False, False], [True, False, True], [True, True, False]]


@pytest.fixture
def told(model, tmp_path):  # noqa: F811
    """A function that calls `explain` for a model."""

    def call(where, *words, code=0):
        model.settings.save(tmp_path / "service.json")
        result = CliRunner().invoke(main, ["explain", where, *words, "--config", str(tmp_path / "service.json")])
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    return call


def test_a_tensor_that_was_learned(model, told):  # noqa: F811
    """Step and dictionary are those of its code; with the very dictionary the error is the loss that was published."""
    lingering(model)
    model.feed()
    model.live()
    code = max(read_codes(model.servers, model.topics.codes), key=lambda code: code.step)  # how many, the clock decides
    where = f"{code.position.partition}:{code.position.offset}"
    found = json.loads(told(where, "--json"))
    snapshot = {s.step: s for s in read_snapshots(model.servers, model.topics.snapshots)}[code.step - 1]

    assert (found["outcome"], found["step"], found["dictionary"]) == ("learned", code.step, str(code.dictionary))
    assert (found["snapshot"], found["steps_apart"]) == (str(snapshot.version), 0)
    assert np.isclose(found["error"], code.loss)
    assert found["missing"] == []
    assert sum(atom["share"] for atom in found["atoms"]) == pytest.approx(1)
    text = told(f"{model.topics.input}:{where}")
    assert f"learned by step {code.step} of epoch 0, shard 0" in text
    assert "the very one of the code" in text
    assert "of the reconstruction" in text
    places = [found for p in PARTITIONS for found in kafka.read_committed(model.connection, model.topics.codes, p)]
    place = places[0].position  # without a key a code may be in any partition
    assert "learned by step" in told(f"codes:{place.partition}:{place.offset}")


def test_what_is_not_there_is_said(learned, told):  # noqa: F811
    """Before a first snapshot a younger one serves; a record that is still to come waits; mistakes are one line."""
    first = told("0:0")

    assert "1 step younger than that of the code" in first
    assert "not found: the record" in told("0:99")
    assert "not learned yet" in told("0:99")
    assert "must be PARTITION:OFFSET" in told("zero", code=2)
    assert "is neither" in told("elsewhere:0:0", code=2)
    assert "has no record at 0:999" in told("dead-letters:0:999", code=2)
    kafka.delete_topics(learned.connection, [learned.topics.codes])
    kafka.create_topics(learned.connection, {learned.topics.codes: (2, {})})
    assert "not found: its code" in told("0:0")


def test_what_was_refused(model, told):  # noqa: F811
    """The class and the reason of the journal, and when its letter was written; also by the place of the letter."""
    lingering(model)
    producer = Producer({"bootstrap.servers": model.servers})
    for value in (Tensor(np.ones((4, 3))).to_bytes(), b"poison\x1b", Tensor(np.ones((3, 4))).to_bytes()):
        producer.produce(model.topics.input, value, partition=0)
    producer.flush(30)
    model.live()
    poison, wrong = told("0:1"), json.loads(told("0:2", "--json"))

    assert "refused after step" in poison
    assert "DecodeError: value has 7 bytes" in poison
    assert "dead letter of 20" in poison
    assert (wrong["outcome"], wrong["error"]) == ("refused", "DataError")
    assert wrong["letter"]["replayed_from"] is None
    assert told("dead-letters:0:0") == poison


def test_a_tensor_in_pieces(model, told):  # noqa: F811
    """Any of its pieces tells of the whole."""
    lingering(model, problem={"shape": [40, 30], "rank": 2})
    with TensorProducer(model.servers, model.topics.input, chunk_bytes=1000) as producer:
        producer.send(np.ones((40, 30)), key=b"k")
    model.live()
    partition = 0 if model.high("input", 0) else 1
    found = [json.loads(told(f"{partition}:{k}", "--json")) for k in (0, 4)]

    assert [one["outcome"] for one in found] == ["learned"] * 2
    assert found[0]["energy"] == found[1]["energy"] == 1200.0


def test_what_retention_took_away(learned, told):  # noqa: F811
    """The journal still knows which step learned a record that is gone, and its code is found all the same."""
    trim(learned, 0, 5)
    found = json.loads(told("0:0", "--json"))

    assert (found["outcome"], found["step"]) == ("learned", 1)
    assert found["missing"] == ["the record: it is not there (any more)"]
    assert found["code"]
    assert "atoms" not in found


def test_a_model_that_went_back(model, told, tmp_path):  # noqa: F811
    """A tensor that a rollback has forgotten is said to be so; one of an earlier step is not."""
    lingering(model)
    model.feed()
    with process(model, tmp_path):
        assert eventually(lambda: len(model.seen("journal")) > 0 and model.last().t >= 4)
        words = ["snapshot", "rollback", "--config", str(tmp_path / "service.json"), "--to-step", "2"]
        assert CliRunner().invoke(main, words).exit_code == 0
    used = {c.step: c.position for c in read_codes(model.servers, model.topics.codes)}
    early, late = (json.loads(told(f"{p}:{k}", "--json")) for p, k in (used[1], used[4]))

    assert (early["outcome"], early["step"]) == ("learned", 1)
    assert (late["outcome"], late["step"], late["epoch"]) == ("forgotten", 4, 0)
    assert "has forgotten it" in told("{}:{}".format(*used[4]))


def test_shards(broker, tmp_path):
    """The journal, the code and the dictionary are those of the shard that has the partition."""
    model = Model(broker, f"test-{uuid.uuid4().hex[:8]}")  # noqa: F811
    lingering(model, shards=2)
    model.topics = model.settings.topics()
    layout = {model.topics.input: (2, {})} | model.topics.outputs(2)
    kafka.create_topics(model.connection, layout)
    model.feed()
    with process(model, tmp_path):
        assert eventually(lambda: len(list(read_codes(model.servers, model.topics.codes))) == 20, 60)
    for partition in (0, 1):
        words = ["explain", f"{partition}:7", "--config", str(tmp_path / "service.json"), "--json"]
        found = json.loads(CliRunner().invoke(main, words).stdout)
        assert (found["outcome"], found["shard"], found["missing"]) == ("learned", partition, [])
        assert found["snapshot"].split("/")[1] == found["dictionary"].split("/")[1] == str(partition)
        assert found["error"] == pytest.approx(found["loss"])
    kafka.delete_topics(model.connection, layout)
