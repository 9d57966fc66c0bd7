"""What `bench video` left behind, in words."""

from typing import Any


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
    """What the service made of the first clips."""
    return (
        f"Streamed through Apache Kafka, a clip a message of {kafka['message_bytes'] / 1e6:.1f} MB in"
        f" {kafka['pieces']} pieces, the service learns the first {kafka['clips']} with the same bits as without it, in"
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
