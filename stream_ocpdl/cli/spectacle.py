"""What a demonstration looks like: a picture for a terminal, a line for a log, and what is said at its end."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stream_ocpdl.demonstration import Demonstration

BLOCKS = " ▁▂▃▄▅▆▇█"
WIDTH = 48


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
        return Panel(Group(progress, Text(f"{shard.doing} …")), title="stream_ocpdl", width=WIDTH + 28)
    shown.losses.append((shard.t, step.prequential_loss))
    facts = Table.grid(padding=(0, 2))
    facts.add_row("learned", f"{shard.N:,} tensors in {shard.t:,} steps", f"{shard.learned / max(seconds, 0.1):,.0f}/s")
    facts.add_row("surrogate loss", f"{step.surrogate:.4f}", "falls, then flattens")
    facts.add_row("loss before learning", f"{step.prequential_loss:.4f}", curve(binned(shown.losses), 24))
    for name, way, radius in zip(shard.modes, step.movements, step.radii, strict=True):
        facts.add_row(f"mode {name} moved", f"{way:.2e}", f"of {radius:.2e} that it might")
    atoms = Table.grid(padding=(0, 2))
    for r, cosine in enumerate(shown.matches()):
        atoms.add_row(f"true atom {r}", bar(cosine, WIDTH // 2), f"{cosine:.3f}")
    return Panel(Group(progress, "", facts, "", atoms), title="stream_ocpdl", width=WIDTH + 28)


def binned(losses: list[tuple[int, float]], count: int = 24) -> list[float]:
    """Means of as many stretches of steps as a curve has places."""
    size = max(1, -(-len(losses) // count))
    return [sum(x for _, x in losses[k : k + size]) / len(losses[k : k + size]) for k in range(0, len(losses), size)]


def summary(shown: Demonstration, finished: bool) -> str:
    """What was seen, and what to try next."""
    found = shown.matches()
    lines = ["" if finished else "stopped early", line(shown)]
    if found:
        lines.append(f"match with the truth: {sum(found) / len(found):.3f}")
    lines += [
        "",
        "next:",
        "  stream-ocpdl demo --bootstrap-servers HOST:PORT    the same on a real Kafka",
        "  stream-ocpdl config --set model=weather …          the settings of a service, explained in docs/settings.md",
        "  stream-ocpdl run --config service.yaml             the service itself",
    ]
    return "\n".join(lines).lstrip("\n")
