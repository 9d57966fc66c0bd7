"""What `bench video` left behind, in words: on a terminal, and as a section of docs/paper.md."""

from pathlib import Path
from typing import Any

from stream_ocpdl.experiments import video
from stream_ocpdl.experiments.markdown import shown, table
from stream_ocpdl.experiments.records import Document

DRAWN = "Pictures of the atoms, and beside them their courses over the frames of a clip"
"""What is in the picture."""

VIDEO = """\
## A video of the cortex of a mouse

The paper's figure of the brain: clips of 50 frames (two seconds) from anywhere in the video, at full resolution, each
learned as (time, space · colour); one a step, 20 atoms, λ = 2, w_t = 1/t, c′ = 10⁵, float32. Cells are bytes, as the
authors' code has them; at that scale λ = 2 is next to nothing, but columns have norm at most one because of it, and
c′/t is never met. Loadings are solved to a residual of {tolerance:g}: with all digits, of every fourth pixel each way,
a step took four times as long, and errors of 16 clips were 0.1974 in place of 0.1982. The error is that of all clips
end to end under the last dictionary, ‖X − X̂‖/‖X‖."""


NUMBERS = """\
An atom has a share of the mean of all clips; the area is how much of the picture its red is about, and time how much of
the clip its course is, both by 1/Σp² of shares p. Red is what is active; a ground at rest has hardly any, and that all
over."""


def section(document: Document, results: Path) -> list[str]:
    """Figures, the picture if it was drawn, and the atoms in numbers."""
    return [
        VIDEO.format(tolerance=video.TOLERANCE) + "\n",
        f"{summary(document)}\n",
        *shown(results, "video.jpg", DRAWN),
        *([SEEN] if (document["source"], document["clips"]) == (video.VIDEO, video.FULL.clips) else []),
        NUMBERS + "\n",
        table(["atom", "share", "area of red", "time"], [_row(k, r) for k, r in enumerate(document["rows"], 1)]),
        *([through(document["kafka"]) + "\n"] if "kafka" in document else []),
    ]


SEEN = """\
Looked at (in the video's own colours; the paper draws them inverted): atom 1 is the brain at rest, nearly half of
everything, and flat in time. Activation that is localised is there: the front edges (5), one side of the front (6, 7),
the hind part (14), a spot at the lower right (11), bands beside the midline (17, 18, 20). That is what the paper says
of its spatial atoms. They are no spots on nothing: the ground comes with them, since in the colours of the video
activity takes blue away, and atoms cannot.

The courses are less than the paper reads off them. Those of the localised atoms are nearly flat, as many are in the
paper's figure: such a region is brighter or darker for a whole clip. The courses that are not flat belong to the whole
cortex (4, 8, 9, 12, 13, 16): one picture, with cosines of 0.95 and more to the first of them, that is lit for 0.3 to
0.7 s at six places of the clip, because clips begin anywhere. One atom goes out and comes back (10, above half of its
peak in frames 0 to 3, 19 to 35 and 41 to 49), which is no period. The paper's atom that activates three times in two
seconds is not found.
"""
"""What the picture shows."""


def _row(k: int, row: dict[str, float]) -> list[str]:
    return [str(k), f"{row['share']:.3f}", f"{row['area']:.3f}", f"{row['time']:.2f}"]


def summary(body: dict[str, Any]) -> str:
    """What came out, in a few sentences."""
    before, cost = body["before"], body["cost"]
    last = before[len(before) // 2 :]
    what = f"{' × '.join(map(str, body['shape']))}, {body['clips']} clips of {body['length']} frames"
    return (
        f"{body['source']}, {what}, {body['rank']} atoms: error {body['error']:.4f}; before they were learned clips had"
        f" {before[0]:.4f} at first, and {sum(last) / len(last):.4f} in the second half. The mean frame alone,"
        f" times a factor for each clip, has {body['mean']:.4f}. It took {cost['cpu_seconds']:.0f} s of CPU"
        f" ({cost['seconds']:.0f} s by the clock){peak(cost)}."
    )


def through(kafka: dict[str, Any]) -> str:
    """What the service made of the clips."""
    return (
        f"Streamed through Apache Kafka, a clip a message of {kafka['message_bytes'] / 1e6:.1f} MB in"
        f" {kafka['pieces']} pieces, the service learns all {kafka['clips']} with the same bits as without it, in"
        f" {kafka['seconds']:.0f} s{peak(kafka)}, the broker not counted."
    )


def peak(told: dict[str, Any]) -> str:
    """The peak of the memory, where the machine tells it."""
    return f"; the process had {told['peak_bytes'] / 1e9:.2f} GB at its peak" if told["peak_bytes"] else ""


def lines(body: dict[str, Any]) -> list[str]:
    """The same for people at a terminal."""
    return [
        summary(body),
        f"{'atom':>6}{'share':>9}{'area':>9}{'time':>7}",
        *(f"{k:6}{r['share']:9.3f}{r['area']:9.3f}{r['time']:7.2f}" for k, r in enumerate(body["rows"], 1)),
        *([through(body["kafka"])] if "kafka" in body else []),
    ]
