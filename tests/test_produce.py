"""Tensors from files, pipes and a sampler; and a topic filled with them, on a real Apache Kafka."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice

import numpy as np
import pytest
from click.testing import CliRunner

from stream_ocpdl.cli import main
from stream_ocpdl.errors import ConfigError, DataError
from stream_ocpdl.sources import from_file, from_pipe, painted, walk
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.assembly import whole
from stream_ocpdl.stream.filling import MARK, written
from stream_ocpdl.stream.messages import Tensor
from stream_ocpdl.stream.snapshots import load
from tests.test_kafka import ROOT, eventually, model  # noqa: F401  (fixtures)

STACK = np.arange(120.0).reshape(10, 4, 3)


def values(tensors):
    return [np.array(tensor) for tensor in tensors.each]


def test_arrays(tmp_path):
    """A stack of tensors, or one; the file stays on disk. An array of another shape or of objects is refused."""
    np.save(tmp_path / "a.npy", STACK)
    np.savez_compressed(tmp_path / "b.npz", x=STACK, y=STACK[0])
    many = from_file(tmp_path / "a.npy", (4, 3))

    assert many.count == 10
    assert isinstance(next(many.each), np.memmap)
    assert np.array_equal(values(from_file(tmp_path / "b.npz", (4, 3), "y")), STACK[:1])
    with pytest.raises(ConfigError, match="has x, y: say which with --array"):
        from_file(tmp_path / "b.npz", (4, 3))
    with pytest.raises(DataError, match="has no array 'z'"):
        from_file(tmp_path / "b.npz", (4, 3), "z")
    with pytest.raises(DataError, match=r"has shape \[10, 4, 3\], not \[3, 4\]"):
        from_file(tmp_path / "a.npy", (3, 4))


def test_a_walk_over_an_image():
    """Patches from within it, each near the one before, the same for the same seed, and in time from everywhere."""
    image = np.arange(40 * 30.0).reshape(40, 30)[..., None] * np.ones(3)
    corners = [patch[0, 0, 0] for patch in islice(walk(image, (12, 12, 3), 1), 3000)]
    rows, columns = np.divmod(corners, 30)

    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (0, 28, 0, 18)
    assert max(np.abs(np.diff(rows)).max(), np.abs(np.diff(columns)).max()) <= 3
    assert corners == [patch[0, 0, 0] for patch in islice(walk(image, (12, 12, 3), 1), 3000)]
    with pytest.raises(DataError, match=r"has shape \[40, 30, 3\], smaller than a patch of \[12, 31, 3\]"):
        next(walk(image, (12, 31, 3), 1))


def test_a_painted_picture():
    """Colours between dark and bright, the same for the same seed."""
    image = painted(64, 5, seed=3)

    assert image.shape == (64, 64, 3)
    assert 0 <= image.min() < 0.2 < 0.5 < image.max() <= 1
    assert np.array_equal(image, painted(64, 5, seed=3))
    assert not np.array_equal(image, painted(64, 5, seed=4))


def header(shape):
    """The beginning of a .npy file that claims to have this shape."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


BROKEN = {
    "cut.npy": (b"\x93NUMPY\x01\x00v", DataError),
    "text.npy": (b"hello", DataError),
    "empty.npy": (b"", DataError),
    "text.npz": (b"PK nothing", DataError),
    "no.png": (b"\x89PNG no", DataError),
    "clip.mp4": (b"", ConfigError),
    "what.xyz": (b"", ConfigError),
    "missing.npy": (None, ConfigError),
    "missing.csv": (None, ConfigError),
    "long.csv": (b'1,"' + b"x" * 200_000 + b'"', DataError),
    "huge.npy": (header("(4000000000000, 4, 3)"), DataError),
    "odd.npy": (header("(-1, 4, 3)"), DataError),
}


@pytest.mark.parametrize(("name", "content", "error"), [(n, *c) for n, c in BROKEN.items()], ids=BROKEN)
def test_files_that_are_none(tmp_path, name, content, error):
    """A file that is damaged, unknown or missing is an error that names it."""
    if name.endswith(".png"):
        pytest.importorskip("PIL")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=name):
        values(from_file(tmp_path / name, (4, 3)))


def test_files_with_the_wrong_name(tmp_path):
    """A .npz that is called .npy, and the other way round, is said to be."""
    np.savez(tmp_path / "a.npz", x=STACK)
    np.save(tmp_path / "b.npy", STACK)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    for name in ("a.npy", "b.npz"):
        with pytest.raises(DataError, match="call it so"):
            from_file(tmp_path / name, (4, 3))
    with pytest.raises(ConfigError, match="windows of a table have two modes"):
        from_file(tmp_path / "t.csv", (4, 3, 2))


def test_objects_are_never_unpickled(tmp_path):
    """A file with pickled objects is refused: it could run code."""
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        from_file(tmp_path / "a.npy", (1,))


def test_windows_of_a_table(tmp_path):
    """Windows of rows, a stride apart; names are left out, an empty cell is NaN; mistakes are said with their line."""
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{k},{10 * k}\n" for k in range(5)) + "5,\n")

    assert [X[0, 0] for X in values(from_file(path, (2, 2)))] == [0, 2, 4]
    assert [X[0, 0] for X in values(from_file(path, (3, 2), stride=1))] == [0, 1, 2, 3]
    assert np.isnan(values(from_file(path, (2, 2)))[2][1, 1])
    path.write_text("1,2\n3,x\n")
    with pytest.raises(DataError, match="line 2, cell 2: 'x' is no number"):
        values(from_file(path, (2, 2)))
    path.write_text("1,2\n3\n")
    with pytest.raises(DataError, match="line 2 has 1 cells, not 2"):
        values(from_file(path, (2, 2)))


def test_patches_of_an_image(tmp_path):
    """Patches in grey or in colour, windows of frames of an animation."""
    Image = pytest.importorskip("PIL.Image")
    grey = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8))
    grey.save(tmp_path / "g.png")
    frames = [Image.fromarray(np.full((6, 8), 60 * k, np.uint8)) for k in range(4)]
    frames[0].save(tmp_path / "c.gif", save_all=True, append_images=frames[1:])

    assert from_file(tmp_path / "g.png", (3, 4)).count == 4
    assert [X[0, 0] for X in values(from_file(tmp_path / "g.png", (3, 4)))] == [0, 4, 24, 28]
    assert from_file(tmp_path / "g.png", (3, 4), stride=1).count == 4 * 5
    assert values(from_file(tmp_path / "g.png", (6, 8, 3)))[0].shape == (6, 8, 3)
    assert [X[0, 0, 0] for X in values(from_file(tmp_path / "c.gif", (2, 6, 8)))] == [0, 120]
    with pytest.raises(DataError, match="smaller than a patch"):
        from_file(tmp_path / "g.png", (7, 8))


def test_without_pillow(tmp_path, monkeypatch):
    """Where Pillow is missing the line says what to install."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    (tmp_path / "g.png").write_bytes(b"")
    with pytest.raises(ConfigError, match="pip install pillow"):
        from_file(tmp_path / "g.png", (3, 4))


def test_a_pipe():
    """Arrays one after the other, tensors or stacks of them; one that is cut short is named."""
    pipe = io.BytesIO()
    for part in (STACK[0], STACK[1:4], STACK[4]):
        np.save(pipe, part)
    whole = pipe.getvalue()

    assert np.array_equal(values(from_pipe(io.BytesIO(whole), (4, 3))), STACK[:5])
    assert values(from_pipe(io.BytesIO(b""), (4, 3))) == []
    tensors = from_pipe(io.BytesIO(whole[:-5]), (4, 3)).each
    assert sum(1 for _, _ in zip(range(4), tensors, strict=False)) == 4
    with pytest.raises(DataError, match="array 3 of standard input"):
        next(tensors)
    with pytest.raises(DataError, match="array 1 of standard input"):  # larger than any memory
        next(from_pipe(io.BytesIO(header("(4000000000000, 4, 3)")), (4, 3)).each)


@pytest.fixture
def there(model):  # noqa: F811
    """A model whose topics every broker has heard of."""
    kafka.await_topics(model.connection, [model.topics.input])
    for partition in (0, 1):
        assert eventually(lambda p=partition: model.high("input", p) == 0)
    return model


@pytest.fixture
def produce(there, tmp_path):
    """A function that calls `produce` for a model."""
    model = there  # noqa: F811

    def call(*words, code=0, given=None):
        model.settings.save(tmp_path / "service.json")
        command = ["produce", *map(str, words), "--config", str(tmp_path / "service.json")]
        result = CliRunner().invoke(main, command, input=given)
        assert result.exit_code == code, result.output
        return result.output

    return call


def arrived(model):  # noqa: F811
    """The tensors of the input in the order in which a model takes them: one of each partition in turn."""
    records = [list(whole(kafka.read_committed(model.connection, model.topics.input, p))) for p in (0, 1)]
    turns = [r for pair in zip(records[0], [*records[1], None], strict=False) for r in pair if r is not None]
    return [Tensor.from_bytes(r.value).array for r in turns]


def test_a_file_arrives_in_its_order(model, produce, tmp_path):  # noqa: F811
    """Round the partitions, in order, once; a second time with --resume nothing is written."""
    np.save(tmp_path / "a.npy", STACK)

    assert "10 tensors written" in produce(tmp_path / "a.npy", "--run", "one")
    assert np.array_equal(arrived(model), STACK)
    assert "0 tensors written" in produce(tmp_path / "a.npy", "--run", "one", "--resume")
    assert model.end() == {0: 5, 1: 5}
    *_, said = produce(tmp_path / "a.npy", "--run", "one", "--resume", "--json").splitlines()
    assert json.loads(said) == {"run": "one", "topic": model.topics.input, "written": 0, "there": 10}
    assert "10 tensors written" in produce(tmp_path / "a.npy", "--run", "on", "--resume")  # another, with such a name
    np.save(pipe := io.BytesIO(), STACK[:3])
    assert "2 tensors written" in produce("-", "--count", "2", given=pipe.getvalue())


def test_what_is_missing_is_written(model, produce, tmp_path):  # noqa: F811
    """A run of which any tensors are there is made whole: each number once, whoever was killed when."""
    np.save(tmp_path / "a.npy", STACK)
    produce(tmp_path / "a.npy", "--run", "one", "--count", "7")
    kafka.produce(model.connection, model.topics.input, [(0, b"of somebody else")])

    assert "3 tensors written" in produce(tmp_path / "a.npy", "--run", "one", "--resume")
    assert written(model.connection, model.topics.input, "one") == set(range(10))


def test_pieces_count_when_they_are_whole(model, produce):  # noqa: F811
    """Of a tensor in pieces the last has the mark: one that was cut short is written again."""
    model.set(problem={"shape": [600, 400], "rank": 2})
    produce("sampler", "--count", "2", "--run", "large")
    marked = [
        [MARK in dict(r.headers) for r in kafka.read_committed(model.connection, model.topics.input, p)] for p in (0, 1)
    ]

    assert marked == [[False, False, True]] * 2
    assert written(model.connection, model.topics.input, "large") == {0, 1}
    assert len(arrived(model)) == 2


def test_killed_and_resumed(there, tmp_path):
    """A run that is killed in the middle, twice, and resumed each time, has every tensor once."""
    model = there  # noqa: F811
    model.settings.save(tmp_path / "service.json")
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((3000, 4, 3)))
    words = ["produce", "a.npy", "--config", "service.json", "--run", "k", "--resume"]
    command = [sys.executable, "-m", "stream_ocpdl", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for rate, end in (("400", signal.SIGKILL), ("400", signal.SIGINT), (None, None)):
        more = [] if rate is None else ["--rate", rate]
        before = sum(model.end().values())
        with subprocess.Popen([*command, *more], cwd=tmp_path, env=environment) as life:
            if end is not None:
                assert eventually(lambda before=before: sum(model.end().values()) > before + 100)
                life.send_signal(end)
            assert life.wait(60) == {signal.SIGKILL: -9, signal.SIGINT: 0, None: 0}[end]
            time.sleep(0.2)

    assert sum(model.end().values()) == 3000
    assert written(model.connection, model.topics.input, "k") == set(range(3000))


def test_the_sampler_and_its_truth(model, produce, tmp_path):  # noqa: F811
    """The sampler's dictionary is written, and its tensors are mixtures of it."""
    produce("sampler", "--count", "20", "--truth", tmp_path / "t.npz", "--seed", "7")
    loadings = load(tmp_path / "t.npz")
    atoms = np.einsum("ir,jr->rij", *loadings).reshape(2, -1).T
    found = np.stack([X.ravel() for X in arrived(model)]).T
    rest = found - atoms @ np.linalg.lstsq(atoms, found, rcond=None)[0]

    assert np.linalg.norm(rest) < 0.2 * np.linalg.norm(found)


def test_mistakes(model, produce, tmp_path):  # noqa: F811
    """Each is one line that says what to do."""
    assert "say which with --run" in produce("sampler", "--resume", code=2)
    assert "--run must be" in produce("sampler", "--run", "a b", code=2)
    assert "cannot be read: No such file" in produce("nothing.npy", code=2)
    np.save(tmp_path / "a.npy", STACK.reshape(10, 3, 4))
    assert "has shape" in produce(tmp_path / "a.npy", code=3)
    model.set(input={"topic": model.topics.input, "format": "json"})
    assert "reads its input as json" in produce("sampler", code=2)
    assert sum(model.end().values()) == 0
