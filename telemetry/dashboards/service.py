"""Dashboard of the service as its clients experience it: waiting, errors, the queue."""

from typing import Final

from orcastream.telemetry.dashboards.dashboard import Dashboard, Row
from orcastream.telemetry.dashboards.panel import TOKENS_PER_SECOND, Line, Panel, quantiles
from orcastream.telemetry.dashboards.promql import CLASS, MODEL, PROCESS, agreed, now, occurred, quantile, rate, total

_QUEUE_OF: Final = ("gen_ai_request_model", "orcastream_request_class")
_WORKERS_OF: Final = ("gen_ai_request_model", "orcastream_state")
_FAILED: Final = 'orcastream_outcome=~"dead_letter|engine_error|expired|lost"'
_UNAVAILABLE: Final = 'error_type=~"api_keys_unknown|internal_error|no_worker|not_on_disk|(redis_)?unavailable"'
_BROKEN: Final = 'error_type!="gateway_stopping"'


_GAP: Final = "orcastream_gateway_token_gap_seconds"
_STEADY: Final = f'{MODEL}, orcastream_gap="generation"'


def _stalls() -> str:
    within = rate(f"{_GAP}_bucket", f'{MODEL}, le="2.5"')
    return f"{total(rate(f'{_GAP}_count', MODEL), 'orcastream_gap')} - {total(within, 'orcastream_gap')}"


def _error_ratio(*by: str) -> str:
    """Return the share of requests that failed, were turned away or broken off through the service's fault.

    It covers all classes, because requests that were turned away have none.
    """
    ended = rate("orcastream_requests_ended_total", MODEL)
    failed = rate("orcastream_requests_ended_total", f"{MODEL}, {_FAILED}")
    turned_away = rate("orcastream_admission_refusals_total", f"{MODEL}, {_UNAVAILABLE}")
    broken = rate("orcastream_gateway_replies_broken_total", f"{MODEL}, {_BROKEN}")
    bad = f"({total(f'{failed} or {turned_away} or {broken}', *by)} or 0 * {total(ended, *by)})"
    return f"{bad} / {total(f'{ended} or {turned_away} or {broken}', *by)}"


_AT_A_GLANCE: Final = Row(
    "At a glance",
    (
        Panel(
            "Requests ended",
            "Terminal events per second, with any outcome.",
            "reqps",
            (Line(total(rate("orcastream_requests_ended_total", CLASS)), "requests"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Errors",
            "Share of requests that expired, were lost, failed in the engine, became dead letters, were turned away "
            "because Redis, all workers, or the API keys were unavailable, or whose reply a gateway broke off. Ends "
            "caused by the client (cancelled, invalid) do not count, nor does 429. All classes, whichever is selected.",
            "percentunit",
            (Line(_error_ratio(), "errors"),),
            kind="stat",
            width=4,
            warn_from=0.001,
        ),
        Panel(
            "Time to first token, p95",
            "From the entry's arrival in the queue to its first token in the reply log.",
            "s",
            (Line(quantile(0.95, "gen_ai_server_time_to_first_token_seconds", CLASS), "p95"),),
            kind="stat",
            width=4,
            warn_from=2.5,
        ),
        Panel(
            "In the queue",
            "Requests waiting and running, in all classes. Scale on this number.",
            "short",
            (
                Line(
                    f"sum({agreed('orcastream_queue_length', CLASS, *_QUEUE_OF)})",
                    "requests",
                ),
            ),
            kind="stat",
            width=4,
        ),
        Panel(
            "Oldest waiting",
            "Age of the oldest unclaimed request.",
            "s",
            (Line(f"max({now('orcastream_queue_age_seconds', CLASS)})", "age"),),
            kind="stat",
            width=4,
            warn_from=30,
        ),
        Panel(
            "Workers",
            "Live workers, including draining ones.",
            "short",
            (Line(f"sum({agreed('orcastream_workers', MODEL, *_WORKERS_OF)})", "workers"),),
            kind="stat",
            width=4,
        ),
    ),
)

_WAITING: Final = Row(
    "How long clients wait",
    (
        Panel(
            "Time to first token, server",
            "From the entry's arrival in the queue to its first token in the reply log, including producers without a "
            "gateway. The objective is 2.5 s.",
            "s",
            quantiles("gen_ai_server_time_to_first_token_seconds", CLASS),
            warn_from=2.5,
        ),
        Panel(
            "Time to first token, gateway",
            "From the HTTP request's arrival to its first text: the server's time plus the gateway's own.",
            "s",
            quantiles("orcastream_gateway_time_to_first_token_seconds", MODEL),
        ),
        Panel(
            "Clients that left before the first token",
            "How long clients that left without a token had waited. Time to first token does not include them: if many "
            "leave, it looks better than it is.",
            "s",
            quantiles("orcastream_gateway_abandoned_duration_seconds", CLASS),
            warn_from=2.5,
        ),
        Panel(
            "Gaps between tokens",
            "From one arrival of a reply's tokens at the gateway to the next; gaps with a takeover or a broken "
            "connection are separate lines. A takeover takes slightly longer than a lease.",
            "s",
            (
                *(Line(quantile(share, _GAP, _STEADY), f"p{share * 100:.0f}") for share in (0.5, 0.99)),
                Line(quantile(0.5, _GAP, f'{MODEL}, orcastream_gap="takeover"'), "takeover, p50"),
                Line(quantile(0.5, _GAP, f'{MODEL}, orcastream_gap="reconnect"'), "reconnect, p50"),
            ),
            warn_from=2.5,
        ),
        Panel(
            "Stalls",
            "Gaps longer than 2.5 s, per second, by cause: streams that a client saw stall.",
            "ops",
            (Line(_stalls(), "{{orcastream_gap}}"),),
            stacked=True,
        ),
        Panel(
            "Time per output token",
            "Mean time per output token after the first, over requests that succeeded.",
            "s",
            quantiles("gen_ai_server_time_per_output_token_seconds", CLASS),
        ),
        Panel(
            "Request duration",
            "From the entry's arrival in the queue to its terminal event, with any outcome.",
            "s",
            quantiles("gen_ai_server_request_duration_seconds", CLASS),
        ),
        Panel(
            "Where the time goes, p95",
            "queue: waiting for a worker; wait: from the claim to the first chunk; prefill: to the first token; "
            "decode: to the end. A long queue calls for workers, a long wait for blocks or room in the batch, a long "
            "prefill for a larger token budget or shorter prompts.",
            "s",
            (
                Line(quantile(0.95, "orcastream_queue_wait_duration_seconds", CLASS), "queue"),
                Line(quantile(0.95, "orcastream_request_wait_duration_seconds", MODEL), "wait"),
                Line(quantile(0.95, "orcastream_request_prefill_duration_seconds", MODEL), "prefill"),
                Line(quantile(0.95, "orcastream_request_decode_duration_seconds", MODEL), "decode"),
            ),
        ),
        Panel(
            "Tokens per second",
            "Prompt tokens computed (without those found in the cache) and tokens sampled.",
            TOKENS_PER_SECOND,
            (Line(total(rate("orcastream_tokens_total", MODEL), "gen_ai_token_type"), "{{gen_ai_token_type}}"),),
        ),
    ),
)

_REQUESTS: Final = Row(
    "Requests",
    (
        Panel(
            "Requests by outcome",
            "Terminal events per second: finish reasons (stop, length) and error codes.",
            "reqps",
            (
                Line(
                    total(rate("orcastream_requests_ended_total", CLASS), "orcastream_outcome"),
                    "{{orcastream_outcome}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Error ratio",
            "The same share as above, per model. The objective is 0.1 %.",
            "percentunit",
            (Line(_error_ratio("gen_ai_request_model"), "{{gen_ai_request_model}}"),),
            warn_from=0.001,
        ),
        Panel(
            "Refusals",
            "Requests refused, by error code. wait_too_long, queue_full, queue_tokens_full: more arrives than is "
            "served. rate_limit_exceeded, concurrency_limit_exceeded: a tenant is at its limit. no_worker: no live "
            "worker. Most others: the request is invalid.",
            "reqps",
            (Line(total(rate("orcastream_admission_refusals_total", MODEL), "error_type"), "{{error_type}}"),),
            stacked=True,
        ),
        Panel(
            "Replies broken off",
            "Replies that the gateway ended with an error, by error code, while the request itself continued. "
            "gateway_stopping: its clients continue at another gateway.",
            "reqps",
            (Line(total(rate("orcastream_gateway_replies_broken_total", CLASS), "error_type"), "{{error_type}}"),),
            stacked=True,
        ),
        Panel(
            "HTTP requests",
            "HTTP requests to the gateways per second, by status; a stream counts when it ends.",
            "reqps",
            (
                Line(
                    total(rate("http_server_request_duration_seconds_count", PROCESS), "http_response_status_code"),
                    "{{http_response_status_code}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "HTTP duration",
            "From the first to the last byte of an HTTP request, including streams to their end.",
            "s",
            quantiles("http_server_request_duration_seconds", PROCESS),
        ),
        Panel(
            "Open replies",
            "Replies that each gateway is reading for clients.",
            "short",
            (Line(total(now("orcastream_gateway_streams", MODEL), "instance"), "{{instance}}"),),
            stacked=True,
        ),
    ),
)

_QUEUE: Final = Row(
    "Queue and workers",
    (
        Panel(
            "Queue length",
            "Requests waiting and running, per model and class.",
            "short",
            (
                Line(
                    agreed("orcastream_queue_length", CLASS, *_QUEUE_OF),
                    "{{gen_ai_request_model}} {{orcastream_request_class}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Queue age",
            "Age of the oldest unclaimed request, per model and class.",
            "s",
            (
                Line(
                    agreed("orcastream_queue_age_seconds", CLASS, *_QUEUE_OF),
                    "{{gen_ai_request_model}} {{orcastream_request_class}}",
                ),
            ),
            warn_from=30,
        ),
        Panel(
            "Workers",
            "Live workers, by model and reported state.",
            "short",
            (
                Line(
                    agreed("orcastream_workers", MODEL, *_WORKERS_OF),
                    "{{gen_ai_request_model}} {{orcastream_state}}",
                ),
            ),
            stacked=True,
        ),
    ),
)

_BATCHES: Final = Row(
    "Batches",
    (
        Panel(
            "Open batches",
            "Batches that have not ended, by state. waiting: no gateway runs it; each gateway runs at most four.",
            "short",
            (Line(agreed("orcastream_batches", PROCESS, "orcastream_state"), "{{orcastream_state}}"),),
            stacked=True,
        ),
        Panel(
            "Lines done",
            "Batch lines that got their result per second, by outcome.",
            "ops",
            (
                Line(
                    total(rate("orcastream_batches_lines_total", PROCESS), "orcastream_outcome"),
                    "{{orcastream_outcome}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Lines left",
            "Lines without a result in all open batches whose input was read.",
            "short",
            (Line(f"max({now('orcastream_batches_lines_left', PROCESS)})", "lines"),),
        ),
        Panel(
            "Oldest batch",
            "Age of the oldest open batch: after 24 h its unanswered lines get no answers. And the longest time that a "
            "batch has made no progress: minutes mean that no worker answers its lines.",
            "s",
            (
                Line(f"max({now('orcastream_batches_age_seconds', PROCESS)})", "age"),
                Line(f"max({now('orcastream_batches_idle_seconds', PROCESS)})", "no progress for"),
            ),
        ),
        Panel(
            "Batches ended",
            "Batches that ended in the last four intervals, by OpenAI status.",
            "short",
            (
                Line(
                    total(occurred("orcastream_batches_ended_total", PROCESS), "orcastream_outcome"),
                    "{{orcastream_outcome}}",
                ),
            ),
            stacked=True,
        ),
    ),
)

_TRACES: Final = Row(
    "Traces",
    (
        Panel(
            "Slow requests",
            "Traces in which a worker held a request for longer than a second; click one to open it.",
            "s",
            (Line('{ kind = consumer && span.gen_ai.request.model =~ "$model" && duration > 1s }', ""),),
            kind="table",
            width=24,
        ),
    ),
    collapsed=True,
)

SERVICE: Final = Dashboard(
    "orcastream-service",
    "Orcastream: service",
    "The clients' view: waiting, errors, the queue, the workers.",
    (_AT_A_GLANCE, _WAITING, _REQUESTS, _QUEUE, _BATCHES, _TRACES),
    traces=True,
)
