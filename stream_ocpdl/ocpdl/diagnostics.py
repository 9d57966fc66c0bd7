"""How far the dictionary is from stationary, and which hypotheses of the theorem hold."""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

import numpy as np

from stream_ocpdl.ocpdl.aggregates import Intermediate
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.quadratic import objective, residual
from stream_ocpdl.ocpdl.schedules import Verdict
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.ocpdl.workers import SERIAL, Workers


def stationarity(problem: Problem, state: State, workers: Workers = SERIAL) -> tuple[float, ...]:
    """Residual of each mode of D_t as a minimiser of f̂_t over C⁽ⁱ⁾, all other modes fixed; without the radius.

    All are zero exactly where D_t is stationary for f̂_t (lem:main_analytic_lemma (iv)). Reads B once for every mode.
    """
    at = Intermediate(state.aggregates, state.loadings, workers)
    sets = problem.sets(state.scale or 1.0).loadings
    return tuple(residual(U, *at(i), C.project) for i, (U, C) in enumerate(zip(state.loadings, sets, strict=True)))


def figures(problem: Problem, state: State, workers: Workers = SERIAL) -> tuple[float, ...]:
    """E, f̂_t(D_t), ‖A‖_F, ‖U₁‖_F … ‖Uₙ‖_F: enough to tell whether two states are the same but for rounding."""
    past = state.aggregates
    penalty = problem.sparsity * past.P + problem.ridge * float(past.A.trace())
    value = past.E + penalty + objective(state.loadings[0], *Intermediate(past, state.loadings, workers)(0))
    return (past.E, value, float(np.linalg.norm(past.A)), *(float(np.linalg.norm(U)) for U in state.loadings))


class Standing(StrEnum):
    """What can be said of a hypothesis."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One line of the card."""

    name: str
    standing: Standing
    reason: str


def assumption_card(problem: Problem, state: State | None = None) -> tuple[Assumption, ...]:
    """Which hypotheses of thm:online NTF_convergence hold for this problem, with the evidence of a state.

    >>> for line in assumption_card(Problem(shape=(9, 9), rank=2, ridge=0.1)):
    ...     print(line.name, line.standing)
    (A1) open
    (A2) loadings holds
    (A2) codes holds
    (A3) holds
    (A4) holds
    radius holds
    """
    return (
        Assumption("(A1)", Standing.OPEN, "the data come from a mixing Markov chain: a property of their source"),
        _line("(A2) loadings", _loadings_compact(problem)),
        _codes_compact(problem, state.at_bound if state else 0),
        _weights(problem),
        _codes_unique(problem),
        _line("radius", _radius(problem)),
    )


def _line(name: str, verdict: Verdict) -> Assumption:
    return Assumption(name, Standing.HOLDS if verdict.holds else Standing.FAILS, verdict.reason)


def _loadings_compact(problem: Problem) -> Verdict:
    sets = problem.sets(1.0).loadings
    for i, (C, rows) in enumerate(zip(sets, problem.shape, strict=True)):
        if not isfinite(C.norm_bound(rows, problem.rank)):
            return Verdict(False, f"the set of mode {i} is unbounded: {C}")
    return Verdict(True, "every mode has a compact convex set")


def _codes_compact(problem: Problem, at_bound: int) -> Assumption:
    name = "(A2) codes"
    if not isinstance(problem.code_bound, str):
        return Assumption(name, Standing.HOLDS, f"codes are boxed, by choice: at most {problem.code_bound:g}")
    if problem.sparsity > 0:
        return Assumption(name, Standing.HOLDS, "the penalty bounds the codes of bounded data (lem:H_bdd)")
    if problem.ridge > 0:
        return Assumption(name, Standing.HOLDS, "the ridge bounds the codes of bounded data: λ₂‖h‖² ≤ ‖X‖²")
    if at_bound:
        reason = f"{at_bound} codes were cut at their bound: the first minibatch, which set the scale, was not typical"
        return Assumption(name, Standing.OPEN, f"{reason}, or an atom is nearly zero")
    return Assumption(name, Standing.HOLDS, "codes are boxed, and none has met the bound")


def _weights(problem: Problem) -> Assumption:
    verdict = problem.weights.a3()
    more = ", for minibatches of one size" if problem.per == "tensor" and verdict.holds else ""
    return _line("(A3)", Verdict(verdict.holds, verdict.reason + more))


def _codes_unique(problem: Problem) -> Assumption:
    if problem.ridge > 0:
        return Assumption("(A4)", Standing.HOLDS, "ridge > 0 makes codes unique, so the expected loss is smooth")
    return Assumption("(A4)", Standing.OPEN, "not enforced; a ridge > 0 would. Only part (iii) of the theorem needs it")


def _radius(problem: Problem) -> Verdict:
    if problem.revive is not None:
        return Verdict(False, f"every {problem.revive} steps dead atoms are drawn anew, a leap that no weight bounds")
    if problem.radius is None:
        return Verdict(False, "no search radius: the dictionary's movement is not bounded by the weights")
    return Verdict(True, "mode i moves by at most c′ᵢ w_t a step (lem:main_analytic_lemma (ii))")
