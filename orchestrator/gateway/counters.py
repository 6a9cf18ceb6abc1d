"""Counters of a gateway, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from budgets.records import Ending
from orchestrator.attempt import Attempt

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Counters:
    """What a gateway has done, and is doing.

    Args:
        under_way, waiting, drains, connections: ask for what is so now.
    """

    def __init__(
        self,
        *,
        under_way: Callable[[], int],
        waiting: Callable[[], int],
        drains: Callable[[], int],
        connections: Callable[[], int],
    ) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "earmark_gateway_requests", "Requests by what they were.", ["route"], registry=registry
        )
        self._refused = Counter(
            "earmark_gateway_refused",
            "Replies of the gateway's own.",
            ["reason"],
            registry=registry,
        )
        self._ended = Counter(
            "earmark_gateway_holds_ended", "Holds by how they ended.", ["kind"], registry=registry
        )
        self._posted = _Dollars("earmark_gateway_posted_usd", "Dollars posted.")
        self._doubt = _Dollars("earmark_gateway_in_doubt_usd", "Dollars gone in doubt.")
        registry.register(self._posted)
        registry.register(self._doubt)
        self._overruns = Counter(
            "earmark_gateway_overruns", "Real costs above their holds.", registry=registry
        )
        self._labelled: dict[tuple[Counter, str], Counter] = {}
        gauges = {
            "under_way": ("Metered requests under way.", under_way),
            "waiting": ("Requests that wait for held money.", waiting),
            "drains": ("Answers read to their end without a client.", drains),
            "connections": ("Connections of clients.", connections),
        }
        for name, (text, ask) in gauges.items():
            gauge = Gauge(f"earmark_gateway_{name}", text, registry=registry)
            gauge.set_function(ask)

    def came(self, route: str) -> None:
        """A request came in."""
        self._inc(self._requests, route)

    def refused(self, reason: str) -> None:
        """It got a reply of ours."""
        self._inc(self._refused, reason)

    def ended(self, attempt: Attempt, ending: Ending) -> None:
        """A hold ended."""
        self._inc(self._ended, ending.kind)
        if ending.kind == "settle":
            self._posted.nanos += ending.nanos
            if ending.nanos > attempt.held_nanos:
                self._overruns.inc()
        elif ending.kind == "doubt":
            self._doubt.nanos += attempt.held_nanos

    def _inc(self, counter: Counter, label: str) -> None:
        # Looking a labelled counter up anew costs as much as pricing a request.
        found = self._labelled.get((counter, label))
        if found is None:
            found = self._labelled[counter, label] = counter.labels(label)
        found.inc()

    def page(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)


class _Dollars(Collector):
    """A sum of money, exact in nano-dollars; only what is shown of it is a float, since Prometheus has no other."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self.nanos = 0

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The sum as it is now."""
        yield CounterMetricFamily(self._name, self._text, value=self.nanos / 1e9)
