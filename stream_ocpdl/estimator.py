"""The learner for everyday use, without Kafka, with scikit-learn's verbs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from stream_ocpdl.conventions import Conventions, not_fitted, seed_of, tags
from stream_ocpdl.errors import ConfigError, DataError, StateError
from stream_ocpdl.ocpdl.aggregates import reconstruction
from stream_ocpdl.ocpdl.arrays import Array, BigArray, Sparse
from stream_ocpdl.ocpdl.batch import Batch, as_array, gather
from stream_ocpdl.ocpdl.batch import read_batch as read_whole
from stream_ocpdl.ocpdl.coordinates import shape_of, tensors_of
from stream_ocpdl.ocpdl.entries import AnyBatch, SparseBatch, read_batch
from stream_ocpdl.ocpdl.heldout import code_observed, explained, hide
from stream_ocpdl.ocpdl.learner import Learner, advance
from stream_ocpdl.ocpdl.problem import WEIGHTS, Problem
from stream_ocpdl.ocpdl.reshape import Layout, Scaling, in_units, problem_of_tensors
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.ocpdl.schedules import Schedule
from stream_ocpdl.ocpdl.shadows import Advice, Shadows
from stream_ocpdl.ocpdl.sparse import residuals
from stream_ocpdl.ocpdl.spelling import Choice

Tensors: TypeAlias = BigArray | list[BigArray | Sparse]
"""An array (b, I₁…Iₙ), or a list of tensors if some are sparse."""

BESIDE = ("random_state", "groups", "scaling", "shadows")
"""The parameters that are not those of the problem."""


class OnlineCPDL(Conventions):
    """Online CP-dictionary of tensors X (b, I₁…Iₙ), nonnegative unless asked; the parameters are those of `Problem`.

    `groups` are modes that are learned as one, and `scaling` is how units are made comparable along an axis, both as in
    `Layout`. X, and all that is made of it again, keeps its own shape and units; only losses are of the scaled data.
    With `shadows=k` a tenth of the minibatches is learned with the ranks R ± k, too, and `rank_advice_` says which of
    them is enough; from the start or not at all. `random_state` is a seed, a RandomState or Generator to draw one from,
    or None for another one each time. An error leaves the model as it was. It works in scikit-learn's pipelines and
    searches, and does without scikit-learn.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((200, 8, 6))
    >>> model = OnlineCPDL(rank=3, batch_size=20, random_state=0).fit(X)
    >>> model.n_steps_, model.transform(X).shape, [U.shape for U in model.loadings_]
    (10, (200, 3), [(8, 3), (6, 3)])
    >>> model
    OnlineCPDL(rank=3, batch_size=20, random_state=0)
    """

    def __init__(
        self,
        rank: int,
        *,
        sparsity: float = 0.0,
        ridge: float = 0.0,
        weights: Schedule = WEIGHTS,
        radius: float | Literal["auto"] | None = "auto",
        constraints: Choice | tuple[Choice, ...] = "auto",
        codes: Literal["nonnegative", "signed"] = "nonnegative",
        code_bound: float | Literal["auto"] = "auto",
        batch_size: int = 32,
        dtype: Literal["float64", "float32"] = "float64",
        missing: Literal["reject", "impute"] = "reject",
        revive: int | None = None,
        groups: tuple[tuple[int, ...], ...] = (),
        scaling: Scaling | None = None,
        shadows: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.sparsity = sparsity
        self.ridge = ridge
        self.weights = weights
        self.radius = radius
        self.constraints = constraints
        self.codes = codes
        self.code_bound = code_bound
        self.batch_size = batch_size
        self.dtype = dtype
        self.missing = missing
        self.revive = revive
        self.groups = groups
        self.scaling = scaling
        self.shadows = shadows
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Forget everything, then learn X in one pass, in its order, in minibatches of `batch_size`."""
        X = tensors(X)
        layout = self._layout(shape_in(X))
        learner = Learner(self._problem(layout, seed_of(self.random_state)))
        shadows = self._shadows(learner.problem)
        folded = self._folded(layout, X)
        with as_it_came(learner.problem, layout, X):
            folded = folded if isinstance(folded, list) else read_whole(learner.problem, folded).X
            for start in range(0, len(X), learner.problem.batch_size):
                step = self._step(learner, layout, folded[start : start + learner.problem.batch_size], shadows)
        self._learned(learner, layout, step, shadows)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn X as one minibatch: one step of the algorithm.

        Parameters that were set since the last step hold from here on; those that would need another state, such as
        another rank, are an error.
        """
        learner, layout, shadows = self._present(X := tensors(X))
        folded = self._folded(layout, X)
        with as_it_came(learner.problem, layout, X):
            step = self._step(learner, layout, folded, shadows)
        self._learned(learner, layout, step, shadows)
        return self

    def transform(self, X: Any) -> Array:
        """Codes H (b, R) of X under the dictionary learned so far."""
        return self._fitted().code(self._inward(X)).H

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """`fit`, and the codes of X under what was learned."""
        return self.fit(X).transform(X)

    def inverse_transform(self, H: Any) -> Array:
        """The tensors (b, I₁…Iₙ) that codes H (b, R) stand for: Out(D) ×ₙ₊₁ H."""
        loadings, T = self._fitted().state.loadings, as_array(H, "H")
        rank = loadings[0].shape[1]
        if T.ndim != 2 or T.shape[1] != rank:
            raise DataError(f"H has shape {T.shape}; codes of this model have shape (b, {rank})")
        if not np.isfinite(T).all():
            raise DataError("H has numbers that are not finite")
        X = reconstruction(loadings, T)
        return X if self.layout_.plain else self.layout_.unfold(self.layout_.unscaled(X, self._fitted().state.factors))

    def score(self, X: Any, y: Any = None) -> float:
        """The share of X's energy that its reconstruction explains: 1 − ‖X − X̂‖²/‖X‖² over the observed cells."""
        learner = self._fitted()
        batch = self._inward(X)
        H = learner.code(batch).H
        if isinstance(batch, SparseBatch):
            left = residuals(learner.state.loadings, batch, H).sum()
            return 1.0 - float(left) / batch.energy if batch.energy > 0.0 else 0.0
        if not self.layout_.plain:
            own = self.layout_.unfold(self.layout_.unscaled(batch.X, learner.state.factors))
            return explained(own, own - self.inverse_transform(H))
        rest = batch.X - self.inverse_transform(H)
        return 1.0 - float(np.nansum(rest * rest)) / batch.energy if batch.energy > 0.0 else 0.0

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the codes' columns: onlinecpdl0, onlinecpdl1, …"""
        rank, name = self._fitted().problem.rank, type(self).__name__.lower()
        return np.array([f"{name}{r}" for r in range(rank)], object)

    def to_tensorly(self) -> Any:
        """The dictionary as TensorLy has it, a CPTensor of weights (R,), all one, and factors; without it that pair.

        >>> X = np.random.default_rng(0).random((50, 8, 6))
        >>> weights, factors = OnlineCPDL(rank=3).fit(X).to_tensorly()
        >>> weights.tolist(), [U.shape for U in factors]
        ([1.0, 1.0, 1.0], [(8, 3), (6, 3)])
        """
        pair = np.ones(self._fitted().problem.rank), self.loadings_
        try:
            from tensorly.cp_tensor import CPTensor
        except ImportError:
            return pair
        return CPTensor(pair)

    def held_out(self, X: Any, cells: Any) -> Array:
        """X − X̂ at cells, a mask, that are hidden from coding and so predicted; NaN elsewhere, and where X has one."""
        X = self._whole(X)
        H = code_observed(self._fitted(), self._inward(hide(X, cells), missing="impute"))
        return np.where(np.asarray(cells), as_array(X, "X") - self.inverse_transform(H), np.nan)

    def score_cells(self, X: Any, cells: Any) -> float:
        """`score` of held-out cells: the share of their energy that the other cells and the dictionary predict."""
        X = self._whole(X)
        return explained(X, self.held_out(X, cells))

    @property
    def loadings_(self) -> list[Array]:
        """U₁ … Uₙ, each (Iᵢ, R); a group of modes has one."""
        state = self._fitted().state
        return [U.copy() for U in self.layout_.outward(state.loadings, state.factors)]

    @property
    def atoms_(self) -> Array:
        """The atoms (R, I₁…Iₙ), in the shape and the units of the data."""
        return self.layout_.atoms(self.loadings_)

    @property
    def n_steps_(self) -> int:
        """How many minibatches were learned."""
        return self._fitted().state.t

    @property
    def n_features_in_(self) -> int:
        """How many numbers a tensor has."""
        return prod(self._fitted().problem.shape)

    @property
    def surrogate_(self) -> float:
        """f̂_t(D_t), the surrogate loss of a tensor after the last step."""
        self._fitted()
        return self.last_step_.surrogate

    @property
    def rank_advice_(self) -> Advice:
        """Which rank to take, by the shadows; `.reason` says it in a sentence."""
        self._fitted()
        if self._beside is None:
            raise ConfigError(
                "nothing was learned beside this model; give it shadows, such as OnlineCPDL(8, shadows=2)"
            )
        return self._beside.advice()

    def __sklearn_tags__(self) -> Any:
        sets = self.constraints if isinstance(self.constraints, tuple | list) else (self.constraints,)
        nonnegative = all(C != "signed" if isinstance(C, str) else getattr(C, "nonnegative", False) for C in sets)
        return tags(nonnegative and self.codes == "nonnegative", gaps=self.missing == "impute")

    def _problem(self, layout: Layout, seed: int) -> Problem:
        """The problem that these parameters and the layout of tensors pose."""
        given = {name: value for name, value in self.get_params().items() if name not in BESIDE}
        return Problem(shape=layout.grouped, seed=seed, **given)

    def _shadows(self, problem: Problem) -> Shadows | None:
        try:
            return None if self.shadows is None else Shadows(problem, self.shadows)
        except ConfigError as error:
            raise ConfigError(f"shadows: {error}") from None

    def _present(self, X: Tensors) -> tuple[Learner, Layout, Shadows | None]:
        """The learner of the next step, and its shadows: new ones, those there are, or these on other parameters."""
        learner: Learner | None = self.__dict__.get("learner_")
        if learner is None:
            layout = self._layout(shape_in(X))
            learner = Learner(self._problem(layout, seed_of(self.random_state)))
            return learner, layout, self._shadows(learner.problem)
        fitting(X, self.layout_.shape, type(self).__name__)
        if all(value is self._given[name] for name, value in self.get_params().items()):
            return learner, self.layout_, self._beside
        layout = self._layout(self.layout_.shape)
        if layout != self.layout_:
            raise ConfigError("with other groups or another scaling only fit can go on, which begins anew")
        problem = self._problem(layout, learner.problem.seed)
        try:
            return Learner(problem, learner.state), layout, self._beside and self._beside.under(problem)
        except StateError as error:
            raise ConfigError(f"with these parameters only fit can go on, which begins anew: {error}") from error

    def _layout(self, shape: tuple[int, ...]) -> Layout:
        """How tensors of this shape become what is learned."""
        return Layout(shape, self.groups, self.scaling)

    @staticmethod
    def _folded(layout: Layout, X: Any) -> Any:
        """X in the shape of the problem; whether it has its own, that is for others to say."""
        if layout.plain:
            return X
        for shape in {row.shape for row in X}:
            if shape != layout.shape:
                raise DataError(f"X has tensors of shape {shape}; those of this model have shape {layout.shape}")
        return [layout.fold_row(row) for row in X] if isinstance(X, list) else layout.fold(X)

    def _inward(self, X: Any, **changes: Any) -> AnyBatch:
        """X as the learner has it, checked, on the factors that are known; `changes` are of its problem."""
        learner, layout = self._fitted(), self.layout_
        problem = replace(learner.problem, **changes) if changes else learner.problem
        X, factors = fitting(tensors(X), layout.shape, type(self).__name__), learner.state.factors
        folded = self._folded(layout, X)
        with as_it_came(problem, layout, X):
            if factors:
                folded = gathered(problem, folded).X if isinstance(folded, list) else folded
                folded = layout.scaled(np.asarray(folded, np.float64), factors)
            return read_batch(problem, folded)

    def _whole(self, X: Any) -> BigArray:
        """X with all its cells, also where it is sparse, in its own shape and units."""
        X, problem = tensors(X), replace(self._fitted().problem, missing="impute")
        return gathered(problem_of_tensors(self.layout_, problem), X).X if isinstance(X, list) else X

    @staticmethod
    def _step(learner: Learner, layout: Layout, X: Any, shadows: Shadows | None) -> Step:
        """A step, with the factors fixed if they were not; one that fails has not happened."""
        if layout.scaling is None:
            step = learner.step(X)
            if shadows is not None:
                shadows.step(X)
            return step
        batch = gathered(learner.problem, X if isinstance(X, list) else list(read_whole(learner.problem, X).X))
        state, batch, refused = in_units(layout, learner.problem, learner.state, batch)
        for reason in refused.values():
            raise DataError(reason)
        learner.state, step = advance(learner.problem, state, batch, learner.workers)
        if shadows is not None:
            shadows.step(batch)
        return step

    def _learned(self, learner: Learner, layout: Layout, step: Step, shadows: Shadows | None) -> None:
        self.learner_ = learner
        self.layout_ = layout
        self.last_step_ = step
        self._given = self.get_params()
        self._beside = shadows

    def _fitted(self) -> Learner:
        learner: Learner | None = self.__dict__.get("learner_")
        if learner is None:
            raise not_fitted(type(self).__name__)
        return learner


def shape_in(X: Tensors) -> tuple[int, ...]:
    """The shape of a tensor."""
    return X[0].shape if isinstance(X, list) else X.shape[1:]


def tensors(X: Any) -> Tensors:
    """X as an array (b, I₁…Iₙ), also where it came as Python objects, or its tensors; or what is wrong with it."""
    shape = shape_of(X)
    if shape is not None:
        if len(shape) < 2 or 0 in shape:
            raise DataError(f"X has shape {shape}; a minibatch has shape (b, I₁, …, Iₙ), none of them zero")
        return tensors_of(shape[1:], X) or []
    kind = getattr(getattr(X, "dtype", None), "kind", "")
    if kind == "c":
        raise DataError(f"X has dtype {X.dtype}. Complex data not supported")
    array = as_array(_numbers(np.asarray(X)) if kind == "O" else X, "X")
    if array.ndim < 2:
        wanted = "a minibatch has shape (b, I₁, …, Iₙ). Reshape your data: a single tensor is X[None]"
        raise DataError(f"X has shape {array.shape}; {wanted}")
    if 0 in array.shape[1:]:
        raise DataError(f"X has 0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    return array


def fitting(X: Tensors, shape: tuple[int, ...], name: str) -> Tensors:
    """The same, if its tensors have this shape; tables, where they have not, are told so in scikit-learn's words."""
    if len(shape_in(X)) == 1 == len(shape) and shape_in(X) != shape:
        raise DataError(f"X has {shape_in(X)[0]} features, but {name} is expecting {shape[0]} features as input")
    return X


def gathered(problem: Problem, rows: list[BigArray | Sparse]) -> Batch:
    """Tensors as one minibatch that is a whole, in memory of its own; or what is wrong with one of them."""
    batch, refused = gather(problem, rows)
    for j, reason in refused.items():
        raise DataError(f"tensor {j} cannot be learned: {reason}")
    return batch


@contextmanager
def as_it_came(problem: Problem, layout: Layout, X: Tensors) -> Iterator[None]:
    """A refusal inside of it speaks of X: which of its tensors, which cell of a tensor as it came, in its own units."""
    try:
        yield
    except DataError as error:
        raise refusal(problem_of_tensors(layout, problem), X) or error from None


def refusal(problem: Problem, X: Tensors) -> DataError | None:
    """What is wrong with X, if anything is."""
    try:
        if not isinstance(X, list):
            read_whole(problem, X)
            return None
        refused = ((j, gather(problem, [row])[1]) for j, row in enumerate(X))
        found = next(((j, reasons[0]) for j, reasons in refused if reasons), None)
        return None if found is None else DataError(f"tensor {found[0]} cannot be learned: {found[1]}")
    except DataError as error:
        return error


def _numbers(objects: BigArray) -> BigArray:
    try:
        return objects.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"X has what is not a number: {error}") from error
