"""Which penalties, weights and radius hold: those of the settings at the genesis, or those of a later reconfiguration.

The journal says it: a genesis has the terms that it began with, and each record after a reconfiguration those in force.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from stream_ocpdl.errors import ConfigError, LineageError
from stream_ocpdl.ocpdl.problem import Problem
from stream_ocpdl.ocpdl.schedules import name_of, named
from stream_ocpdl.stream.messages import Terms
from stream_ocpdl.stream.plan import Plan


def terms_of(problem: Problem) -> Terms:
    """The terms of a problem."""
    radius = problem.radius.item() if isinstance(problem.radius, np.generic) else problem.radius
    return Terms(problem.sparsity, problem.ridge, name_of(problem.weights), radius)


def in_force(problem: Problem, terms: Terms | None) -> Problem:
    """The problem on other terms; the same object where they are its own."""
    return problem if terms is None or terms == terms_of(problem) else _changed(problem, terms)


@lru_cache(16)
def _changed(problem: Problem, terms: Terms) -> Problem:
    """One object for the same terms: a problem keeps what it has worked out."""
    own = terms_of(problem)
    given: dict[str, Any] = {name: value for name, value in terms._asdict().items() if value != getattr(own, name)}
    if "weights" in given:
        given["weights"] = named(given["weights"])
    return replace(problem, **given)


def on_terms(plan: Plan, terms: Terms | None) -> Plan:
    """The plan on other terms."""
    problem = in_force(plan.problem, terms)
    return plan if problem is plan.problem else replace(plan, problem=problem)


def changed(problem: Problem, change: Mapping[str, Any]) -> Terms:
    """The terms after a change of some of them, or why it cannot be made."""
    if not change:
        raise ConfigError("there is nothing to change: give sparsity, ridge, weights or radius")
    given = dict(change) | ({"weights": name_of(named(change["weights"]))} if "weights" in change else {})
    terms = terms_of(problem)._replace(**given)
    new = in_force(problem, terms)
    if new.penalised != problem.penalised and problem.automatic:
        raise ConfigError(
            "a penalty cannot come to a model that had none, nor go from one that had it: the loadings would have to be"
            " in another set; begin a new model, with warm_start if you like"
        )
    return terms


def hold_to(mine: Terms, first: Terms, now: Terms) -> None:
    """Raise unless settings have the terms that a model began with, or those in force, which hold."""
    if mine not in (first, now):
        raise LineageError(
            f"the settings ask for another problem than the journal has: {told_apart(now, mine)}; restore them, and"
            " change a model that is running with: stream-ocpdl reconfigure"
        )


def told_apart(terms: Terms, other: Terms) -> str:
    """What differs, for people.

    >>> told_apart(Terms(0.1, 0.0, "balanced", None), Terms(0.2, 0.0, "balanced", "auto"))
    'sparsity 0.1 → 0.2, radius none → auto'
    """

    def said(value: Any) -> str:
        return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    pairs = [(name, getattr(terms, name), getattr(other, name)) for name in Terms._fields]
    return ", ".join(f"{name} {said(a)} → {said(b)}" for name, a, b in pairs if a != b)
