"""Whether the draws of a chain have the means that they should: by batch means, so that correlation is paid for."""

import numpy as np
from scipy.stats import f as fisher


def p_value(values, expected, batches=100):
    """Hotelling's T² of batch means (batches, d) against what is expected (d,): χ² with the chain's own covariance.

    Batches much longer than the autocorrelation time are nearly independent; draws are not.
    """
    values = np.asarray(values, float).reshape(len(values), -1)
    means = values[: len(values) // batches * batches].reshape(batches, -1, values.shape[1]).mean(axis=1)
    d = values.shape[1]
    away = means.mean(axis=0) - expected
    square = batches * away @ np.linalg.solve(np.cov(means.T).reshape(d, d), away)
    return float(fisher.sf(square * (batches - d) / (d * (batches - 1)), d, batches - d))


def shares(states, count):
    """Indicators (n, count − 1) of all states but the last, whose share follows from the others."""
    return np.eye(count)[np.asarray(states)][:, :-1]
