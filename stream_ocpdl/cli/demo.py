"""`stream-ocpdl demo`: a stream with a known dictionary, and the learner finding it."""

from collections.abc import Iterator, Sequence

import click
import numpy as np

from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.diagnostics import assumption_card, stationarity
from stream_ocpdl.ocpdl.learner import Learner
from stream_ocpdl.ocpdl.matching import assign, similarities
from stream_ocpdl.ocpdl.problem import Problem

SHAPE, RANK, BATCH, NOISE = (24, 20, 6), 4, 16, 0.02


@click.command()
@click.option("--steps", type=click.IntRange(1), default=400, show_default=True, help="Minibatches to learn.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the truth, the stream and the first loadings.",
)
def demo(steps: int, seed: int) -> None:
    """Learn the dictionary of a Markovian stream, in memory.

    Tensors are mixtures of four known atoms; the mixture is a slowly mixing Markov chain, plus noise.

    Example: stream-ocpdl demo --steps 200
    """
    random = np.random.default_rng(seed)
    truth = [bumps(rows, random) for rows in SHAPE]
    learner = Learner(Problem(shape=SHAPE, rank=RANK, batch_size=BATCH, seed=seed))
    click.echo(f"{'step':>6} {'tensors':>8} {'weight':>8} {'loss before learning':>21} {'surrogate':>10} {'match':>6}")
    for X in stream(truth, steps, random):
        step = learner.step(X)
        if step.t in (1, 2, 5, 10, 20, 50) or step.t % 100 == 0:
            match = similarity(learner.state.loadings, truth)
            click.echo(
                f"{step.t:6d} {step.N:8d} {step.weight:8.4f} {step.prequential_loss:21.4f} "
                f"{step.surrogate:10.4f} {match:6.3f}"
            )
    click.echo(f"\nstationarity by mode: {', '.join(f'{r:.1e}' for r in stationarity(learner.problem, learner.state))}")
    for line in assumption_card(learner.problem, learner.state):
        click.echo(f"{line.name:14} {line.standing:6} {line.reason}")
    click.echo(f"\nmatch with the truth: {similarity(learner.state.loadings, truth):.3f}")


def bumps(rows: int, random: np.random.Generator) -> Array:
    """Columns with one hill each, at random places."""
    places = random.random(RANK) * rows
    return np.asarray(np.exp(-0.5 * ((np.arange(rows)[:, None] - places) / (0.1 * rows)) ** 2))


def stream(truth: list[Array], steps: int, random: np.random.Generator) -> Iterator[Array]:
    """Minibatches of one long chain: the mixture keeps nine tenths of itself from one tensor to the next."""
    H = random.exponential(size=RANK)
    for _ in range(steps):
        codes = np.empty((BATCH, RANK))
        for j in range(BATCH):
            H = 0.9 * H + 0.1 * 4.0 * random.exponential(size=RANK) * (random.random(RANK) < 0.25)
            codes[j] = H
        X = np.einsum("bR,iR,jR,kR->bijk", codes, *truth)
        yield X + NOISE * random.exponential(size=X.shape)


def similarity(loadings: Sequence[Array], truth: list[Array]) -> float:
    """Mean cosine of true and learned atoms, matched one to one."""
    cosines = similarities(truth, loadings)
    return float(cosines[range(RANK), assign(-cosines)].mean())
