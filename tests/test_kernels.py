"""Kernels against the oracle, compiled and not, in both precisions."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ocpdl.ocpdl import (
    aggregates,
    blocks,
    fewzeros,
    kernels,
    lanes,
    multipliers,
    onerow,
    panels,
    rowgroup,
    rows,
)
from stream_ocpdl.ocpdl.quadratic import objective
from stream_ocpdl.ocpdl.workers import Workers
from tests import laws, paper

SHAPES = [(7,), (4, 6), (3, 5, 2), (2, 3, 4, 2), (1, 1), (300, 3), (3, 700)]


@pytest.fixture(params=["compiled", "interpreted"])
def mode(request, monkeypatch):
    """Run every kernel as Numba made it, and again as Python reads it; not those that are written in LLVM's terms."""
    if request.param == "interpreted":
        for module in (kernels, rows, rowgroup, onerow, blocks):
            for name, function in list(vars(module).items()):
                if hasattr(function, "py_func"):
                    monkeypatch.setattr(module, name, function.py_func)
    return request.param


def draw(shape, dtype, rank=3, b=4):
    random = np.random.default_rng(sum(shape))
    X = random.random((b, *shape)).astype(dtype)
    return X, random.random((b, rank)), [random.random((rows, rank)) for rows in shape]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_aggregation_is_the_papers(shape, dtype, mode):
    """correlate, absorb and the intermediate aggregates of every mode equal their einsum."""
    X, H, loadings = draw(shape, dtype)
    past = aggregates.nothing(shape, 3, dtype)
    got = aggregates.absorb(past, X, float(np.sum(X.astype(float) ** 2)), H, 1.0)
    got = aggregates.absorb(got, X[:2], float(np.sum(X[:2].astype(float) ** 2)), H[:2], 0.3)
    exact = 1e-12 if dtype == "float64" else 1e-6

    A, B = paper.aggregates([(X, H), (X[:2], H[:2])], [1.0, 0.3])
    assert np.allclose(got.A, A, rtol=1e-12)
    assert np.allclose(got.B, B, rtol=exact)
    assert got.B.dtype == dtype
    assert np.allclose(aggregates.correlate(X, loadings), paper.correlations(X, loadings), rtol=1e-12)
    at = aggregates.Intermediate(got, loadings)
    for i in range(len(shape)):
        for ours, theirs in zip(at(i), paper.intermediate(A, B, loadings, i), strict=True):
            assert np.allclose(ours, theirs, rtol=exact)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("R", [1, 2, 5, 8, 9, 24, 25])
@pytest.mark.parametrize(("b", "P", "Q"), [(1, 1, 1), (3, 4, 7), (1, 2, 17), (2, 3, 25), (4, 1, 48), (5, 2, 33)])
def test_panels_are_their_einsums(b, P, Q, R, dtype):
    """Products, codings and absorptions of every size of a panel; nothing is written behind the end."""
    random = np.random.default_rng(b + P + Q + R)
    X, H = random.random((b, P, Q)).astype(dtype), random.random((b, R))
    V, W = random.random((P, R)), random.random((R, Q))
    memory = random.random(R * P * Q + 8).astype(dtype)
    B, guard = memory[:-8].reshape(R, P, Q), memory[-8:].copy()
    codes, folded = np.empty((b, R)), np.empty((R, P))
    wanted = 0.7 * B.astype(float) + np.einsum("jr,jpq->rpq", H, X)
    product = 0.7 * B.astype(float).reshape(R, -1) + H.T @ X.reshape(b, -1)
    other, far, folded_far = B.copy().reshape(R, -1), B.copy(), np.empty((R, P))
    close = 1e-12 if dtype == "float64" else 1e-6

    panels.correlate(X, V, W, codes)
    panels.absorb_and_fold(B, X, H, 0.7, W, folded)
    panels.add_product(0, P * Q, H, X.reshape(b, -1), 0.7, other)
    for lo, hi in ((0, P // 2), (P // 2, P)):
        panels.absorb_and_fold_far(lo, hi, far, X, H, 0.7, W, folded_far)

    assert np.array_equal(far, B)
    assert np.array_equal(folded_far, folded)
    assert np.allclose(codes, np.einsum("jpq,pr,rq->jr", X.astype(float), V, W), rtol=1e-12)
    assert np.allclose(B, wanted, rtol=close)
    assert np.allclose(folded, np.einsum("rpq,rq->rp", B.astype(float), W), rtol=1e-12)  # of B as it was written
    assert np.allclose(other, product, rtol=close)
    assert np.array_equal(memory[-8:], guard)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_in_no_cache_is_absorbed_alike(dtype):
    """A minibatch just too large to be NEAR, and one that is not: the einsum both times, and the far way's bits."""
    random, P, R = np.random.default_rng(0), 100, 5
    limit = panels.NEAR // (3 * P * np.dtype(dtype).itemsize)
    for Q in (limit, limit + 1):
        X, H, W = random.random((3, P, Q)).astype(dtype), random.random((3, R)), random.random((R, Q))
        B, folded, folded_far = random.random((R, P, Q)).astype(dtype), np.empty((R, P)), np.empty((R, P))
        far, wanted = B.copy(), 0.7 * B.astype(float) + np.einsum("jr,jpq->rpq", H, X)

        panels.absorb_and_fold(B, X, H, 0.7, W, folded)
        panels.absorb_and_fold_far(0, P, far, X, H, 0.7, W, folded_far)

        assert np.allclose(B, wanted, rtol=1e-12 if dtype == "float64" else 1e-6)
        assert np.array_equal(B, far)
        assert np.array_equal(folded, folded_far)


def test_small_products():
    """Gram matrices, products with a matrix, transposes."""
    random = np.random.default_rng(0)
    for height, R in ((1, 1), (7, 3), (30, 25), (100, 8)):
        U, Q = random.random((height, R)), random.random((R, R))
        G, Y = np.full((R, R), np.nan), np.full((height, R), np.nan)
        panels.gram(U, G)
        panels.multiply(U, Q, Y)

        assert np.allclose(G, U.T @ U, rtol=1e-13)
        assert np.allclose(Y, U @ Q, rtol=1e-13)
        assert np.array_equal(panels.turned(U), U.T)


def registers(x, y, out, k):
    """Every operation on registers that loads, stores, adds or compares."""
    a = lanes.fma(lanes.load(x, 1), lanes.load_some(y, 2, k), lanes.spread(-3.0))
    b = lanes.larger(a, lanes.load(y, 0)) - lanes.smaller(a, lanes.spread(0.5)) / lanes.spread(4.0)
    lanes.prefetch(x, 3)
    lanes.store_some(out, 1, k, a)
    lanes.store(out, 10, b + lanes.above(a, b) * a)
    return lanes.total(a), lanes.some(a)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("k", [-1, 0, 3, 8, 20])
def test_registers_in_python_are_the_compiled_ones(k, dtype):
    """The same numbers, whatever the dtype in memory, and no lane beyond those asked for."""
    x, y = np.random.default_rng(1).random((2, 20)).astype(dtype)
    ours, theirs = np.zeros(20, dtype), np.zeros(20, dtype)

    assert numba.njit(registers)(x, y, ours, k) == pytest.approx(registers(x, y, theirs, k), rel=1e-14)
    assert np.allclose(ours, theirs, rtol=1e-14 if dtype == "float64" else 1e-6)


def test_lanes_come_from_places_of_their_own():
    """Compiled and in Python: lane l is x[rows[i + l] + columns[j + l]], flat."""
    random = np.random.default_rng(2)
    x, rows, columns = random.random((9, 9)), 9 * random.integers(9, size=24), random.integers(9, size=24)

    def each(out):
        lanes.store(out, 0, lanes.take_each(x, rows, 3, columns, 5))
        return out

    wanted = x.reshape(-1)[rows[3 : 3 + lanes.GROUP] + columns[5 : 5 + lanes.GROUP]]
    assert np.array_equal(each(np.empty(lanes.GROUP)), wanted)
    assert np.array_equal(numba.njit(each)(np.empty(lanes.GROUP)), wanted)


def test_squares_are_turned():
    """Compiled and in Python: rows that are 20 apart become columns that are 30 apart; nothing else is written."""
    x, size = np.random.default_rng(3).random((9, 20)), lanes.GROUP
    wanted = np.zeros((9, 30))
    wanted[1 : 1 + size, 3 : 3 + size] = x[:size, 5 : 5 + size].T

    def turn(out):
        lanes.turn_square(x, 5, 20, out, 33, 30)
        return out

    assert np.array_equal(turn(np.zeros((9, 30))), wanted)
    assert np.array_equal(numba.njit(turn)(np.zeros((9, 30))), wanted)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_batch_is_scanned(dtype, mode):
    """Energies and signs, also of an infinity and a NaN: neither may be optimised away."""
    X = np.array([[3.0, -4.0], [np.inf, 0.0], [np.nan, 1.0]], dtype)
    energies, negative = np.empty(3), np.empty(3, bool)
    kernels.scan(0, 3, X, energies, negative)

    assert energies[0] == 25.0
    assert energies[1] == np.inf
    assert np.isnan(energies[2])
    assert negative.tolist() == [True, False, False]


def test_ranges_do_not_change_a_bit():
    """A kernel over [0, n) equals, bit for bit, the same kernel over any split of it."""
    X, H, loadings = draw((90, 700), "float64", rank=5, b=6)
    outcomes = []
    for threads in (1, 2, 3, 7):
        workers = Workers(threads)
        got = aggregates.absorb(aggregates.nothing((90, 700), 5, "float64"), X, 1.0, H, 0.4, workers)
        bars = [bar for i in (0, 1) for bar in aggregates.Intermediate(got, loadings, workers)(i)]
        fused, known = aggregates.absorb_and_fold(got, loadings, X, 1.0, H, 0.4, workers)
        outcomes.append([got.B, aggregates.correlate(X, loadings, workers), *bars, fused.B, known.T])
        workers.close()

    for outcome in outcomes[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(outcomes[0], outcome, strict=True))


# ── rows ───────────────────────────────────────────────────────────────────────────────────────────────────────


WAYS = pytest.mark.parametrize("way", [rows.solve_rows, fewzeros.solve_range], ids=["rows", "fewzeros"])


def solved(Q, L, start, upper=np.inf, tolerance=1e-12, ranges=None, way=rows.solve_rows):
    """Minimisers and rounds, from a start that is kept."""
    Y, rounds = start.copy(), np.full(len(L), -7)
    for lo, hi in ranges or [(0, len(L))]:
        way(lo, hi, Q, L, upper, tolerance, Y, rounds)
    return Y, rounds


def alone(Q, L, start, upper=np.inf, tolerance=1e-12):
    """The same by the method for a single row."""
    n = len(Q) + len(Q) % 2
    S, (unit, inverse, bound) = np.empty((n, n)), np.empty((3, n))
    rows.to_unit_diagonal(Q, upper, S, unit, inverse, bound)
    Y, rounds = start.copy(), np.zeros(len(L), np.int64)
    for i in range(len(L)):
        onerow.solve_row(i, S, unit, inverse, bound, L, upper, tolerance, Y, rounds)
    return Y, rounds


def residuals(Q, L, Y, upper):
    """‖y − Π(y − (yS − l))‖/‖y‖ of each row in units of √Qᵣᵣ, of the atoms that are not flat."""
    live = np.diagonal(Q) > 0
    unit = np.sqrt(np.diagonal(Q)[live])
    y = Y[:, live] * unit
    slope = y @ (Q[np.ix_(live, live)] / unit / unit[:, None]) - L[:, live] / unit
    bad = np.linalg.norm(y - np.clip(y - slope, 0, upper * unit), axis=1)
    return np.divide(bad, np.linalg.norm(y, axis=1), out=bad, where=bad > 0)


@st.composite
def problems(draw):
    """Q, L, a start and an upper bound: any rank and number of rows, good or as nasty as data make them."""
    rank, count = draw(st.integers(1, 12)), draw(st.integers(1, 19))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    Q, L = laws.quadratic(draw(st.sampled_from(["good", "good", "bad", "singular", "zero"])), random, count, rank)
    start = draw(st.sampled_from([0.0, 1.0])) * np.maximum(random.normal(size=(count, rank)), 0)
    twin, dead = draw(st.integers(0, rank - 1)), draw(st.integers(0, rank - 1))
    kind = draw(st.sampled_from(["plain", "plain", "collinear", "dead", "units"]))
    if kind == "collinear":
        Q[twin], L[:, twin] = 2.0 * Q[0], 2.0 * L[:, 0]
        Q[:, twin] = 2.0 * Q[:, 0]
        Q[twin, twin] = 4.0 * Q[0, 0]
    elif kind == "dead":
        Q[dead] = Q[:, dead] = L[:, dead] = 0.0
    elif kind == "units":
        units = 10.0 ** random.integers(-8, 8, rank)
        Q, L, start = Q * np.outer(units, units), L * units, start / units
    L -= draw(st.sampled_from([0.0, 0.0, 0.3])) * np.sqrt(np.diagonal(Q))
    scale, upper = 10.0 ** draw(st.sampled_from([0, 0, -30, 30])), draw(st.sampled_from([np.inf, np.inf, 1e6, 0.5]))
    return scale * Q, scale * L, np.minimum(start, upper), upper


@WAYS
@settings(max_examples=300, deadline=None)
@given(problem=problems())
def test_rows_are_minimisers(way, problem):
    """Either way and the method for a single row: all meet the tolerance, and neither is lower than the other."""
    Q, L, _, upper = problem
    (Y, rounds), (Z, _) = solved(*problem, way=way), alone(*problem)

    assert (rounds < onerow.most_rounds(len(Q))).all()
    assert Y.min() >= 0
    assert Y.max() <= upper
    for point in (Y, Z):
        assert residuals(Q, L, point, upper).max() <= 1e-11
    low, high = (objective(point, Q, L) for point in (Y, Z))
    assert low == pytest.approx(high, rel=1e-9, abs=1e-12 * np.abs(L * Z).sum())
    if np.linalg.cond(Q) < 1e6:
        assert np.allclose(Y, Z, rtol=1e-6, atol=1e-8 * np.abs(Z).max())


def one_by_one(Q, L, start, upper=np.inf, tolerance=1e-12):
    """Minimisers and rounds, HARD where a row is left to others, which keeps its start; none where Q is too flat."""
    Y, rounds = start.copy(), np.full(len(L), -7)
    hard = fewzeros.solve_few(Q, L, upper, tolerance, Y, rounds)
    assert hard == np.count_nonzero(rounds == multipliers.HARD)
    assert np.array_equal(Y[rounds == multipliers.HARD], start[rounds == multipliers.HARD])
    return (Y, rounds) if len(multipliers.inverse_of(Q)) > 0 else None


def by_multipliers(Q, L, start, tolerance=1e-12):
    """The same, of rows a register full at once."""
    inverse, count, registers = multipliers.inverse_of(Q), len(L), -(-len(L) // lanes.GROUP)
    if len(inverse) == 0:
        return None
    loads, now = (lanes.aligned(len(Q), registers) for _ in range(2))
    Y, rounds = np.full_like(start, np.nan), np.full(count, -7)
    blocks.turn(L, 0, loads)
    room = multipliers.spaces(inverse, registers * lanes.GROUP)
    soon = multipliers.Soon(L, np.array([0, L.size]))
    multipliers.on_faces(inverse, loads, start, Y, rounds, room, soon)
    blocks.turn(Y, 0, now)
    hard = multipliers.judge(Q, multipliers.units_of(Q), now, tolerance, loads, rounds, soon)
    assert hard == np.count_nonzero(rounds == multipliers.HARD)
    return Y, rounds


@pytest.mark.parametrize("solve", [by_multipliers, one_by_one])
@settings(max_examples=300, deadline=None)
@given(problem=problems())
def test_rows_by_multipliers_are_minimisers(solve, problem):
    """What counts as solved meets the tolerance and is as low as the method for a single row gets; the rest is said."""
    Q, L, start, upper = problem
    found = solve(Q, L, start) if upper == np.inf else None
    if found is None:
        return
    Y, rounds = found
    done = rounds != multipliers.HARD
    if not done.any():
        return
    Z, _ = alone(Q, L, start)

    assert Y[done].min() >= 0
    assert residuals(Q, L[done], Y[done], np.inf).max() <= 1e-11
    low, high = (objective(point[done], Q, L[done]) for point in (Y, Z))
    assert low == pytest.approx(high, rel=1e-9, abs=1e-12 * np.abs(L * Z).sum())


@pytest.mark.parametrize("rank", [1, 2, 3, 8, 9, 16, 24, 25])
@pytest.mark.parametrize("dead", [None, 0, 0.5, 1])
def test_an_inverse_is_one(rank, dead):
    """NumPy's, with zeros for an atom of which Q knows nothing, wherever that is; none where Q is flat or no number."""
    Q, _ = laws.quadratic("good", np.random.default_rng(rank), 1, rank)
    known = np.full(rank, True)
    if dead is not None:
        known[int(dead * (rank - 1))] = False
        Q = Q * np.outer(known, known)
    wanted = np.zeros((rank, rank))
    wanted[np.ix_(known, known)] = np.linalg.inv(Q[np.ix_(known, known)])
    inverse = multipliers.inverse_of(Q)

    assert np.allclose(inverse[:, :rank], wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())
    assert not inverse[:, rank:].any()
    for bad in (np.ones((rank + 1, rank + 1)), np.full((rank, rank), np.nan)):
        assert len(multipliers.inverse_of(bad)) == 0


@pytest.mark.parametrize("rank", [2, 8, 9, 16, 24])
@pytest.mark.parametrize("solve", [by_multipliers, one_by_one])
def test_few_rows_are_left_by_multipliers(solve, rank):
    """Where most coordinates are above zero and the start is near, none; where Q is flat, all."""
    random = np.random.default_rng(0)
    Q, _ = laws.quadratic("good", random, 200, rank)
    Z = random.random((200, rank)) * (random.random((200, rank)) > 0.2)
    Y, rounds = solve(Q, Z @ Q, Z)

    done = rounds != multipliers.HARD
    assert np.allclose(Y[done], Z[done], rtol=1e-9, atol=1e-9)
    assert np.mean(done) > 0.9
    assert solve(np.ones((3, 3)), np.ones((4, 3)), np.ones((4, 3))) is None


def test_a_row_that_meets_its_upper_bound_is_left():
    """And the others are not."""
    random = np.random.default_rng(2)
    Q, L = laws.quadratic("good", random, 40, 5)
    free, _ = one_by_one(Q, L, np.zeros_like(L))
    Y, rounds = one_by_one(Q, L, np.zeros_like(L), upper=np.median(free.max(axis=1)))

    assert 10 <= np.count_nonzero(rounds > 0) <= 20
    assert np.array_equal(Y[rounds > 0], free[rounds > 0])


def test_a_row_with_a_nan_is_left():
    """And those beside it do not notice; nor is a coordinate that Q knows nothing of moved."""
    random = np.random.default_rng(1)
    Q, L = laws.quadratic("good", random, 12, 5)
    Q[3], Q[:, 3], L[:, 3] = 0.0, 0.0, 0.0
    start = np.abs(random.normal(size=L.shape))
    L[7, 2] = np.nan
    others = np.arange(12) != 7
    Y, rounds = one_by_one(Q, L, start)
    Z, without = one_by_one(Q, L[others], start[others])

    assert rounds[7] == multipliers.HARD
    assert np.array_equal(Y[others], Z)
    assert np.array_equal(rounds[others], without)
    assert np.count_nonzero(without == multipliers.HARD) < 6
    assert np.array_equal(Y[:, 3], start[:, 3])


@WAYS
@settings(max_examples=100, deadline=None)
@given(problem=problems(), random=st.randoms(use_true_random=False))
def test_a_row_does_not_notice_its_neighbours(way, problem, random):
    """Whatever rows are solved with it, in whatever order and range: the same bits, and the same rounds.

    Fails if a lane's arithmetic depends on what another lane does, or on which lane it is.
    """
    Q, L, start, upper = problem
    Y, rounds = solved(*problem, way=way)
    order = random.sample(range(len(L)), len(L))
    cut = random.randrange(len(L) + 1)

    for one in (
        solved(Q, L, start, upper, ranges=[(0, cut), (cut, len(L))], way=way),
        solved(Q, L, start, upper, ranges=[(i, i + 1) for i in range(len(L))], way=way),
    ):
        assert np.array_equal(Y, one[0])
        assert np.array_equal(rounds, one[1])
    moved = solved(Q, L[order], start[order], upper, way=way)
    assert np.array_equal(Y[order], moved[0])
    assert np.array_equal(rounds[order], moved[1])


@WAYS
@pytest.mark.parametrize("rank", [5, 24])
def test_many_rows_do_not_notice_each_other(rank, way):
    """Wherever ranges end, and whatever is solved in one strip of memory: the same bits."""
    random = np.random.default_rng(rank)
    Q, L = laws.quadratic("good", random, 300, rank)
    start = np.maximum(random.normal(size=L.shape), 0)
    Y, rounds = solved(Q, L, start, way=way)

    for cut in (1, 127, 128, 129):
        one = solved(Q, L, start, ranges=[(0, cut), (cut, 300)], way=way)
        assert np.array_equal(Y, one[0])
        assert np.array_equal(rounds, one[1])


@WAYS
@pytest.mark.parametrize("count", [1, 7, 8, 9, 17, 64, 65])
@pytest.mark.parametrize("rank", [1, 2, 5, 24])
def test_rows_fill_groups_or_do_not(rank, count, way):
    """Every row is solved, and none outside of the range is touched."""
    random = np.random.default_rng(count)
    Q, L = laws.quadratic("good", random, count + 4, rank)
    start = np.full_like(L, 0.25)
    Y, rounds = solved(Q, L, start, ranges=[(2, count + 2)], way=way)

    assert residuals(Q, L, Y, np.inf)[2:-2].max() <= 1e-12
    assert (rounds[2:-2] >= 1).all()
    assert np.array_equal(Y[[0, 1, -2, -1]], start[[0, 1, -2, -1]])
    assert (rounds[[0, 1, -2, -1]] == -7).all()


def test_rows_in_python_are_the_compiled_ones(mode):
    """Lanes are vector registers in compiled code and arrays in Python: the same minimisers."""
    random = np.random.default_rng(5)
    Q, L = laws.quadratic("good", random, 11, 5)
    with np.errstate(all="ignore"):
        for upper in (np.inf, 0.7):
            Y, _ = solved(Q, L, np.maximum(random.normal(size=L.shape), 0), upper)

            assert residuals(Q, L, Y, upper).max() <= 1e-12


def test_nothing_to_code():
    """L = 0 has the code 0, from any start; and from zero without a round."""
    Q, L = laws.quadratic("good", np.random.default_rng(6), 9, 4)
    Y, rounds = solved(Q, 0 * L, np.zeros_like(L))
    assert not Y.any()
    assert not rounds.any()

    Y, rounds = solved(Q, 0 * L, np.ones_like(L))
    assert np.abs(Y).max() <= 1e-12
    assert rounds.all()


@WAYS
@pytest.mark.parametrize("upper", [np.inf, 1.1])
def test_flat_atoms_stay_or_go_to_a_bound(upper, way):
    """Where Q = 0 a coordinate without a load stays, bit for bit; others go to the bound they are drawn to."""
    start = np.random.default_rng(7).random((9, 3))
    assert np.array_equal(solved(np.zeros((3, 3)), np.zeros((9, 3)), start, upper, way=way)[0], start)

    Q, L = np.diag([0.0, 1.0, 0.0]), np.tile([-1e-20, 0.25, 2.0], (9, 1))
    Y, _ = solved(Q, L, start, upper, way=way)
    assert np.array_equal(Y[:, 0], np.zeros(9))
    assert np.allclose(Y[:, 1], 0.25)
    assert np.array_equal(Y[:, 2], start[:, 2] if upper == np.inf else np.full(9, upper))


@WAYS
def test_an_upper_bound_is_met(way):
    """Rows that meet the bound are exact, as are their neighbours that do not."""
    random = np.random.default_rng(8)
    Q, L = laws.quadratic("good", random, 40, 6)
    free, _ = solved(Q, L, np.zeros_like(L), way=way)
    upper = float(np.median(free.max(axis=1)))
    Y, _ = solved(Q, L, np.zeros_like(L), upper, way=way)

    assert residuals(Q, L, Y, upper).max() <= 1e-12
    assert (Y.max(axis=1) == upper).sum() > 10
    below = free.max(axis=1) < upper
    assert np.array_equal(Y[below], free[below])


@WAYS
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_none_shows(bad, way):
    """A NaN or an infinity in L is seen in its row's minimiser, and nowhere else."""
    Q, L = laws.quadratic("good", np.random.default_rng(9), 20, 5)
    Y, _ = solved(Q, L, np.zeros_like(L), way=way)
    L[6, 2] = bad
    Z, _ = solved(Q, L, np.zeros_like(L), way=way)
    others = np.arange(20) != 6

    assert not np.isfinite(Z[6]).all()
    assert np.array_equal(Y[others], Z[others])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("R", "P", "Q"), [(3, 7, 1100), (2, 4, 512), (1, 1, 1), (5, 9, 515), (2, 3, 17)])
def test_strips_are_folded_to_the_bit(R, P, Q, dtype, mode):
    """The einsum; and however B is read, and in whatever ranges, it has the same bits."""
    random = np.random.default_rng(0)
    T, V = random.random((R, P, Q)).astype(dtype), random.random((P, R))
    columns, strips, parts = np.empty((R, Q)), np.empty((R, Q)), np.empty((R, Q))
    count = R * -(-Q // kernels.COLUMNS)
    kernels.fold_first(0, Q, T, V, columns)
    kernels.fold_strips(0, count, T, V, strips)
    for k in range(count):
        kernels.fold_strips(k, k + 1, T, V, parts)

    assert np.allclose(strips, np.einsum("rpq,pr->rq", T.astype(float), V), rtol=1e-13)
    assert np.array_equal(strips, columns)
    assert np.array_equal(strips, parts)
