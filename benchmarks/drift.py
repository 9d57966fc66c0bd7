"""Whether changes of the data are noticed, and told apart; and how often one is told where there is none.

False alarms: scores of stationary streams that forget in so many tensors, minibatches of several sizes. Delays: a model
learns a Markovian stream in which a new atom appears, or whose scale doubles or halves. Settled: a model learns one in
which nothing changes, for long; quantiles are of what comes after the first steps, in which residuals still fall.
"""

from collections.abc import Iterable

import numpy as np

from benchmarks.measure import FULL, Options, Row
from tests.test_anomaly import AT, below, changes, error, scores, watched
from tests.test_anomaly import run as learned

STREAMS = ((0, 32), (10, 5), (10, 32), (100, 32), (300, 10), (1000, 32), (1000, 128), (3000, 32))
CHANGES = {"atom": "structure", "double": "scale", None: "none"}
SETTLED = 3000
"""Steps after which residuals of a model do not fall any more."""

SIZES = ((32, (20, 10), 4), (10, (6, 5, 4), 3))

KEYS = ("what", "tensors", "correlation")
RATIOS: dict[str, str] = {}


def run(options: Options = FULL) -> list[Row]:
    """Both tables."""
    rows = [*stationary(2 if options.quick else 10, 1000 if options.quick else 10_000)]
    rows += settled(1 if options.quick else 4, SETTLED + (500 if options.quick else 5000))
    return [*rows, *changing(2 if options.quick else 20)]


def stationary(seeds: int, steps: int) -> Iterable[Row]:
    """False alarms of streams in which nothing changes."""
    print(f"stationary: {seeds} runs of {steps} steps", flush=True)
    for correlation, b in STREAMS:
        alarms, shares = 0, []
        for seed in range(seeds):
            found = watched(*scores([seed, b], steps, b, correlation))[0]
            alarms += len(changes(found))
            shares.append(below(found))
        off = 100 * error(np.mean(shares, axis=0))
        told = f"{alarms} false alarms; quantiles within {off:.1f} points"
        print(f"{b:4} tensors, forgets in {correlation:4}: {told}", flush=True)
        yield {"what": "stationary", "tensors": b, "correlation": correlation, "alarms": alarms, "points": off}


def settled(seeds: int, steps: int) -> Iterable[Row]:
    """False alarms and quantiles of a model that has learned what there is to learn."""
    for b, shape, rank in SIZES:
        runs = [learned(None, seed, steps, b, shape, rank) for seed in range(seeds)]
        alarms = sum(len(changes(found)) for found in runs)
        off = [100 * float(error(below(found[SETTLED:]))) for found in runs]
        told = f"{alarms} false alarms; quantiles within {max(off):.1f} points"
        print(f"{b:4} tensors, a model over {seeds} × {steps} steps: {told}", flush=True)
        yield {"what": "settled", "tensors": b, "correlation": 10, "alarms": alarms, "points": max(off)}


def changing(seeds: int) -> Iterable[Row]:
    """Steps until a change is told, and how often it is told as what it is."""
    for b, shape, rank in SIZES:
        for change, wanted in CHANGES.items():
            found = [changes(learned(change, seed, AT + 100, b, shape, rank)) for seed in range(seeds)]
            kinds = [one[0][1] if one else "none" for one in found]
            delays = [one[0][0] - AT for one in found if one]
            told = f"after {np.median(delays):.0f} steps in the median, {max(delays)} at most" if delays else ""
            right = sum(kind == wanted for kind in kinds)
            print(f"{b:4} tensors, {change or 'nothing'}: {right} of {seeds} told as {wanted} {told}", flush=True)
            yield {"what": change or "nothing", "tensors": b, "correlation": 10, "right": right, "delays": delays}
