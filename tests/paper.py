"""The oracle: the paper in einsum, without cleverness and without anything from the package.

Shapes as in the package (batch and atom first), formulas as in the paper, all data kept. Slow on purpose. A NaN is a
cell that was not observed: it has no part in losses and codes.
"""

from itertools import product

import numpy as np

MODES = "ijkl"


def out(loadings):
    """Out(U₁ … Uₙ), eq:def_OUT: the atoms (R, I₁…Iₙ)."""
    modes = MODES[: len(loadings)]
    return np.einsum(",".join(f"{m}r" for m in modes) + "->r" + modes, *loadings)


def correlations(X, loadings):
    """⟨X_j, atom r⟩ (b, R): the WᵀX of Algorithm 4."""
    return X.reshape(len(X), -1).astype(float) @ out(loadings).reshape(loadings[0].shape[1], -1).T


def losses(X, loadings, H, lam=0.0, ridge=0.0):
    """ℓ(X_j, D, h_j) of each tensor, eq:def_loss_full with the elastic net of the remark on (A4)."""
    rest = X - np.einsum("br,r...->b...", H, out(loadings))
    axes = tuple(range(1, X.ndim))
    return np.nansum(rest**2, axis=axes) + lam * np.abs(H).sum(axis=1) + ridge * np.sum(H**2, axis=1)


def normal(X, loadings, lam=0.0, ridge=0.0):
    """Q (R, R) and L (b, R) of Algorithm 4 for H ≥ 0, for tensors that miss the same cells: WᵀW + λ₂I and WᵀX − λ/2."""
    W, X = out(loadings).reshape(loadings[0].shape[1], -1).T, X.reshape(len(X), -1).astype(float)
    seen = ~np.isnan(X[0])
    W, X = W[seen], X[:, seen]
    return W.T @ W + ridge * np.eye(W.shape[1]), X @ W - lam / 2


def coding(X, loadings, lam=0.0, ridge=0.0, upper=np.inf, signed=False):
    """argmin over 0 ≤ H ≤ upper, or |H| ≤ upper, of ℓ (eq:coding_OCPDL), for all tensors that miss the same cells."""
    H = np.zeros((len(X), loadings[0].shape[1]))
    _, which = np.unique(np.isnan(X.reshape(len(X), -1)), axis=0, return_inverse=True)
    for same in (which == k for k in range(which.max() + 1)):
        if signed:
            H[same] = of_either_sign(*normal(X[same], loadings, 0.0, ridge), lam / 2, upper)
        else:
            H[same] = in_the_box(*normal(X[same], loadings, lam, ridge), upper)
    return H


def filled(X, loadings, H):
    """X̃: X where it was observed, Out(D) ×ₙ₊₁ H elsewhere."""
    return np.where(np.isnan(X), np.einsum("br,r...->b...", H, out(loadings)), X)


def in_the_box(Q, L, upper, rcond=1e-13):
    """argmin of tr(YQYᵀ) − 2tr(YLᵀ) over 0 ≤ Y ≤ upper, by trying every way to put numbers at a bound or between."""
    R = len(Q)
    best, H = np.zeros(len(L)), np.zeros_like(L)
    for places in product("0f1" if np.isfinite(upper) else "0f", repeat=R):
        free, high = ([r for r in range(R) if places[r] == kind] for kind in "f1")
        Y = np.zeros_like(H)
        Y[:, high] = upper
        rest = L[:, free] - Y[:, high] @ Q[np.ix_(high, free)]
        Y[:, free] = np.linalg.lstsq(Q[np.ix_(free, free)], rest.T, rcond=rcond)[0].T
        value = np.einsum("br,rs,bs->b", Y, Q, Y) - 2 * np.einsum("br,br->b", Y, L)
        better = ((Y >= 0) & (Y <= upper)).all(axis=1) & (value < best)
        best[better], H[better] = value[better], Y[better]
    return H


def of_either_sign(Q, L, price, upper):
    """argmin of tr(YQYᵀ) − 2tr(YLᵀ) + 2·price·‖Y‖₁ over |Y| ≤ upper, by trying every sign, zero and bound.

    In an orthant the penalty is linear, and the problem one in a box.
    """
    best, H = np.full(len(L), np.inf), np.zeros_like(L)
    for signs in product((1.0, -1.0), repeat=len(Q)):
        sign = np.array(signs)
        Y = sign * in_the_box(Q * np.outer(sign, sign), L * sign - price, upper, 1e-15)
        value = np.einsum("br,rs,bs->b", Y, Q, Y) - 2 * np.einsum("br,br->b", Y, L) + 2 * price * np.abs(Y).sum(axis=1)
        better = value < best
        best[better], H[better] = value[better], Y[better]
    return H


def weights_of_the_past(weights):
    """wₛᵗ = wₛ ∏ (1 − wᵢ) over s < i ≤ t, eq:def_OCPDL_ELM_explicit."""
    weights = np.asarray(weights)
    return np.array([w * np.prod(1 - weights[s + 1 :]) for s, w in enumerate(weights)])


def surrogate(past, weights, loadings, lam=0.0, ridge=0.0):
    """f̂_t(D) = Σ wₛᵗ ℓ(Xₛ, D, Hₛ), eq:Alg1_def_surrogate_loss, per tensor; `past` is all (X, H)."""
    each = [losses(X, loadings, H, lam, ridge).mean() for X, H in past]
    return float(weights_of_the_past(weights) @ each)


def empirical(past, weights, loadings, lam=0.0, ridge=0.0, upper=np.inf, signed=False):
    """f_t(D) = Σ wₛᵗ ℓ(Xₛ, D), eq:def_OCPDL_ELM_explicit, per tensor: every tensor is coded anew."""
    each = [losses(X, loadings, coding(X, loadings, lam, ridge, upper, signed), lam, ridge).mean() for X, _ in past]
    return float(weights_of_the_past(weights) @ each)


def aggregates(past, weights):
    """A_t and B_t, eq:main_alg_aggregate_tensors, from all the data."""
    ws = weights_of_the_past(weights)
    A = sum(w * H.T @ H / len(X) for w, (X, H) in zip(ws, past, strict=True))
    B = sum(w * np.einsum("br,b...->r...", H, X) / len(X) for w, (X, H) in zip(ws, past, strict=True))
    return A, B


def intermediate(A, B, loadings, i):
    """Algorithm 3: Ā (eq:def_Atj) and B̄ (eq:def_Btrj) of mode i."""
    n, modes = len(loadings), MODES[: len(loadings)]
    others = [j for j in range(n) if j != i]
    bar = A.copy()
    for j in others:
        bar = bar * (loadings[j].T @ loadings[j])
    spec = ",".join(["r" + modes] + [f"{modes[j]}r" for j in others]) + f"->{modes[i]}r"
    return bar, np.einsum(spec, B, *(loadings[j] for j in others))


def project_both(V, project, centre, radius):
    """Π of C ∩ ball by Dykstra's alternating projections."""
    Y, p, q = V, np.zeros_like(V), np.zeros_like(V)
    for _ in range(2000):
        Z = project(Y + p)
        p = Y + p - Z
        gap = np.linalg.norm(Z + q - centre)
        new = Z + q if gap <= radius else centre + (Z + q - centre) * (radius / gap)
        q = Z + q - new
        if np.linalg.norm(new - Y) <= 1e-15 * np.linalg.norm(new):
            break
        Y = new
    return new


def update(A, B, project, start, radius, steps=4000):
    """argmin of tr(UĀUᵀ) − 2tr(UB̄ᵀ) over C ∩ ball (Algorithm 2), by projected gradients with the step 1/tr Ā."""
    U, step = start, 1 / max(np.trace(A), 1e-300)
    for _ in range(steps):
        new = project_both(U - step * (U @ A - B), project, start, radius)
        if np.linalg.norm(new - U) <= 1e-14 * np.linalg.norm(new):
            break
        U = new
    return new


def unfolded_normal(X, factors, i):
    """unfold(X, i)ᵀB and BᵀB of Algorithms 6 and 7, with B = Out of the other factors, vectorised."""
    others = [U for j, U in enumerate(factors) if j != i]
    B = out(others).reshape(factors[0].shape[1], -1).T if others else np.ones((1, factors[0].shape[1]))
    return np.moveaxis(X, i, 0).reshape(len(factors[i]), -1) @ B, B.T @ B


def als(X, factors, rounds):
    """algorithm:ALS, each block by trying every support; blocks see the new factors of those before them."""
    factors = list(factors)
    for _ in range(rounds):
        for i in range(len(factors)):
            L, Q = unfolded_normal(X, factors, i)
            factors[i] = in_the_box(Q, L, np.inf)
    return factors


def mu(X, factors, rounds):
    """algorithm:MU, U ⊙ unfold(X, i)ᵀB ⊘ (UBᵀB); likewise."""
    factors = list(factors)
    for _ in range(rounds):
        for i in range(len(factors)):
            L, Q = unfolded_normal(X, factors, i)
            factors[i] = factors[i] * L / (factors[i] @ Q)
    return factors
