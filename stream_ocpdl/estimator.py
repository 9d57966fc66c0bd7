"""The learner for everyday use, without Kafka, with scikit-learn's verbs."""

from secrets import randbits
from typing import Any, Literal, Self

import numpy as np

from stream_ocpdl.errors import DataError, StateError
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.batch import as_array, read_batch
from stream_ocpdl.ocpdl.constraints import Constraint
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.problem import WEIGHTS, Problem
from stream_ocpdl.ocpdl.results import Step
from stream_ocpdl.ocpdl.schedules import Schedule


class OnlineCPDL:
    """Online nonnegative CP-dictionary of tensors X (b, I₁…Iₙ); the parameters are those of `Problem`.

    An error leaves the model as it was.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((200, 8, 6))
    >>> model = OnlineCPDL(rank=3, batch_size=20, random_state=0).fit(X)
    >>> model.n_steps_, model.transform(X).shape, [U.shape for U in model.loadings_]
    (10, (200, 3), [(8, 3), (6, 3)])
    """

    def __init__(
        self,
        rank: int,
        *,
        sparsity: float = 0.0,
        ridge: float = 0.0,
        weights: Schedule = WEIGHTS,
        radius: float | Literal["auto"] | None = "auto",
        constraints: Constraint | tuple[Constraint, ...] | Literal["auto"] = "auto",
        batch_size: int = 32,
        dtype: Literal["float64", "float32"] = "float64",
        missing: Literal["reject", "impute"] = "reject",
        random_state: int | None = None,
    ) -> None:
        self.rank = rank
        self.sparsity = sparsity
        self.ridge = ridge
        self.weights = weights
        self.radius = radius
        self.constraints = constraints
        self.batch_size = batch_size
        self.dtype = dtype
        self.missing = missing
        self.random_state = random_state

    def fit(self, X: Any, y: None = None) -> Self:
        """Forget everything, then learn X in one pass, in its order, in minibatches of `batch_size`."""
        learner = Learner(self._problem(X))
        X = read_batch(learner.problem, X).X
        for start in range(0, len(X), learner.problem.batch_size):
            step = learner.step(X[start : start + learner.problem.batch_size])
        self._learned(learner, step)
        return self

    def partial_fit(self, X: Any, y: None = None) -> Self:
        """Learn X as one minibatch: one step of the algorithm."""
        learner: Learner = self.__dict__.get("learner_") or Learner(self._problem(X))
        self._learned(learner, learner.step(X))
        return self

    def transform(self, X: Any) -> Array:
        """Codes H (b, R) of X under the dictionary learned so far."""
        return self._fitted().code(X).H

    def inverse_transform(self, H: Any) -> Array:
        """The tensors (b, I₁…Iₙ) that codes H (b, R) stand for: Out(D) ×ₙ₊₁ H."""
        loadings, T = self._fitted().state.loadings, as_array(H, "H")
        rank = loadings[0].shape[1]
        if T.ndim != 2 or T.shape[1] != rank:
            raise DataError(f"H has shape {T.shape}; codes of this model have shape (b, {rank})")
        T = T.astype(np.float64)
        if not np.isfinite(T).all():
            raise DataError("H has numbers that are not finite")
        for U in loadings[:-1]:
            T = T[..., None, :] * U
        return np.asarray(T @ loadings[-1].T)

    def score(self, X: Any, y: None = None) -> float:
        """The share of X's energy that its reconstruction explains: 1 − ‖X − X̂‖²/‖X‖² over the observed cells."""
        batch = read_batch(self._fitted().problem, X)
        rest = batch.X - self.inverse_transform(self.transform(batch.X))
        return 1.0 - float(np.nansum(rest * rest)) / batch.energy if batch.energy > 0.0 else 0.0

    @property
    def loadings_(self) -> list[Array]:
        """U₁ … Uₙ, each (Iᵢ, R)."""
        return [U.copy() for U in self._fitted().state.loadings]

    @property
    def n_steps_(self) -> int:
        """How many minibatches were learned."""
        return self._fitted().state.t

    @property
    def surrogate_(self) -> float:
        """f̂_t(D_t), the surrogate loss of a tensor after the last step."""
        self._fitted()
        return self.last_step_.surrogate

    def _problem(self, X: Any) -> Problem:
        """The problem that these parameters and the shape of X pose."""
        array = as_array(X, "X")
        if array.ndim < 2:
            raise DataError(f"X has shape {array.shape}; a minibatch has shape (b, I₁, …, Iₙ)")
        return Problem(
            shape=array.shape[1:],
            rank=self.rank,
            sparsity=self.sparsity,
            ridge=self.ridge,
            weights=self.weights,
            batch_size=self.batch_size,
            radius=self.radius,
            constraints=self.constraints,
            dtype=self.dtype,
            missing=self.missing,
            seed=randbits(63) if self.random_state is None else self.random_state,
        )

    def _learned(self, learner: Learner, step: Step) -> None:
        self.learner_ = learner
        self.last_step_ = step

    def _fitted(self) -> Learner:
        learner: Learner | None = self.__dict__.get("learner_")
        if learner is None:
            raise StateError("this OnlineCPDL has learned nothing yet; call fit or partial_fit first")
        return learner
