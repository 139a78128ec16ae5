"""What a client is told when a request can't be served, in OpenAI's form."""

from typing import Any

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


class ApiError(Exception):
    """A request that ends with an error: its status and the fields of OpenAI's envelope."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        retry: bool = True,
        retry_after: int | None = None,
    ) -> None:
        """`retry` False tells clients that it would end the same; `retry_after` seconds it may
        end better."""
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.headers: dict[str, str] = {} if retry else {"x-should-retry": "false"}
        """Of the answer, when nothing has been sent yet."""
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def envelope(self) -> dict[str, Any]:
        """The body of the answer, and the data of an error event."""
        fields = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": fields}


def server_error(message: str, status: int = 500, retry_after: int | None = None) -> ApiError:
    """A fault of the server's own: this request fails and the others go on."""
    # A fault would most likely repeat, and the clients' own retries would pay for it again.
    return ApiError(
        message, status=status, type=SERVER_ERROR, retry=status != 500, retry_after=retry_after
    )


def cancelled() -> ApiError:
    """The request was ended by its id. Not a fault, and nothing to repeat."""
    return ApiError("the request was cancelled", status=499, code="request_cancelled", retry=False)


def timed_out(seconds: float) -> ApiError:
    """The request took longer than the server lets one take (--request-timeout)."""
    return ApiError(
        f"the request took longer than {seconds:g} s: ask for fewer tokens",
        status=504,
        type=SERVER_ERROR,
        code="request_timeout",
        retry=False,
    )


def context_exceeded(
    context: int, prompt_tokens: int, asked: int | None, param: str, model_context: int = 0
) -> ApiError:
    """A prompt, or a prompt and its explicit reply limit, larger than the window; `model_context`
    is what --context may allow.

    Clients that compact a conversation recognise the code and the first words.
    """
    window = f"This server's maximum context length is {context} tokens"
    room = context - prompt_tokens
    if asked is None or room < 1:
        told = f"the prompt has {prompt_tokens} tokens and leaves no room for a reply"
    else:
        told = (
            f"the prompt has {prompt_tokens} tokens and the reply limit is {asked}; "
            f"ask for at most {room} reply tokens or shorten the prompt"
        )
    more = ""
    if model_context > context:
        more = f" The server's --context may allow up to {model_context}."
    return ApiError(f"{window}, but {told}.{more}", param=param, code="context_length_exceeded")
