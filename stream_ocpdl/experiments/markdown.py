"""What sections of the page are made of: tables, and pictures that were drawn."""

from collections.abc import Sequence
from pathlib import Path


def place(file: str) -> str:
    """The name of a picture among those of all pages.

    >>> place("paper.png"), place("image-atoms.png")
    ('paper-races.png', 'paper-image-atoms.png')
    """
    return "paper-races.png" if file == "paper.png" else f"paper-{file}"


def shown(results: Path, file: str, what: str) -> list[str]:
    """A picture, if it was drawn."""
    return [f"![{what}](pictures/{place(file)})\n"] if (results / file).exists() else []


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
