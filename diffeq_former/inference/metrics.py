"""Metrics of the server in the text format that Prometheus reads.

https://prometheus.io/docs/instrumenting/exposition_formats
"""

import bisect
import collections
import itertools
import time
from collections.abc import Collection, Iterable

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_LEFT = 499  # the status that is counted if the client closes its connection
_OTHER = "other"  # the path that is counted for those that the server does not have
# Upper bounds of the histogram's buckets, in seconds.
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """Counts of requests and tokens since the start; used by one thread."""

    def __init__(self):
        self.num_requests = collections.Counter()  # by path and status
        self.num_prompt_tokens = self.num_new_tokens = 0
        self.first_text_counts = [0] * (len(BOUNDS) + 1)  # by bucket
        self.first_text_seconds = 0.0

    def watch_request(self) -> "WatchedRequest":
        """Return what counts the tokens of a request that begins now."""
        return WatchedRequest(self)

    def text(self, num_waiting: int) -> str:
        """Return all metrics; `num_waiting` is the length of the queue."""
        requests = {
            f'{{path="{path}",status="{status}"}}': count
            for (path, status), count in sorted(self.num_requests.items())
        }
        lines = [
            *_metric("requests_total", "counter", "Responses by status.", requests),
            *_metric(
                "prompt_tokens_total",
                "counter",
                "Tokens of the prompts of accepted requests.",
                {"": self.num_prompt_tokens},
            ),
            *_metric(
                "new_tokens_total",
                "counter",
                "Tokens that were generated.",
                {"": self.num_new_tokens},
            ),
            *_metric(
                "waiting_requests", "gauge", "Length of the queue.", {"": num_waiting}
            ),
            *_metric(
                "time_to_first_text_seconds",
                "histogram",
                "Time from the headers of a request to the first generated text.",
                self._first_text(),
            ),
        ]
        return "".join(f"{line}\n" for line in lines)

    def _first_text(self) -> dict[str, float]:
        """Return the values of the histogram by suffix: its buckets are cumulative."""
        cumulative = list(itertools.accumulate(self.first_text_counts))
        bounds = (*map(str, BOUNDS), "+Inf")
        buckets = zip(bounds, cumulative, strict=True)
        return {
            **{f'_bucket{{le="{bound}"}}': count for bound, count in buckets},
            "_sum": self.first_text_seconds,
            "_count": cumulative[-1],
        }


def _metric(name: str, kind: str, meaning: str, values: dict) -> Iterable[str]:
    """Yield the lines of a metric; its values are by suffix of its name."""
    yield f"# HELP diffeq_former_{name} {meaning}"
    yield f"# TYPE diffeq_former_{name} {kind}"
    for suffix, value in values.items():
        yield f"diffeq_former_{name}{suffix} {value}"


class WatchedRequest:
    """Counts the tokens of one request, and the time until the first of its text."""

    def __init__(self, metrics: Metrics):
        self._metrics, self._start = metrics, time.perf_counter()
        self._num_new: dict[int, int] = {}  # by choice

    def accepted(self, num_prompt_tokens: int) -> None:
        self._metrics.num_prompt_tokens += num_prompt_tokens

    def generated(self, choice: int, num_tokens: int) -> None:
        """Count the tokens of a choice, which has `num_tokens` so far."""
        if not self._num_new:
            seconds = time.perf_counter() - self._start
            bucket = bisect.bisect_left(BOUNDS, seconds)
            self._metrics.first_text_counts[bucket] += 1
            self._metrics.first_text_seconds += seconds
        self._metrics.num_new_tokens += num_tokens - self._num_new.get(choice, 0)
        self._num_new[choice] = num_tokens


class RequestCount:
    """Middleware that counts responses.

    Args:
      app: The application.
      metrics: Where they are counted.
      paths: The paths of the application; others are counted together.
    """

    def __init__(self, app, metrics: Metrics, paths: Collection[str]):
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope, receive, send) -> None:
        async def counted(message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"].removeprefix(scope.get("root_path", ""))
                known = path if path in self._paths else _OTHER
                self._metrics.num_requests[known, message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)
