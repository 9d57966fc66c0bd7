"""What a demonstration looks like: a picture for a terminal, a line for a log, and what is said at its end."""

import sys
from collections.abc import Mapping, Sequence
from shutil import which

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stream_ocpdl.demonstration import Demonstration, Seen
from stream_ocpdl.page.charts import Series, chart
from stream_ocpdl.page.codes import Codes
from stream_ocpdl.page.report import Report
from stream_ocpdl.page.views import Json

BLOCKS = " ▁▂▃▄▅▆▇█"
WIDTH = 48

FOUND = 0.95
"""The cosine from which on an atom counts as found."""


def bar(share: float, width: int = 24) -> str:
    """A bar that is filled to this share.

    >>> bar(0.5, 4)
    '██░░'
    """
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def curve(numbers: Sequence[float], width: int = WIDTH) -> str:
    """The last numbers as a row of blocks, the largest the highest.

    >>> curve([4.0, 2.0, 1.0])
    '█▄▂'
    """
    shown = list(numbers)[-width:]
    top = max(shown, default=0.0)
    return "".join(BLOCKS[max(1, round(8 * x / top)) if top > 0 and x > 0 else 0] for x in shown)


def line(shown: Demonstration) -> str:
    """One line for a log."""
    shard, step, found = shown.shard, shown.shard.step, shown.matches()
    if step is None:
        return f"{shard.doing} …"
    match = f", match with the truth {sum(found) / len(found):.3f}" if found else ""
    return (
        f"step {shard.t}, {shard.N} tensors, loss before learning {step.prequential_loss:.4g},"
        f" surrogate {step.surrogate:.4g}{match}"
    )


def picture(shown: Demonstration, seconds: float) -> RenderableType:
    """Everything at a glance."""
    shard, step = shown.shard, shown.shard.step
    progress = ProgressBar(total=shown.count, completed=shard.N, width=WIDTH)
    if step is None:
        return Panel(Group(progress, "", Text(f"{shard.doing} …")), title="stream_ocpdl", width=WIDTH + 28)
    shown.losses.append((shard.t, step.prequential_loss))
    facts = Table.grid(padding=(0, 2))
    facts.add_row("learned", f"{shard.N:,} tensors, {shard.t:,} steps", f"{shard.learned / max(seconds, 0.1):,.0f}/s")
    lag = shard.lag(shard.client())
    facts.add_row("waiting", f"{sum(lag.values()):,} tensors" if lag else "–", f"{shard.lag_seconds(lag):.1f} s old")
    facts.add_row("surrogate loss", f"{step.surrogate:.4f}", "falls, then flattens")
    facts.add_row("loss before learning", f"{step.prequential_loss:.4f}", curve(binned(shown.losses), 24))
    for name, way, radius in zip(shard.modes, step.movements, step.radii, strict=True):
        facts.add_row(f"mode {name} moved", f"{way:.2e}", f"of {radius:.2e} that it might")
    atoms = Table.grid(padding=(0, 2))
    for r, cosine in enumerate(shown.matches()):
        found = Text(bar(cosine, WIDTH // 2), style="green" if cosine >= FOUND else "yellow")
        atoms.add_row(f"true atom {r}", found, f"{cosine:.3f}")
    parts = Group(progress, "", facts, "", atoms)
    return Panel(parts, title="stream_ocpdl", subtitle=shown.board.address, width=WIDTH + 28)


def binned(losses: list[tuple[int, float]], count: int = 24) -> list[float]:
    """Means of as many stretches of steps as a curve has places."""
    size = max(1, -(-len(losses) // count))
    return [sum(x for _, x in losses[k : k + size]) / len(losses[k : k + size]) for k in range(0, len(losses), size)]


def summary(shown: Demonstration, finished: bool) -> str:
    """What was seen."""
    found = shown.matches()
    lines = ["" if finished else "stopped early", line(shown)]
    if found:
        lines.append(f"match with the truth: {sum(found) / len(found):.3f}")
    return "\n".join(lines).lstrip("\n")


NEXT = {
    "demo --data image --report image.html": "patches of a picture in colour, and what they are made of",
    "plan --shape 90,5000 --rank 20 --rate 50": "what a model of yours would take on this machine",
    "config --set model=weather --set input=weather.tensors --set bootstrap_servers=localhost:9092"
    " --set 'problem.shape=[4, 3]' --set problem.rank=2": "the settings of a service: a file to begin with",
}
"""What to try, each without a broker."""


def next_steps() -> str:
    """What to try next, as it can be typed here."""
    started = "python -m stream_ocpdl" if sys.argv[0].endswith("__main__.py") else sys.argv[0]
    program = "stream-ocpdl" if which("stream-ocpdl") else started
    tried = [line for command, said in NEXT.items() for line in (f"  # {said}", f"  {program} {command}")]
    real = f"  {program} demo --bootstrap-servers HOST:PORT"
    return "\n".join(
        ["", "next:", *tried, "", "and with a Kafka of your own, which the README takes from there:", real]
    )


def report_of(shown: Demonstration, built: Mapping[str, str]) -> Report:
    """What was learned, to be kept."""
    shard, plan = shown.shard, shown.plan
    codes = Codes(plan.problem.rank)
    for H in shard.codes:
        codes.add(H)
    matched = {column: f"true atom {r}, cosine {cosine:.3f}" for r, (column, cosine) in shown.matched().items()}
    scores = shown.matches()
    facts = {
        "model": plan.model,
        "steps": f"{shard.t:,} of {plan.problem.batch_size} tensors each, {shard.N:,} in all",
        **({"match with the truth": f"{sum(scores) / len(scores):.3f}"} if scores else {}),
        "problem": repr(plan.problem),
        "report by": f"stream_ocpdl {built['version']}, Python {built['python']}",
    }
    return Report(
        f"{plan.model}, step {shard.t:,}",
        shard.loadings,
        plan.layout,
        plan.axes,
        codes=codes,
        codes_of=f"the last {codes.count:,} tensors",
        charts=charts(shard),
        card=shard.card,
        facts=facts,
        remarks=matched,
    )


def charts(shard: Seen) -> list[Json]:
    """How it converged."""
    t = [mark.t for mark in shard.trail]
    losses = [
        Series("surrogate, of all that was learned", t, [mark.surrogate for mark in shard.trail]),
        Series("before learning, of each minibatch", t, [mark.loss for mark in shard.trail]),
    ]
    moved = []
    for i, name in enumerate(shard.modes):
        mode = name if shard.plan.axes else f"mode {name}"
        moved.append(Series(f"{mode} moved", t, [mark.movements[i] for mark in shard.trail], colour=i))
        moved.append(Series(f"{mode} might", t, [mark.radii[i] for mark in shard.trail], dashed=True, colour=i))
    return [
        chart("Loss", "step", "loss of a tensor", losses),
        chart("Movement against radius", "step", "‖ΔU‖", moved, "The radius bounds every step.", log="xy"),
    ]
