"""The choice: what is to be learned, under which constraints, with which weights. It never changes while learning.

**Scale.** (A2), assumption:A2, wants compact sets for loadings and codes, but the right size of a set depends on the
data. It is fixed once, from s² = mean energy of the first minibatch that has any, and kept in the state:

    Mᵢ = MARGIN · √R · s^{1/n}    the norm bound of mode i (a loose one: a tight norm costs more than any kernel gains)
    c′ᵢ = 2Mᵢ                     the search radius, so that the first step is free
    h_max = ROOMY                 the box of the codes, which are of order one at the start

With a penalty on the codes a loose bound would be no bound: loadings would grow and codes shrink until the penalty
means nothing. Then columns have norm at most one, and the penalty itself bounds the codes (lem:H_bdd).

The same for signed sets. A set of a size of its own begins where it can, and the others bear the rest of the scale.
"""

import hashlib
from dataclasses import dataclass, field, fields
from math import ceil, inf, isfinite, prod, sqrt
from operator import index
from typing import Literal, cast

import numpy as np

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.constraints import (
    Ball,
    Columns,
    Constraint,
    NonnegativeBall,
    NonnegativeColumns,
    Projected,
    Projects,
    first,
    first_norm,
)
from stream_ocpdl.ocpdl.schedules import PowerLaw, Schedule
from stream_ocpdl.ocpdl.spelling import AUTOMATIC, Choice

WHOLE, REAL = (int, np.integer), (int, float, np.integer, np.floating)

WEIGHTS = PowerLaw(beta=0.76)
"""The best, in measurements, of the schedules that satisfy (A3): just inside of its bound β > 3/4."""

MARGIN = 4.0
"""How far the automatic norm bound lies beyond the norm of the first loadings."""

ROOMY = 1e6
"""The automatic bound of a code, in units of the codes of the first minibatch."""


LATER = {"later": True}
"""Marks fields that came after the first journals: at their default they are not told, so that digests stay."""

STREAM = 0x0C9D
"""Tells the random numbers of initial loadings from any others of the same seed."""


@dataclass(frozen=True, slots=True)
class Sets:
    """Where loadings and codes live, once the scale is known."""

    loadings: tuple[Constraint, ...]
    radii: tuple[float, ...]
    """c′ᵢ: mode i moves by at most c′ᵢ w_t (eq:Alg1_search_restriction)."""
    norms: tuple[float, ...]
    """‖U₀⁽ⁱ⁾‖_F."""
    h_max: float
    """Codes are at most this, and signed ones at least minus this."""
    bounds: Array = field(init=False, compare=False)
    """The norm bounds of the modes, if all have one of their whole matrix and no other set; else none."""

    def __post_init__(self) -> None:
        balls = [C.bound for C in self.loadings if isinstance(C, NonnegativeBall)]
        object.__setattr__(self, "bounds", np.array(balls if len(balls) == len(self.loadings) else []))


_KNOWN: "dict[int, tuple[Problem, float, Sets]]" = {}
"""The sets that were asked for last, by the problem's identity: every step asks for the same ones."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Learn R atoms of shape I₁ × … × Iₙ, minimising ‖X − Out(D) ×ₙ₊₁ H‖² + λ‖H‖₁ + λ₂‖H‖² (eq:def_loss_full).

    Parameters
    ----------
    shape: I₁ … Iₙ, the shape of one tensor; any number of modes.
    rank: R, the number of atoms.
    sparsity, ridge: λ and λ₂ of the loss, exactly. λ₂ > 0 makes codes unique, which gives (A4).
    weights: the schedule w(t).
    per: "tensor" counts time in tensors, t = N/batch_size, so that batches may vary in size; "step" as in the paper.
    batch_size: the size of an ordinary minibatch, which is the unit of time of `weights`.
    radius: c′ for every mode; "auto" as above; None for no restriction, which leaves the theory.
    constraints: one set for all modes, or one for each: "nonnegative" (which is what "auto" is) or "signed", of a size
        as above; `Box`, `Simplex`, `Ball`, `Columns`, `NonnegativeBall`, `NonnegativeColumns`; or any object with
        `project` (module `constraints`).
    dtype: of minibatches and of B, the only large arrays; everything else is float64.
    seed: of the initial loadings, which are uniform in [0, 1] up to scale, as in the paper's experiments.
    tolerance: the relative residual at which a sub-problem counts as solved.
    missing: what a NaN is. "reject": a mistake, and its tensor is refused; "impute": a cell that was not observed,
        left out of coding and losses, and filled from code and dictionary before it is learned (module `missing`).
    revive: after how many steps, each time, dead atoms are drawn anew (module `revival`), which leaves the theory;
        None for never.
    codes: "nonnegative", or "signed", for atoms that may also be taken away.
    code_bound: the largest code, also in size of a negative one, where codes are shares, or have another known range;
        "auto" as above.

    >>> Problem(shape=(4, 5), rank=0)
    Traceback (most recent call last):
    stream_ocpdl.errors.ConfigError: rank must be a whole number, at least 1, not 0
    """

    shape: tuple[int, ...]
    rank: int
    sparsity: float = 0.0
    ridge: float = 0.0
    weights: Schedule = WEIGHTS
    per: Literal["tensor", "step"] = "tensor"
    batch_size: int = 32
    radius: float | Literal["auto"] | None = "auto"
    constraints: Choice | tuple[Choice, ...] = "auto"
    dtype: Literal["float64", "float32"] = "float64"
    seed: int = 0
    tolerance: float = 1e-10
    missing: Literal["reject", "impute"] = "reject"
    revive: int | None = field(default=None, metadata=LATER)
    codes: Literal["nonnegative", "signed"] = field(default="nonnegative", metadata=LATER)
    code_bound: float | Literal["auto"] = field(default="auto", metadata=LATER)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "shape", tuple(index(size) for size in self.shape))
        except TypeError:
            raise ConfigError(f"shape must be the sizes of the modes, such as (90, 5000), not {self.shape!r}") from None
        _require(len(self.shape) >= 1 and min(self.shape) >= 1, "shape", "one positive size a mode", self.shape)
        for name, least in (("rank", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            whole = isinstance(value, WHOLE) and not isinstance(value, bool)
            _require(whole and value >= least, name, f"a whole number, at least {least}", value)
            object.__setattr__(self, name, int(value))
        k = self.revive
        every = isinstance(k, WHOLE) and not isinstance(k, bool) and k >= 1
        _require(k is None or every, "revive", "a whole number of steps, at least 1, or None", k)
        object.__setattr__(self, "revive", None if k is None else int(k))
        for name in ("sparsity", "ridge", "tolerance"):
            value = getattr(self, name)
            _require(isinstance(value, REAL) and 0 <= value < inf, name, "nonnegative and finite", value)
            object.__setattr__(self, name, float(value))
        _require(1e-13 <= self.tolerance < 1, "tolerance", "in [1e-13, 1)", self.tolerance)
        _require(_is_a(self.weights, Schedule), "weights", "a schedule, such as PowerLaw()", self.weights)
        _require(self.per in ("tensor", "step"), "per", "'tensor' or 'step'", self.per)
        _require(self.dtype in ("float64", "float32"), "dtype", "'float64' or 'float32'", self.dtype)
        _require(self.missing in ("reject", "impute"), "missing", "'reject' or 'impute'", self.missing)
        _require(self.codes in ("nonnegative", "signed"), "codes", "'nonnegative' or 'signed'", self.codes)
        h = self.code_bound
        valid = 0 < h < inf if isinstance(h, REAL) and not isinstance(h, bool) else isinstance(h, str) and h == "auto"
        _require(valid, "code_bound", "positive and finite, or 'auto'", h)
        object.__setattr__(self, "code_bound", h if isinstance(h, str) else float(h))
        c = self.radius
        valid = 0 < c < inf if isinstance(c, REAL) else c is None or (isinstance(c, str) and c == "auto")
        _require(valid, "radius", "positive and finite, 'auto' or None", c)
        if isinstance(self.constraints, list):
            object.__setattr__(self, "constraints", tuple(self.constraints))
        if isinstance(self.constraints, tuple):
            _require(len(self.constraints) == self.modes, "constraints", "one for each mode", self.constraints)
            object.__setattr__(self, "constraints", tuple(map(_whole, self.constraints)))
        else:
            object.__setattr__(self, "constraints", _whole(self.constraints))

    def __repr__(self) -> str:
        """All fields, but for later ones at their default."""
        told = [f for f in fields(self) if not f.metadata or getattr(self, f.name) != f.default]
        return f"Problem({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in told)})"

    @property
    def modes(self) -> int:
        """n."""
        return len(self.shape)

    @property
    def penalised(self) -> bool:
        """Whether the loss has a penalty on the codes."""
        return self.sparsity > 0 or self.ridge > 0

    @property
    def nonnegative(self) -> bool:
        """Whether codes, and loadings in every mode, are nonnegative, so that negative data make no sense."""
        if self.codes == "signed" or isinstance(self.constraints, str):
            return self.codes != "signed" and self.constraints != "signed"
        return all(C.nonnegative for C in self._constraints(1.0))

    @property
    def automatic(self) -> bool:
        """Whether the set of some mode is of a size, and a kind, that data and penalties decide."""
        return any(isinstance(choice, str) for choice in self.choices())

    def digest(self) -> str:
        """SHA-256 of everything that decides the bits of a state besides the data."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def weight(self, t: int, N: int, b: int) -> float:
        """w_t of step t, a minibatch of b tensors that brings the number of tensors seen to N.

        w₁ = 1 always: otherwise weight would stay on aggregates that are zero. Per tensor, time is τ = N/batch_size,
        and a minibatch that spans (τ₀, τ] has w = 1 − m(τ₀)/m(τ), where the mass m is linear between whole numbers and
        m(k − 1)/m(k) = 1 − w(k). So a minibatch of the ordinary size has w(k), one of another size what its tensors
        would have had together, and 1/t gives every tensor the same weight however the stream is cut.
        """
        if t == 1:
            return 1.0
        if self.per == "step":
            return min(1.0, self.weights(t))
        if b == self.batch_size and N % b == 0:
            return min(1.0, self.weights(N // b))
        return 1.0 - self._kept((N - b) / self.batch_size, N / self.batch_size)

    def _kept(self, before: float, after: float) -> float:
        """m(before)/m(after): the share that the past keeps."""
        kept, last = 1.0, ceil(after)
        for k in range(max(ceil(before), 1), last + 1):
            rest = 1.0 - min(1.0, self.weights(k)) if k > 1 else 0.0
            low, high = (rest + (tau - k + 1) * (1.0 - rest) for tau in (max(before, k - 1), min(after, k)))
            kept *= low / high
        return kept

    def sets(self, scale: float) -> Sets:
        """Constraints, radii and the box of the codes, for data of typical norm `scale`."""
        problem, at, sets = _KNOWN.get(id(self), (None, 0.0, None))
        if problem is not self or at != scale or sets is None:
            sets = self._sets(scale)
            if len(_KNOWN) > 100:
                _KNOWN.clear()
            _KNOWN[id(self)] = (self, scale, sets)
        return sets

    def _sets(self, scale: float) -> Sets:
        column = scale ** (1 / self.modes)
        constraints = self._constraints(MARGIN * sqrt(self.rank) * column)
        bounds = [C.norm_bound(rows, self.rank) for C, rows in zip(constraints, self.shape, strict=True)]
        loose = [sqrt(self.rank) * column if not self.penalised or not isfinite(M) else M for M in bounds]
        norms = [
            first_norm(C, rows, self.rank, wanted)
            for C, rows, wanted in zip(constraints, self.shape, loose, strict=True)
        ]
        atom = prod(norm / sqrt(self.rank) for norm in norms)
        return Sets(
            loadings=constraints,
            radii=tuple(
                self._radius(M if isfinite(M) else MARGIN * norm) for M, norm in zip(bounds, norms, strict=True)
            ),
            norms=tuple(norms),
            h_max=self._code_bound(ROOMY * scale / atom),
        )

    def initial_loadings(self, scale: float) -> tuple[Array, ...]:
        """U₀: uniform entries from the seed, brought to scale and into C."""
        # A stream of its own: a user who draws the truth from default_rng(seed) must not find it as the start.
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, STREAM])))
        drawn = [random.random((rows, self.rank)) for rows in self.shape]
        sets = self.sets(scale)
        return tuple(
            np.ascontiguousarray(first(C, V, norm), np.float64)
            for V, C, norm in zip(drawn, sets.loadings, sets.norms, strict=True)
        )

    def choices(self) -> tuple[Choice, ...]:
        """What was chosen for each mode."""
        return self.constraints if isinstance(self.constraints, tuple) else (self.constraints,) * self.modes

    def _constraints(self, bound: float) -> tuple[Constraint, ...]:
        nonnegative = NonnegativeColumns() if self.penalised else NonnegativeBall(bound)
        signed = Columns() if self.penalised else Ball(bound)
        own: dict[str, Constraint] = {"auto": nonnegative, "nonnegative": nonnegative, "signed": signed}
        return tuple(own[C] if isinstance(C, str) else cast(Constraint, C) for C in self.choices())

    def _code_bound(self, roomy: float) -> float:
        if isinstance(self.code_bound, str):
            return inf if self.penalised else roomy
        return self.code_bound

    def _radius(self, bound: float) -> float:
        if self.radius is None:
            return inf
        return 2.0 * bound if self.radius == "auto" else float(self.radius)


def _whole(C: Choice) -> Choice:
    """The choice; a set that knows its projection alone is made a `Constraint`."""
    known = C in AUTOMATIC if isinstance(C, str) else _is_a(C, Projects)
    _require(known, "constraints", "'nonnegative', 'signed', sets such as Box(0, 1), or objects with project", C)
    return C if isinstance(C, str | Constraint) else Projected(C)


def _is_a(value: object, protocol: type) -> bool:
    """Whether this is an object of that kind; a class, with its parentheses forgotten, is not."""
    return isinstance(value, protocol) and not isinstance(value, type)


def _require(holds: object, name: str, wanted: str, got: object) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {wanted}, not {got!r}")
