"""A model in one HTML file: it opens from a disk, and asks the network for nothing.

Atoms are drawn as what they are (`views`), those that are used most first; then how it converged, what the codes have
in common, which assumptions of the theorem hold, and what it is a report of. Text of others is text, never markup.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.diagnostics import Assumption
from stream_ocpdl.ocpdl.reshape import Layout
from stream_ocpdl.page.codes import Codes
from stream_ocpdl.page.files import plotly, static
from stream_ocpdl.page.views import Json, atoms

DRAWN = 100
"""Atoms that are drawn, at most."""

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""What a browser may do with the file: nothing but what is in it."""

MEANING = {
    "(A1)": "The data are the states of a mixing Markov chain, or a function of them.",
    "(A2) loadings": "Loadings live in compact convex sets.",
    "(A2) codes": "So do codes.",
    "(A3)": "Weights fall neither too fast nor too slowly.",
    "(A4)": "Codes are unique, so that the expected loss is smooth.",
    "radius": "A step moves the dictionary no further than its weight allows.",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What there is to say of a model; everything but the dictionary may be missing."""

    title: str
    loadings: Sequence[Array]
    layout: Layout | None = None
    axes: Sequence[str] | None = None
    names: Sequence[int] = ()
    """The identities of the atoms; without them their numbers."""
    codes: Codes | None = None
    codes_of: str = ""
    """Which codes these are, in words."""
    charts: Sequence[Json] = ()
    card: Sequence[Assumption] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[tuple[str, str]] = ()
    """What happened to the model besides steps: when, and what."""
    settings: str = ""
    remarks: Mapping[int, str] = field(default_factory=dict)
    """Of single atoms, by their columns."""
    missing: Sequence[str] = ()
    """What should be here and is not, and why."""

    @property
    def sizes(self) -> Array:
        """The norms of the atoms."""
        return np.asarray(np.prod([np.linalg.norm(U, axis=0) for U in self.loadings], axis=0))

    def shares(self) -> Array:
        """(R,): how much of what was reconstructed each atom is; zeros where no codes are known."""
        return np.zeros(len(self.sizes)) if self.codes is None else self.codes.shares(self.sizes)


def page(report: Report) -> str:
    """The file."""
    script = "\n".join(static(name) for name in ("atoms.js", "charts.js", "report.js"))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{escape(report.title)}</title>",
            f"<style>{static('style.css')}</style></head><body>",
            *body(report),
            f'<script type="application/json" id="data">{_safe(data(report))}</script>',
            *([f"<script>{plotly()}</script>"] if report.charts else []),
            f'<script type="module">{script}</script>',
            "</body></html>\n",
        ]
    )


def data(report: Report) -> Json:
    """What the script draws."""
    return {
        "atoms": drawn(report),
        "charts": list(report.charts),
        "codes": [] if report.codes is None or report.codes.count == 0 else report.codes.views(),
    }


def drawn(report: Report) -> list[Json]:
    """The atoms, those that are used most first; without codes the largest."""
    shares, sizes = report.shares(), report.sizes
    order = np.lexsort((-sizes, -shares))[:DRAWN].tolist()
    names = report.names or range(len(sizes))
    found = []
    for atom, r in zip(atoms(report.loadings, report.layout, report.axes, order), order, strict=True):
        use = f"{shares[r]:.1%} of what was reconstructed" if shares.any() else f"norm {sizes[r]:.3g}"
        found.append(atom | {"name": f"atom {names[r]}", "use": use, "remark": report.remarks.get(r, "")})
    return found


def body(report: Report) -> list[str]:
    """All of it in words, with places for pictures."""
    R, shape = len(report.sizes), report.layout.shape if report.layout else [len(U) for U in report.loadings]
    kind = " × ".join(map(str, shape))
    first = f" The {DRAWN} of them that are used most are drawn." if R > DRAWN else ""
    return [
        f"<h1>{escape(report.title)}</h1>",
        f"<p>A dictionary of {R} atoms: every tensor of the stream, {kind}, is close to a mixture of them. How much of"
        " each atom is in a tensor, its code says.</p>",
        *(f'<p class="open">{escape(line)}</p>' for line in report.missing),
        f'<h2>Atoms</h2><p class="faint">{"By use" if report.shares().any() else "By size"}.{first}</p>',
        '<div class="grid" id="atoms"></div>',
        *(['<h2>Convergence</h2><div class="wide" id="charts"></div>'] if report.charts else []),
        *_codes(report),
        *_card(report.card),
        *_table("What happened", report.events),
        *_table("What this is", list(report.facts.items())),
        *_settings(report.settings),
    ]


def _codes(report: Report) -> list[str]:
    codes = report.codes
    if codes is None or codes.count == 0:
        return []
    said = f"{report.codes_of or f'{codes.count:,} tensors'}. A tensor has {codes.used.sum() / codes.count:.3g}"
    return [
        f"<h2>Codes</h2><p>Of {escape(said)} of {codes.rank} atoms; {codes.zeros:.1%} of the codes are zero.</p>",
        '<div class="grid" id="codes"></div>',
    ]


def _card(card: Sequence[Assumption]) -> list[str]:
    if not card:
        return []
    rows = "".join(
        f'<tr><th>{escape(line.name)}</th><td class="{line.standing}">{line.standing}</td>'
        f"<td>{escape(MEANING.get(line.name, ''))} <span class=faint>{escape(line.reason)}</span></td></tr>"
        for line in card
    )
    return [
        "<h2>Assumptions</h2><p>What the theorem on convergence asks for, and whether it holds here.</p>",
        f'<div class="panel scroll"><table>{rows}</table></div>',
    ]


def _table(title: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    lines = "".join(f"<tr><th>{escape(name)}</th><td class=mono>{escape(value)}</td></tr>" for name, value in rows)
    return [f'<h2>{escape(title)}</h2><div class="panel scroll"><table>{lines}</table></div>']


def _settings(text: str) -> list[str]:
    if not text:
        return []
    return [
        f'<h2>Settings</h2><details class="panel"><summary>all of them</summary><pre>{escape(text)}</pre></details>'
    ]


def _safe(value: Any) -> str:
    """JSON that may stand inside of a script element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
