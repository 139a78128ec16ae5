"""The fields that every generating route shares: how a reply is drawn, limited and sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorfold.chat.pieces import Stage
from tensorfold.engine.interface import Constraint, Request, Sampling
from tensorfold.engine.seeds import derive_seed
from tensorfold.serving.errors import ApiError, context_exceeded
from tensorfold.serving.fields import (
    Body,
    Field,
    Unsupported,
    boolean,
    empty,
    integer,
    is_one_of,
    mapping,
    number,
    refuse,
    strings,
    text,
)
from tensorfold.serving.reply import Asked
from tensorfold.serving.service import Service

MOST_CHOICES = 16
"""Of a prompt."""
MOST_REPLIES = 1024
"""Of a request."""

MODEL: Field[str | None] = Field("model", text(), None)
TEMPERATURE: Field[float | None] = Field("temperature", number(), None)
TOP_P: Field[float | None] = Field("top_p", number(), None)
TOP_K: Field[int | None] = Field("top_k", integer(), None)
MIN_P: Field[float | None] = Field("min_p", number(0, 1), None)
SEED: Field[int | None] = Field("seed", integer(), None)
STOP: Field[tuple[str, ...]] = Field("stop", strings(most=256, longest=4096), ())
IGNORE_EOS = Field("ignore_eos", boolean(), False)
DRAFT = Field("draft", boolean(), True)
STREAM = Field("stream", boolean(), False)
STREAM_OPTIONS: Field[dict[str, Any]] = Field("stream_options", mapping(), {})
INCLUDE_USAGE = Field("include_usage", boolean(), False)
CHOICES = Field("n", integer(1, MOST_CHOICES), 1)
# The first that is given and not zero counts; zero reads as absent.
REPLY_LIMITS = (
    Field("max_tokens", integer(0), 0),
    Field("max_completion_tokens", integer(0), 0),
)

UNSUPPORTED = (
    Unsupported("response_format", is_one_of({"type": "text"}, {})),
    Unsupported("guided_json", lambda value: False),
    Unsupported("guided_regex", lambda value: False),
    Unsupported("guided_choice", lambda value: False),
    Unsupported("guided_grammar", lambda value: False),
    Unsupported("structured_outputs", lambda value: False),
    Unsupported("logit_bias", empty),
    Unsupported("frequency_penalty", empty),
    Unsupported("presence_penalty", empty),
    Unsupported("repetition_penalty", lambda value: value in (1, 0)),
    Unsupported("prompt_logprobs", is_one_of(False)),
    Unsupported("thinking_budget", empty),
    Unsupported("min_tokens", empty),
    Unsupported("stop_token_ids", empty),
    Unsupported("bad_words", empty),
    Unsupported("allowed_token_ids", empty),
    Unsupported("use_beam_search", empty),
    Unsupported("best_of", lambda value: value in (0, 1)),
    Unsupported("echo", empty),
    Unsupported("return_token_ids", empty),
)


@dataclass(frozen=True)
class ReplyOptions:
    """What a request asks of its reply; `max_tokens` is None unless it says so itself."""

    model: str
    sampling: Sampling
    max_tokens: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    draft: bool
    stream: bool
    include_usage: bool
    n: int


@dataclass(frozen=True)
class Prompt:
    """The tokens of one prompt, what its replies must keep to, and how their text is read.

    `stages` and `constraint` make anew what each reply needs for itself.
    """

    tokens: Sequence[int]
    stages: Callable[[], Sequence[Stage]] = tuple
    constraint: Callable[[], Constraint] | None = None


def read_reply_options(body: Body, service: Service) -> ReplyOptions:
    """Read the shared fields of a generating request. Raises `ApiError`."""
    refuse(body, UNSUPPORTED)
    limits = [field.of(body) for field in REPLY_LIMITS]
    try:
        include_usage = INCLUDE_USAGE.of(STREAM_OPTIONS.of(body))
    except ApiError as error:
        raise ApiError(f"stream_options: {error.message}", param="stream_options") from None
    return ReplyOptions(
        model=service.reply_model(MODEL.of(body)),
        sampling=_read_sampling(body, service),
        max_tokens=next((limit for limit in limits if limit), None),
        stops=STOP.of(body),
        ignore_eos=IGNORE_EOS.of(body),
        draft=DRAFT.of(body),
        stream=STREAM.of(body),
        include_usage=include_usage,
        n=CHOICES.of(body),
    )


def _read_sampling(body: Body, service: Service) -> Sampling:
    asked = {
        "temperature": TEMPERATURE.of(body),
        "top_p": TOP_P.of(body),
        "top_k": TOP_K.of(body),
        "min_p": MIN_P.of(body),
        "seed": SEED.of(body),
    }
    given = {name: value for name, value in asked.items() if value is not None}
    sampling = replace(service.defaults.sampling, **given)  # type: ignore[arg-type]
    # Keeping every token is what 0 says, so an engine never sees a number wider than its arrays.
    if not 0 < sampling.top_k < service.engine.limits.vocab_size:
        sampling = replace(sampling, top_k=0)
    return sampling


def plan_replies(
    service: Service,
    options: ReplyOptions,
    prompts: Sequence[Prompt],
    *,
    reply_id: str,
    param: str,
) -> list[Asked]:
    """The replies to generate, `options.n` to a prompt, prompt after prompt. Raises `ApiError`."""
    if len(prompts) * options.n > MOST_REPLIES:
        raise ApiError(
            f"{len(prompts)} prompts with {options.n} choices each are more than the "
            f"{MOST_REPLIES} replies a request may have",
            param=param,
        )
    return [
        Asked(
            _request(
                service,
                options,
                prompt,
                choice,
                # The first reply has the id that the client is told.
                reply_id=f"{reply_id}-{index * options.n + choice}" if index + choice else reply_id,
                param=param,
            ),
            options.stops,
            prompt.stages,
        )
        for index, prompt in enumerate(prompts)
        for choice in range(options.n)
    ]


def _request(
    service: Service,
    options: ReplyOptions,
    prompt: Prompt,
    choice: int,
    *,
    reply_id: str,
    param: str,
) -> Request:
    """The engine's request for a prompt's choice, its limit fitted to the context window."""
    tokens = tuple(prompt.tokens)
    if not tokens:
        raise ApiError(f"{param} must come to at least one token", param=param)
    context = service.engine.limits.context
    room = context - len(tokens)
    if room < 1 or (options.max_tokens is not None and options.max_tokens > room):
        raise context_exceeded(context, len(tokens), options.max_tokens, param)
    return Request(
        id=reply_id,
        prompt=tokens,
        sampling=replace(
            options.sampling, seed=choice_seed(service, options.sampling.seed, tokens, choice)
        ),
        max_tokens=options.max_tokens or min(service.defaults.max_tokens, room),
        end_ids=frozenset() if options.ignore_eos else service.end_ids,
        draft=options.draft,
        constraint=prompt.constraint,
    )


def choice_seed(
    service: Service, seed: int | None, prompt: Sequence[int], choice: int
) -> int | None:
    """The seed of a prompt's choice: `choice` more than the request's own or the derived one."""
    if choice == 0:
        return seed
    return (derive_seed(prompt, service.seed_salt) if seed is None else seed) + choice
