"""scikit-learn's conventions for estimators, kept by hand: it is not needed here, and may or may not be installed.

Parameters are what `__init__` takes, stored under their names and untouched until `fit`; what is learned ends with an
underscore. From these follow get_params and set_params, by which `clone`, pipelines and searches work.
"""

import inspect
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from stream_ocpdl.errors import ConfigError, StateError


class NotFitted(StateError, AttributeError):
    """A model was asked for what it has not learned yet; to `hasattr` it does not have it."""


class Conventions:
    """What an estimator needs besides its verbs."""

    _parameters: ClassVar[Mapping[str, Any]] = {}
    """The parameters of an estimator, and their defaults."""

    def __init_subclass__(cls) -> None:
        cls._parameters = {name: found.default for name, found in inspect.signature(cls).parameters.items()}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name. None of them has parameters of its own, so `deep` changes nothing."""
        return {name: getattr(self, name) for name in self._parameters}

    def set_params(self, **params: Any) -> Self:
        """Other values for some parameters; they are looked at when the model learns again."""
        for name in params:
            if name not in self._parameters:
                known = ", ".join(self._parameters)
                raise ConfigError(f"{type(self).__name__} has no parameter {name!r}; it has {known}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        default = self._parameters
        given = {name: value for name, value in self.get_params().items() if repr(value) != repr(default[name])}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        return "learner_" in self.__dict__


def seed_of(random_state: Any) -> int:
    """A seed from an int, from what draws numbers (RandomState, Generator), or for None from NumPy's global state.

    >>> seed_of(7)
    7
    >>> seed_of("7")
    Traceback (most recent call last):
    stream_ocpdl.errors.ConfigError: random_state must be a whole number, a RandomState, a Generator or None, not '7'
    """
    if random_state is None:
        random_state = np.random.mtrand._rand  # what np.random.seed seeds
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(1 << 31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(1 << 31, dtype=np.int64))
    if not isinstance(random_state, (int, np.integer)) or isinstance(random_state, bool):
        wanted = "a whole number, a RandomState, a Generator or None"
        raise ConfigError(f"random_state must be {wanted}, not {random_state!r}")
    return int(random_state)


def not_fitted(name: str) -> NotFitted:
    """The error of a model that has learned nothing; scikit-learn's own as well, for those who have imported that."""
    theirs = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", None)
    both = (NotFitted,) if theirs is None else (NotFitted, theirs)
    kind: type[NotFitted] = type("NotFitted", both, {"__module__": __name__})
    return kind(f"this {name} has learned nothing yet; call fit or partial_fit first")


def tags(nonnegative: bool, gaps: bool) -> Any:
    """What scikit-learn wants to know of a transformer; only it asks, so it is there."""
    from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

    return Tags(
        estimator_type=None,
        target_tags=TargetTags(required=False),
        transformer_tags=TransformerTags(preserves_dtype=["float64"]),
        input_tags=InputTags(three_d_array=True, sparse=True, positive_only=nonnegative, allow_nan=gaps),
    )
