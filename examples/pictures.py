"""Pictures of what was learned, as SVG, with nothing but NumPy: rows of tiles, each a matrix or a curve."""

from pathlib import Path

import numpy as np

SIDE, GAP, HEAD = 96, 10, 22


def tile(array, x, y, highest):
    """A matrix in grey, dark where it is large; a curve as a line; below zero is red, or below the line."""
    if array.ndim == 1:
        low = min(0.0, float(array.min()))
        across = x + np.linspace(0, SIDE, len(array))
        down = y + SIDE * (1 - (array - low) / max(highest - low, 1e-12))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
        return f'<polyline points="{points}" fill="none" stroke="#1f5a8a" stroke-width="1.5"/>{frame(x, y)}'
    height, width = SIDE / array.shape[0], SIDE / array.shape[1]
    cells = []
    for i, j in np.argwhere(array != 0):
        colour, opacity = ("#111" if array[i, j] > 0 else "#b00"), min(1.0, abs(array[i, j]) / max(highest, 1e-12))
        place = f'x="{x + j * width:.2f}" y="{y + i * height:.2f}" width="{width:.2f}" height="{height:.2f}"'
        cells.append(f'<rect {place} fill="{colour}" fill-opacity="{opacity:.2f}"/>')
    return "".join(cells) + frame(x, y)


def frame(x, y):
    """The border of a tile."""
    return f'<rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#999" stroke-width="0.5"/>'


def picture(path, rows):
    """Write titles, each with the tiles below it; a tile's darkest is its own largest number."""
    parts, y, width = [], GAP, 0
    for title, arrays in rows:
        parts.append(f'<text x="{GAP}" y="{y + 14}" font-family="sans-serif" font-size="13">{title}</text>')
        for k, array in enumerate(arrays):
            x = GAP + k * (SIDE + GAP)
            parts.append(tile(np.asarray(array, float), x, y + HEAD, float(np.abs(array).max())))
            width = max(width, x + SIDE + GAP)
        y += HEAD + SIDE + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}">'
    Path(path).write_text(f'{head}<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n')


def atoms(model, codes):
    """The atoms as tensors, the most used first, and the share of each in the energy of all."""
    shapes = model.inverse_transform(np.eye(codes.shape[1]))
    energy = (codes**2).mean(axis=0) * (shapes**2).reshape(len(shapes), -1).sum(axis=1)
    order = np.argsort(-energy)
    return shapes[order], energy[order] / energy.sum()
