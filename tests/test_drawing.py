"""Draws of several chains on a topic of a real Apache Kafka: each once, in order, cut short and gone on with."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.samplers import Chain, Ising
from stream_ocpdl.samplers.named import named
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.drawing import Numbers, drawn
from stream_ocpdl.stream.messages import Draw, Tensor, split
from tests.test_kafka import model  # noqa: F401  (fixtures)
from tests.test_produce import produce, there  # noqa: F401  (fixtures)


def arrived(model):  # noqa: F811
    """(partition, draw) of the input, partition by partition."""
    found = []
    for p in (0, 1):
        records = list(whole(kafka.read_committed(model.connection, model.topics.input, p)))
        found += [(p, Draw.from_bytes(r.value)) for r in records]
        assert all(r.key == Draw.from_bytes(r.value).key for r in records)
    return found


@given(st.lists(st.integers(0, 12)))
def test_numbers_are_a_set(draws):
    """Whatever comes, in whatever order and how often: what is there, what is last, and in as few runs as can be."""
    numbers = Numbers()
    for draw in draws:
        numbers.add(draw)
    apart = all(a[1] < b[0] for a, b in zip(numbers.runs, numbers.runs[1:], strict=False))

    assert {n for n in range(15) if n in numbers} == set(draws)
    assert numbers.last == max(draws, default=-1)
    assert apart


def test_chains_side_by_side(model, produce):  # noqa: F811
    """Three Ising chains: each in one partition and in its order, with the draws that its seed has; then some more."""
    model.set(problem={"shape": [4, 3], "rank": 2}, axes=["row", "column"])
    words = ("ising", "--chains", "3", "--with", "temperature=3", "--seed", "5", "--run", "i")
    assert "12 tensors written" in produce(*words, "--count", "4")
    assert "it has 12 already" in (said := produce(*words, "--count", "6", "--resume"))
    assert "6 tensors written" in said
    found = arrived(model)

    for chain in range(3):
        mine = [(p, d) for p, d in found if d.chain == chain]
        assert [(p, d.draw) for p, d in mine] == [(chain % 2, n) for n in range(6)]
        assert {(d.run, d.sampler, d.tuning, d.tensor.axes) for _, d in mine} == {
            ("i", "ising", False, ("row", "column"))
        }
        expected = list(islice(Chain(Ising((4, 3), 3.0), 5, chain), 6))
        assert np.array_equal([d.tensor.array for _, d in mine], expected)


def test_what_is_missing_of_a_chain_is_written(model, produce):  # noqa: F811
    """Draws of other runs do not count, nor pieces that make no whole, nor what cannot be read."""
    X = Tensor(np.ones((4, 3)))
    value = Draw(X, "m", 0, 3).to_bytes()
    rows = [
        (b"m:0", Draw(X, "m", 0, 1).to_bytes()),
        (b"m:0", Draw(X, "other", 0, 2).to_bytes()),
        (b"m:0", b"nonsense"),
        (b"m:0", next(iter(split(value, "id", 100))).to_bytes()),
        (b"else:0", Draw(X, "else", 0, 4).to_bytes()),
    ]
    writer = kafka.Writer(model.connection)
    for key, content in rows:
        assert writer.write(model.topics.input, content, key, 0, 10.0)
    writer.flush()
    assert "4 tensors written" in (said := produce("markov", "--count", "5", "--run", "m", "--resume"))

    assert "1 chains fill 1 partitions" in said
    assert drawn(model.connection, model.topics.input, "m")[0].runs == [(0, 5)]


def test_a_graph_and_a_density(model, produce, tmp_path, monkeypatch):  # noqa: F811
    """Motifs of an edge list; a user's density with a map; without the map the error says what a model needs."""
    (tmp_path / "edges.txt").write_text("a b\nb c\nc a\nc d\n")
    (tmp_path / "mine_of_the_test.py").write_text(
        "import numpy as np\ndef bell(x): return -float((x * x).sum())\ndef positive(x): return np.exp(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    model.set(problem={"shape": [3, 3], "rank": 2})
    produce("motif", "--with", f"edges={tmp_path / 'edges.txt'}", "--count", "5", "--run", "g")
    density = ("metropolis", "--with", "density=mine_of_the_test:bell", "--with", "scale=0.2", "--count", "5")
    said = produce(*density, code=3)
    produce(*density, "--run", "d", "--with", "map=mine_of_the_test:positive")
    draws = [d for _, d in arrived(model)]

    assert "map draws to nonnegative tensors" in said
    assert "signed constraints" in said
    assert [d.draw for d in draws if d.run == "d"] == list(range(5))
    assert {d.tensor.array.dtype.str for d in draws if d.run == "g"} == {"|u1"}
    assert all((d.tensor.array == d.tensor.array.T).all() for d in draws if d.run == "g")


MISTAKES = [
    (("ising", (4,), {}), "two modes"),
    (("motif", (4, 3), {}), "square"),
    (("motif", (3, 3), {}), "edges=FILE"),
    (("motif", (3, 3), {"edges": "/nothing"}), "cannot be read"),
    (("metropolis", (3,), {}), "density=MODULE:FUNCTION"),
    (("metropolis", (3,), {"density": "nothing"}), "is no function"),
    (("metropolis", (3,), {"density": "math:pi"}), "is no function but a float"),
    (("ising", (4, 4), {"heat": "3"}), "it has temperature, field, sweeps"),
    (("ising", (4, 4), {"temperature": "warm"}), "must be a number"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_samplers_that_nobody_has(words, said):
    """Each mistake is named."""
    kind, shape, told = words
    with pytest.raises(ConfigError, match=said):
        named(kind, shape, 2, 0, told)


def test_mistakes(model, produce):  # noqa: F811
    """Samplers stand alone, and have their own keys; files have no chains."""
    assert "stands alone" in produce("ising", "sampler", code=2)
    assert "keys of their own" in produce("ising", "--key", "a", code=2)
    assert "--with and --chains are for" in produce("sampler", "--chains", "2", code=2)
    assert sum(model.end().values()) == 0
