"""Clients that hang up leave nothing behind: sockets, the application and a real engine."""

import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np
from tiny import open_step, tiny_checkpoint

from tensorfold.engine.interface import EngineStats
from tensorfold.engine.start import start_engine
from tensorfold.serving.app import create_app
from tensorfold.serving.server import serve_in_background
from tensorfold.serving.service import Service

CLIENTS = 200


def hang_up(url: str, number: int) -> None:
    """Ask for a long reply, then go: anywhere from within the request to within the stream."""
    rng = np.random.default_rng(number)
    body = json.dumps(
        {
            "prompt": rng.integers(0, 256, int(rng.integers(1, 150))).tolist(),
            "max_tokens": 350,
            "ignore_eos": True,
            "stream": bool(rng.random() < 0.7),
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    if rng.random() < 0.2:
        request = request[: int(rng.integers(1, len(request)))]
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as client:
        client.sendall(request)
        client.settimeout(float(rng.random()) * 0.5)
        try:
            for _ in range(int(rng.integers(0, 20))):
                if not client.recv(int(rng.integers(1, 4000))):
                    break
        except TimeoutError:
            pass
        if rng.random() < 0.5:  # with a reset instead of a farewell
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_lanes_and_pages_are_free_within_two_seconds() -> None:
    checkpoint = tiny_checkpoint(num_hidden_layers=1)
    engine = start_engine(open_step(checkpoint, lanes=4, context=512, buckets=(8, 16)))
    service = Service(engine, checkpoint.tokenizer, None, "tiny", created=0)

    def busy(stats: EngineStats) -> bool:
        return bool(stats.running or stats.waiting or stats.pages_used)

    with serve_in_background(create_app(service)) as server:
        with ThreadPoolExecutor(50) as threads:
            gone = [threads.submit(hang_up, server.url, number) for number in range(CLIENTS)]
            for each in gone:
                each.result()
        end = time.monotonic() + 2
        while busy(engine.stats()) and time.monotonic() < end:
            time.sleep(0.01)
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)
        assert stats.requests >= CLIENTS // 5
        assert stats.cancelled > 0
        assert stats.recompilations == 0
    engine.close()
