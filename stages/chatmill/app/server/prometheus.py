"""The counters of a server in Prometheus's text format; they name models and routes, never texts.

# TYPE chatmill_requests_total counter
chatmill_requests_total{route="/v1/models",status="200"} 2
"""

from collections import Counter
from collections.abc import Mapping
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatmill.app.server.jobs import CompletionJob

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)  # seconds
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """The number and the sum of durations, and how many were at most as long as each of BUCKETS."""

    def __init__(self) -> None:
        self.counts: Counter[float] = Counter()
        self.count, self.sum = 0, 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.count, self.sum = self.count + 1, self.sum + seconds
        self.counts.update(bucket for bucket in BUCKETS if seconds <= bucket)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter[Labels]] = {}
        self.histograms: dict[str, dict[Labels, Histogram]] = {}

    def add(self, name: str, labels: Labels, amount: float = 1) -> None:
        """Add to a counter."""
        self.counters.setdefault(name, Counter())[labels] += amount  # type: ignore[assignment]

    def observe(self, name: str, labels: Labels, seconds: float) -> None:
        """Count a duration."""
        self.histograms.setdefault(name, {}).setdefault(labels, Histogram()).add(seconds)

    def count_answer(self, model: str, job: CompletionJob) -> None:
        """Count the tokens of an answer and the time to its first one."""
        labels = (("model", model),)
        self.add("chatmill_prompt_tokens_total", labels, len(job.prompt_ids))
        self.add("chatmill_cached_prompt_tokens_total", labels, job.cached_tokens)
        self.add("chatmill_completion_tokens_total", labels, len(job.generation.generated_ids))
        if job.times.first_token_at:
            first = job.times.first_token_at - job.times.submitted_at
            self.observe("chatmill_first_token_seconds", labels, first)

    def text(self, gauges: Mapping[str, Mapping[str, int]]) -> str:
        """All metrics, and gauges of models by name, in Prometheus's text format."""
        lines: list[str] = []
        for name, counter in self.counters.items():
            lines += [f"# TYPE {name} counter", *(_sample(name, labels, value) for labels, value in counter.items())]
        for name, models in gauges.items():
            lines += [f"# TYPE {name} gauge", *(_sample(name, (("model", key),), models[key]) for key in models)]
        for name, histograms in self.histograms.items():
            lines.append(f"# TYPE {name} histogram")
            for labels, histogram in histograms.items():
                for bucket in BUCKETS:
                    lines.append(_sample(f"{name}_bucket", (*labels, ("le", f"{bucket}")), histogram.counts[bucket]))
                lines.append(_sample(f"{name}_bucket", (*labels, ("le", "+Inf")), histogram.count))
                lines.append(_sample(f"{name}_sum", labels, histogram.sum))
                lines.append(_sample(f"{name}_count", labels, histogram.count))
        return "\n".join([*lines, ""])


class MetricsMiddleware:
    """ASGI middleware: counts requests by route and status, and their durations."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        """`paths` are those that are counted by name, all others as `other`."""
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application."""
        started, status = perf_counter(), "none"  # where the client disconnects before the response

        async def observing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, observing)
        finally:
            route = ("route", scope["path"] if scope.get("path") in self._paths else "other")
            self._metrics.add("chatmill_requests_total", (route, ("status", status)))
            self._metrics.observe("chatmill_request_seconds", (route,), perf_counter() - started)


def _sample(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
    return f"{name}{{{shown}}} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
