"""What a scrape says, and that it says nothing else."""

import math
import random
import time

import pytest
from conversing import CHAT, ROUTES, TEXT, Client, question
from prometheus_client.parser import text_string_to_metric_families
from scripted import ScriptedEngine, make_service, say
from test_sockets import open_request, read_all, wait_until

from tensorfold.engine.interface import EngineStats
from tensorfold.serving.app import create_app
from tensorfold.serving.counts import Histogram
from tensorfold.serving.server import serve_in_background

MIRRORS = {
    "requests_running": "num_requests_running",
    "requests_waiting": "num_requests_waiting",
    "prompt_tokens": "prefix_cache_queries",
    "prompt_tokens_cached": "prefix_cache_hits",
    "mtp_drafted": "spec_decode_num_draft_tokens",
    "mtp_accepted": "spec_decode_num_accepted_tokens",
    "request_latency_seconds": "e2e_request_latency_seconds",
    "request_prefill_seconds": "request_prefill_time_seconds",
    "request_decode_seconds": "request_decode_time_seconds",
}
OTHERS = {
    "requests_running_max",
    "generation_tokens_running",
    "generation_tokens",
    "decode_rounds",
    "cancellations",
    "preemptions",
    "client_disconnections",
    "requests",
    "time_to_first_token_seconds",
    "request_time_per_output_token_seconds",
}


async def scrape(client: Client, path: str = "/metrics") -> dict[str, dict[tuple, float]]:
    """Each family's samples by name ending and labels, without the prefix."""
    response = await client.get(path)
    assert response.content_type == "text/plain; version=0.0.4; charset=utf-8"
    families = {}
    for family in text_string_to_metric_families((await response.get_data()).decode()):
        assert family.name.startswith("tensorfold:")
        assert family.name not in families
        samples = families[family.name.removeprefix("tensorfold:")] = {}
        for sample in family.samples:
            labels = [value for _, value in sorted(sample.labels.items())]
            samples[sample.name.removeprefix(family.name), *labels] = sample.value
    return families


@pytest.mark.parametrize("path", ["/metrics", "/v1/metrics"])
async def test_an_idle_server_has_finite_numbers(path):
    found = await scrape(Client(), path)
    assert set(found) == OTHERS | set(MIRRORS) | set(MIRRORS.values())
    numbers = [value for samples in found.values() for value in samples.values()]
    assert all(math.isfinite(number) for number in numbers)
    assert found["requests_running"] == {("",): 0.0}
    assert found["requests_running_max"] == {("",): 8.0}
    assert found["requests"] == {}
    assert found["request_latency_seconds"]["_count",] == 0
    assert found["request_latency_seconds"]["_bucket", "+Inf"] == 0


async def test_the_engine_s_numbers():
    client = Client()
    client.engine.stats = lambda: EngineStats(
        running=3,
        waiting=2,
        running_tokens=21,
        pages_used=3,
        pages_total=12,
        prompt_tokens=100,
        cached_tokens=40,
        generated_tokens=77,
        drafted=50,
        accepted=30,
        cancelled=4,
        preempted=1,
    )
    found = await scrape(client)
    wanted = {
        "requests_running": 3,
        "requests_waiting": 2,
        "generation_tokens_running": 21,
        "kv_cache_usage_perc": 0.25,
        "prompt_tokens": 140,
        "prompt_tokens_cached": 40,
        "generation_tokens": 77,
        "mtp_drafted": 50,
        "mtp_accepted": 30,
        "cancellations": 4,
        "preemptions": 1,
    }
    assert {name: sum(found[name].values()) for name in wanted} == wanted
    assert found["kv_cache_usage_ratio"] == {("", "pages"): 0.25}
    assert ("_total",) in found["mtp_drafted"]
    for name, mirror in MIRRORS.items():
        assert found[name] == found[mirror]


@pytest.mark.parametrize("path", ROUTES)
async def test_finished_replies_are_timed(path):
    client = Client(ScriptedEngine(lambda request: say("abcd", wait=0.06)))
    await client.ask(path)
    await client.stream(path)
    found = await scrape(client)
    latency = found["request_latency_seconds"]
    assert latency["_count",] == 2
    assert (latency["_bucket", "0.05"], latency["_bucket", "10.0"]) == (0, 2)
    assert 0.12 < latency["_sum",] < 10
    # The engine's own figures: see scripted.py.
    assert found["request_prefill_seconds"]["_sum",] == 0.5
    assert found["decode_rounds"] == {("_total",): 4}
    first = found["time_to_first_token_seconds"]
    assert first["_count",] == 2 and 0.12 < first["_sum",] < latency["_sum",]
    decode = found["request_decode_seconds"]["_sum",]
    per_token = found["request_time_per_output_token_seconds"]
    assert per_token["_sum",] == pytest.approx(decode / 4)
    assert found["requests"] == {("_total", path.removeprefix("/v1"), "200"): 2}


async def test_a_reply_without_tokens_has_no_time_a_token():
    client = Client(ScriptedEngine(lambda request: say("", end=False)))
    await client.ask(TEXT)
    found = await scrape(client)
    assert found["request_latency_seconds"]["_count",] == 1
    assert found["time_to_first_token_seconds"]["_count",] == 0
    assert found["request_time_per_output_token_seconds"]["_count",] == 0


async def test_unmatched_paths_share_a_label():
    client = Client()
    for path in ("/v1/aaaa", "/v1/bbbb", "/etc/passwd", "/chat/completions"):
        await client.get(path)
    await client.post("/v1/requests/some-id/cancel", {})
    await client.post("/v1/requests/other-id/cancel", {})
    await client.get("/v1/health")
    await client.get("/")
    assert (await scrape(client))["requests"] == {
        ("_total", "unmatched", "404"): 3,
        ("_total", "unmatched", "405"): 1,
        ("_total", "/requests/<id>/cancel", "404"): 2,
        ("_total", "/health", "200"): 1,
        ("_total", "/", "200"): 1,
    }


def test_a_value_counts_under_the_first_bound_not_below_it():
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.5, 1e9):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2]


async def test_clients_that_leave_are_counted_once_each():
    engine = ScriptedEngine(lambda request: say("x" * 3000, delay=0.01))
    service = make_service(engine)
    draw = random.Random(7)
    with serve_in_background(create_app(service)) as server:
        for left in range(1, 21):
            body = question(CHAT) | {"stream": draw.random() < 0.5}
            connection = open_request(server.url, CHAT, body)
            wait_until(lambda left=left: len(engine.requests) == left, 2)
            time.sleep(draw.random() * 0.03)
            connection.close()
        wait_until(lambda: len(engine.finished) == 20, 2)
        wait_until(lambda: service.counts.disconnections == 20, 1)
        engine.script = lambda request: say("fine")
        assert read_all(open_request(server.url, CHAT, question(CHAT) | {"stream": True}))[0] == 200
        time.sleep(0.2)
    assert service.counts.disconnections == 20
    assert service.counts.latency.counts[-1] == 0
    assert sum(service.counts.latency.counts) == 1
    engine.close()
