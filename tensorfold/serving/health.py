"""GET /health and GET /: whether the server lives, what it serves, and how busy it is."""

from typing import Any

from quart import Response

from tensorfold import __version__
from tensorfold.serving.service import Service
from tensorfold.serving.sse import json_response


async def health(service: Service) -> Response:
    """Answer a liveness probe."""
    stats = service.engine.stats()
    body: dict[str, Any] = {
        "status": "ok",
        "model": service.name,
        "model_ids": list(service.model_ids),
        "max_batch_size": service.engine.limits.lanes,
        "warming": False,
        "memory": {},
        "live": {
            "connections": stats.running + stats.waiting,
            "waiting": stats.waiting,
            "decode_tokens_per_second": round(stats.decode_tokens_per_second, 1),
            "prefill_tokens_per_second": round(stats.prefill_tokens_per_second, 1),
        },
        "version": __version__,
    }
    if service.backend is not None:
        body["backend"] = service.backend
    if service.device is not None:
        body["device"] = service.device
    return json_response(body)
