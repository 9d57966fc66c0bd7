"""A scrape: the catalogue, read off the board. Metrics cost what scrapes cost, and nothing in between."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from stream_ocpdl.observe.board import BUCKETS, Board, Durations
from stream_ocpdl.observe.catalogue import CATALOGUE, PROCESS, ROLES, Seen


class FromFamilies(Collector):
    """Asks for families when it is scraped."""

    def __init__(self, families: Callable[[], Iterable[Metric]], build: Mapping[str, str]) -> None:
        self._families, self._build = families, dict(build)

    def describe(self) -> Iterable[Metric]:
        """Nothing: it need not be scraped in order to be registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family, and the release."""
        yield from self._families()
        build = family_of(*PROCESS[-1])
        build.add_metric([], self._build)
        yield build


class FromBoard(Collector):
    """Asks the board when it is scraped."""

    def __init__(self, board: Board, build: Mapping[str, str]) -> None:
        self._board, self._build = board, dict(build)

    def describe(self) -> Iterable[Metric]:
        """Nothing: it need not be scraped in order to be registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every metric, for every shard that is written here."""
        board = self._board
        yield from self._process()
        shards = [(str(s), Seen.of(shard)) for s, shard in sorted(board.shards.items())]
        for entry in CATALOGUE:
            family = family_of(entry.name, entry.kind, entry.help, ("model", "shard", *entry.labels))
            for s, seen in shards:
                for labels, value in entry.read(seen):
                    add(family, [board.model, s, *labels], value)
            yield family

    def _process(self) -> Iterator[Metric]:
        board = self._board
        role, shards, rebalances, build = (family_of(*one) for one in PROCESS)
        for name in ROLES:
            add(role, [board.model, name], float(board.role == name))
        add(shards, [board.model], board.count)
        add(rebalances, [board.model], board.election.rebalances if board.election is not None else 0)
        build.add_metric([], self._build)
        yield from (role, shards, rebalances, build)


def family_of(name: str, kind: str, text: str, labels: tuple[str, ...]) -> Any:
    """An empty family of this kind."""
    kinds: dict[str, Any] = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
        "info": InfoMetricFamily,
    }
    return kinds[kind](name, text, labels=labels)


def add(family: Any, labels: list[str], value: Any) -> None:
    """A sample, or the buckets of durations."""
    if isinstance(value, Durations):
        total, buckets = 0, []
        for end, count in zip([*map(str, BUCKETS), "+Inf"], list(value.counts), strict=True):
            total += count
            buckets.append((end, total))
        family.add_metric(labels, buckets, value.sum)
    else:
        family.add_metric(labels, value)


def registry_of(board: Board, build: Mapping[str, str]) -> CollectorRegistry:
    """The registry of a learner."""
    return registry_with(FromBoard(board, build))


def registry_with(collector: Collector) -> CollectorRegistry:
    """A registry of our own: nothing of it exists before a service does."""
    registry = CollectorRegistry()
    for kind in (ProcessCollector, PlatformCollector, GCCollector):
        kind(registry=registry)
    registry.register(collector)
    return registry
