# SPDX-License-Identifier: Apache-2.0
# Usage: metrics_client.py URL ANSWERS.jsonl: reads /metrics in both formats and compares it with the answers of `forepack
# batch`, which include everything that the cluster has served, except one prompt that it refused.
import json
import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

url, answers = sys.argv[1], [json.loads(line) for line in open(sys.argv[2])]


def get(accept):
    request = urllib.request.Request(url + "/metrics", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.headers["Content-Type"], response.read().decode()


def total(families, name, **labels):
    """The sum of all samples of that name with these labels."""
    values = [s.value for f in families for s in f.samples
              if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())]
    assert values, f"{name}{labels} is missing"
    return sum(values)


def check(what, expected, got, tolerance=0):
    assert abs(expected - got) <= tolerance, f"{what}: the clients saw {expected}, /metrics says {got}"


def check_counts(m):
    usage = [a["usage"] for a in answers]
    scored = [u for u in usage if u["scored_tokens"]]
    check("requests", len(answers), total(m, "forepack:request_success_total", finished_reason="length"))
    check("errors", 0, total(m, "forepack:request_errors_total"))
    check("refusals", 1, total(m, "forepack:requests_refused_total", reason="out_of_range"))
    check("other refusals", 1, total(m, "forepack:requests_refused_total"))
    check("prompt tokens", sum(u["prompt_tokens"] for u in usage), total(m, "forepack:prompt_tokens_total"))
    check("kept tokens", sum(u["kept_tokens"] for u in usage), total(m, "forepack:kept_tokens_total"))
    generated = sum(u["completion_tokens"] for u in usage)
    check("tokens", generated, total(m, "forepack:generation_tokens_total"))
    check("tokens of nodes", generated, total(m, "forepack:node_generation_tokens_total", pool="worker"))
    check("gaps", generated - len(answers), total(m, "forepack:inter_token_latency_seconds_count"))
    check("scored prompts", len(scored), total(m, "forepack:kept_ratio_count"))
    check("kept ratio", sum(u["kept_tokens"] / u["prompt_tokens"] for u in scored), total(m, "forepack:kept_ratio_sum"), 1e-3)
    check("scores", len(scored), total(m, "forepack:speculator_score_seconds_count", pool="speculator"))
    # Counts any reason: on a busy machine a score may also come too late.
    check("skipped", len(answers) - len(scored), total(m, "forepack:prefill_skipped_total"))
    assert len(scored) and total(m, "forepack:prefill_skipped_total", reason="keep_all")


def check_times(m):
    for name, seconds in {
        "time_to_first_token_seconds": lambda t: t["ttft_ms"],
        "e2e_request_latency_seconds": lambda t: t["total_ms"],
        "request_queue_time_seconds": lambda t: t["queue_ms"] + t["pack_wait_ms"],
        "request_prefill_time_seconds": lambda t: t["prefill_ms"],
        "pack_wait_seconds": lambda t: t["pack_wait_ms"],
    }.items():
        check(name, len(answers), total(m, f"forepack:{name}_count"))
        expected = sum(seconds(a["timing"]) for a in answers) / 1e3
        check(name, expected, total(m, f"forepack:{name}_sum"), 1e-3 * len(answers))


def check_nodes(m):
    check("worker groups", 2, total(m, "forepack:nodes", role="worker", state="ready"))
    check("speculators", 1, total(m, "forepack:nodes", role="speculator", state="ready"))
    check("ready", 1, total(m, "forepack:ready"))
    for name in "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "queue_requests":
        check(name, 0, total(m, f"forepack:{name}"))
    assert total(m, "forepack:forward_pass_seconds_count", pool="worker") > 0
    for pool in "worker", "speculator":
        check("queue seconds", 0, total(m, "forepack:pool_queue_seconds", pool=pool))
        passes = total(m, "forepack:forward_pass_seconds_sum", pool=pool)
        check("busy seconds", passes, total(m, "forepack:pool_busy_seconds_total", pool=pool), 1e-3)
        assert total(m, "forepack:pool_attached_seconds_total", pool=pool) > passes
    assert total(m, "forepack:pack_bins_total", pool="speculator") > 0
    check("bins", total(m, "forepack:pack_bins_total"), total(m, "forepack:pack_seconds_count"))
    assert total(m, "process_resident_memory_bytes") > 1e6 and total(m, "process_cpu_seconds_total") > 0


def buckets(families):
    """Each histogram begins at 1 ms or below, and its buckets grow up to its count."""
    for family in families:
        if family.type != "histogram" or not family.name.endswith("_seconds"):
            continue
        edges = [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")]
        assert not edges or min(edges) <= 0.001, family.name


content_type, text = get(None)
assert content_type.startswith("text/plain; version=0.0.4"), content_type
metrics = list(parse_text(text))
check_counts(metrics)
check_times(metrics)
check_nodes(metrics)
buckets(metrics)
content_type, text = get("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
assert content_type.startswith("application/openmetrics-text; version=1.0.0"), content_type
openmetrics = list(parse_openmetrics(text))
check_counts(openmetrics)
names = lambda families: {s.name for f in families for s in f.samples}
assert names(metrics) == names(openmetrics), names(metrics) ^ names(openmetrics)
print(f"{len(metrics)} metrics agree with {len(answers)} answers")
