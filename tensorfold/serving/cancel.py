"""POST /v1/requests/{id}/cancel: ends the replies of a request by the id they are sent with."""

from typing import TYPE_CHECKING, cast

from quart import Response, current_app

from tensorfold.serving.errors import ApiError
from tensorfold.serving.service import Service
from tensorfold.serving.sse import json_response

if TYPE_CHECKING:
    from tensorfold.serving.app import App


async def cancel(service: Service, id: str) -> Response:
    """Answer once the reply is told to stop, which it does at the engine's next step.

    Raises `ApiError` for an id that no running or waiting reply has.
    """
    app = cast("App", current_app._get_current_object())  # type: ignore[attr-defined]
    if not app.cancel(id):
        raise ApiError(f"no reply {id} is running or waiting", status=404, param="id")
    return json_response({"id": id, "status": "cancelled"})
