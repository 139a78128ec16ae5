"""JSON Schemas of what the routes answer. The tests hold every kind of reply against them."""

from typing import Any

Schema = dict[str, Any]


def _object(properties: Schema, optional: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties | (optional or {}),
        "required": list(properties),
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


STRING: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
LOGPROB: Schema = {"type": "number", "maximum": 0}
TOKENS = _list(_ref("TokenId"))
FINISH_REASON: Schema = {"enum": ["stop", "length", "tool_calls"]}

_ENVELOPE = {"id": STRING, "created": COUNT, "model": STRING}
_REPORTED = {"usage": _ref("Usage"), "tensorfold": _ref("Report")}
_ENTRY = {"token": STRING, "logprob": LOGPROB, "bytes": _or_null(_list(COUNT))}
_CALL = {
    "id": STRING,
    "type": {"const": "function"},
    "function": _object({"name": STRING, "arguments": STRING}),
}

SCHEMAS: dict[str, Schema] = {
    "Error": _object(
        {
            "error": _object(
                {
                    "message": STRING,
                    "type": {"enum": ["invalid_request_error", "server_error"]},
                    "param": _or_null(STRING),
                    "code": _or_null(STRING),
                }
            )
        }
    ),
    "Usage": _object(
        {
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "total_tokens": COUNT,
            "prompt_tokens_details": _object({"cached_tokens": COUNT}),
            "completion_tokens_details": _object({"reasoning_tokens": COUNT}),
        }
    ),
    "Report": _object(
        {
            "engine": STRING,
            "tokens_per_second": NUMBER,
            "seconds": NUMBER,
            "time_to_first_token": NUMBER,
            "prefill_seconds": NUMBER,
            "sampling": {"enum": ["greedy", "exact"]},
            "drafts": BOOLEAN,
            "token_sha": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
            "rounds": COUNT,
            "drafted": COUNT,
            "accepted": COUNT,
            "acceptance_rate": NUMBER,
            "tokens_per_round": NUMBER,
        },
        {"loop": _object({"period": COUNT})},
    ),
    "ChatLogprobs": _object(
        {
            "content": _list(_object(_ENTRY | {"top_logprobs": _list(_object(_ENTRY))})),
            "refusal": {"type": "null"},
        }
    ),
    "ChatCompletion": _object(
        _ENVELOPE
        | {
            "object": {"const": "chat.completion"},
            "choices": _list(
                _object(
                    {
                        "index": COUNT,
                        "message": _object(
                            {
                                "role": {"const": "assistant"},
                                "content": _or_null(STRING),
                                "refusal": {"type": "null"},
                            },
                            {"reasoning_content": STRING, "tool_calls": _list(_object(_CALL))},
                        ),
                        "logprobs": _or_null(_ref("ChatLogprobs")),
                        "finish_reason": FINISH_REASON,
                    },
                    {"token_ids": TOKENS, "tensorfold": _ref("Report")},
                )
            ),
            "usage": _ref("Usage"),
        },
        {"tensorfold": _ref("Report"), "prompt_token_ids": TOKENS},
    ),
    "ChatCompletionChunk": _object(
        _ENVELOPE
        | {
            "object": {"const": "chat.completion.chunk"},
            "choices": _list(
                _object(
                    {
                        "index": COUNT,
                        "delta": _object(
                            {},
                            {
                                "role": {"const": "assistant"},
                                "content": STRING,
                                "reasoning_content": STRING,
                                "tool_calls": _list(
                                    _object(
                                        {"index": COUNT, "function": _object({"arguments": STRING})}
                                    )
                                ),
                            },
                        ),
                        "logprobs": _or_null(_ref("ChatLogprobs")),
                        "finish_reason": _or_null(FINISH_REASON),
                    },
                    {"token_ids": TOKENS, "tensorfold": _ref("Report")},
                )
            ),
        },
        _REPORTED | {"prompt_token_ids": TOKENS},
    ),
    "TextLogprobs": _object(
        {
            "tokens": _list(STRING),
            "token_logprobs": _list(_or_null(LOGPROB)),
            "top_logprobs": _list(_or_null({"type": "object", "additionalProperties": LOGPROB})),
            "text_offset": _list(COUNT),
        }
    ),
    "PromptLogprobs": _list(
        _or_null(
            {
                "type": "object",
                "additionalProperties": _object(
                    {"logprob": LOGPROB, "rank": COUNT, "decoded_token": STRING}
                ),
            }
        )
    ),
    "TextCompletion": _object(
        _ENVELOPE
        | {
            "object": {"const": "text_completion"},
            "choices": _list(
                _object(
                    {
                        "index": COUNT,
                        "text": STRING,
                        "logprobs": _or_null(_ref("TextLogprobs")),
                        "finish_reason": _or_null(FINISH_REASON),
                    },
                    {
                        "token_ids": TOKENS,
                        "prompt_token_ids": TOKENS,
                        "prompt_logprobs": _ref("PromptLogprobs"),
                        "tensorfold": _ref("Report"),
                    },
                )
            ),
        },
        _REPORTED,
    ),
    "ModelList": _object(
        {
            "object": {"const": "list"},
            "data": _list(
                _object(
                    {
                        "id": STRING,
                        "object": {"const": "model"},
                        "created": COUNT,
                        "owned_by": STRING,
                        "context_length": COUNT,
                        "max_model_len": COUNT,
                    }
                )
            ),
        }
    ),
    # With keys configured, it says no more than its status.
    "Health": _object(
        {"status": {"const": "ok"}},
        {
            "model": STRING,
            "model_ids": _list(STRING),
            "max_batch_size": COUNT,
            "warming": BOOLEAN,
            "memory": {"type": "object"},
            "live": {"type": "object"},
            "version": STRING,
            "backend": STRING,
            "device": STRING,
        },
    ),
    "Tokens": _object(
        {"count": COUNT, "max_model_len": COUNT, "tokens": TOKENS}, {"token_strs": _list(STRING)}
    ),
    "Text": _object({"prompt": STRING}),
    "TokenizerInfo": _object(
        {
            "tokenizer_class": STRING,
            "vocab_size": COUNT,
            "model_max_length": COUNT,
            "bos_token": _or_null(STRING),
            "eos_token": _or_null(STRING),
            "pad_token": _or_null(STRING),
            "chat_template": _or_null(STRING),
        }
    ),
    "Cancelled": _object({"id": STRING, "status": {"const": "cancelled"}}),
    "Metrics": {"type": "string", "description": "Prometheus' text format 0.0.4."},
    "Description": _object({"openapi": STRING, "info": {"type": "object"}}),
}
