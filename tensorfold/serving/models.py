"""GET /v1/models: the served name and its aliases."""

from quart import Response

from tensorfold.serving.service import Service
from tensorfold.serving.sse import json_response


async def models(service: Service) -> Response:
    """List the ids that requests may name."""
    context = service.engine.limits.context
    data = [
        {
            "id": model_id,
            "object": "model",
            "created": service.created,
            "owned_by": "tensorfold",
            "context_length": context,
            "max_model_len": context,
        }
        for model_id in service.model_ids
    ]
    return json_response({"object": "list", "data": data})
