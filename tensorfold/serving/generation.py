"""The fields that every generating route shares: how a reply is drawn, limited and sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorfold.chat.pieces import Stage
from tensorfold.chat.thinking import ThinkingRules
from tensorfold.engine.interface import Constraint, Request, Sampling
from tensorfold.engine.seeds import derive_seed
from tensorfold.serving.errors import ApiError, context_exceeded
from tensorfold.serving.fields import (
    EMPTY,
    Body,
    Field,
    Unsupported,
    biases,
    boolean,
    integer,
    integer_or,
    known_tokens,
    mapping,
    number,
    refuse,
    strings,
    text,
    token_ids,
)
from tensorfold.serving.reply import Asked
from tensorfold.serving.service import Service

MOST_CHOICES = 16
"""Of a prompt."""
MOST_REPLIES = 1024
"""Of a request."""

MODEL: Field[str | None] = Field(
    "model", text(), None, "Any name; one that is not served is answered under the served name."
)
TEMPERATURE: Field[float | None] = Field(
    "temperature", number(), None, "0 or less takes the likeliest token."
)
TOP_P: Field[float | None] = Field(
    "top_p", number(), None, "Keeps the likeliest tokens up to this probability, if within 0 and 1."
)
TOP_K: Field[int | None] = Field(
    "top_k", integer(), None, "Keeps this many of the likeliest tokens; 0 or less keeps all."
)
MIN_P: Field[float | None] = Field(
    "min_p", number(0, 1), None, "Least likelihood, as a share of the likeliest token's."
)
SEED: Field[int | None] = Field(
    "seed", integer(), None, "The key of the draws; derived from the prompt when absent."
)
STOP: Field[tuple[str, ...]] = Field(
    "stop", strings(most=256, longest=4096), (), "Strings that end the reply before them."
)
STOP_TOKEN_IDS: Field[tuple[int, ...]] = Field(
    "stop_token_ids", token_ids(most=256), (), "Tokens that end the reply, as end tokens do."
)
MIN_TOKENS = Field(
    "min_tokens", integer(0), 0, "Before as many tokens neither an end token nor stop ends it."
)
PRESENCE_PENALTY = Field(
    "presence_penalty", number(-2, 2), 0.0, "Taken from the logits of tokens in the reply."
)
FREQUENCY_PENALTY = Field(
    "frequency_penalty", number(-2, 2), 0.0, "The same, for each time the token was said."
)
REPETITION_PENALTY = Field(
    "repetition_penalty", number(0.01, 100), 1.0, "Divides the logits of tokens said or read."
)
LOGIT_BIAS: Field[tuple[tuple[int, float], ...]] = Field(
    "logit_bias", biases(most=1024, largest=100), (), "Added to the logits of these tokens."
)
RETURN_TOKEN_IDS = Field(
    "return_token_ids", boolean(), False, "Sends the ids of the prompt and of the reply."
)
PRIORITY: Field[int | str] = Field(
    "priority",
    integer_or("background", "foreground"),
    0,
    '"background", or a number above 0, yields to every request that is not.',
)
CACHE_SALT = Field(
    "cache_salt", text(), "", "Kept prompts are shared among requests of one salt only."
)
IGNORE_EOS = Field("ignore_eos", boolean(), False, "Goes on past the model's end tokens.")
DRAFT = Field("draft", boolean(), True, "False decodes a token at a time; the tokens are the same.")
STREAM = Field("stream", boolean(), False, "Sends the reply as server-sent events.")
INCLUDE_USAGE = Field("include_usage", boolean(), False, "Sends the usage in a chunk of its own.")
STREAM_OPTIONS: Field[dict[str, Any]] = Field(
    "stream_options", mapping(INCLUDE_USAGE), {}, "How a stream is sent."
)
CHOICES = Field("n", integer(1, MOST_CHOICES), 1, "Replies to a prompt; seeds count up from seed.")
# The first that is given and not zero counts; zero reads as absent.
REPLY_LIMITS = (
    Field("max_tokens", integer(0), 0, "Most tokens of the reply; 0 is as absent."),
    Field("max_completion_tokens", integer(0), 0, "The same; max_tokens wins."),
)
FIELDS: tuple[Field[Any], ...] = (
    MODEL,
    *REPLY_LIMITS,
    TEMPERATURE,
    TOP_P,
    TOP_K,
    MIN_P,
    SEED,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    REPETITION_PENALTY,
    LOGIT_BIAS,
    STOP,
    STOP_TOKEN_IDS,
    MIN_TOKENS,
    IGNORE_EOS,
    DRAFT,
    STREAM,
    STREAM_OPTIONS,
    CHOICES,
    RETURN_TOKEN_IDS,
    PRIORITY,
    CACHE_SALT,
)

UNSUPPORTED = (
    Unsupported("bad_words", EMPTY),
    Unsupported("allowed_token_ids", EMPTY),
    Unsupported("use_beam_search", EMPTY),
    Unsupported("best_of", [0, 1]),
)


@dataclass(frozen=True)
class ReplyOptions:
    """What a request asks of its replies; `max_tokens` is None unless it says so itself.

    `logprobs` and `prompt_logprobs` are numbers of alternatives, None for no log probabilities.
    """

    model: str
    sampling: Sampling
    max_tokens: int | None
    stops: tuple[str, ...]
    stop_ids: frozenset[int]
    ignore_eos: bool
    draft: bool
    stream: bool
    include_usage: bool
    n: int
    return_token_ids: bool
    background: bool
    cache_salt: str
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True)
class Prompt:
    """The tokens of one prompt, what its replies must keep to, and how their text is read.

    `stages` and `constraint` make anew what each reply needs for itself. `thinking` is what holds
    the reasoning, where something does.
    """

    tokens: Sequence[int]
    stages: Callable[[], Sequence[Stage]] = tuple
    constraint: Callable[[], Constraint] | None = None
    thinking: ThinkingRules | None = None


def read_reply_options(body: Body, service: Service) -> ReplyOptions:
    """Read the shared fields of a generating request. Raises `ApiError`."""
    refuse(body, UNSUPPORTED)
    vocab_size = service.engine.limits.vocab_size
    limits = [field.of(body) for field in REPLY_LIMITS]
    max_tokens = next((limit for limit in limits if limit), None)
    sampling = _read_sampling(body, service)
    if max_tokens is not None and sampling.min_tokens > max_tokens:
        raise ApiError(
            f"min_tokens must be at most the reply limit of {max_tokens}", param="min_tokens"
        )
    stop_ids = known_tokens(STOP_TOKEN_IDS.of(body), STOP_TOKEN_IDS.name, vocab_size)
    return ReplyOptions(
        model=service.reply_model(MODEL.of(body)),
        sampling=sampling,
        max_tokens=max_tokens,
        stops=STOP.of(body),
        stop_ids=frozenset(stop_ids),
        ignore_eos=IGNORE_EOS.of(body),
        draft=DRAFT.of(body) and service.drafts,
        stream=STREAM.of(body),
        include_usage=INCLUDE_USAGE.of(STREAM_OPTIONS.of(body)),
        n=CHOICES.of(body),
        return_token_ids=RETURN_TOKEN_IDS.of(body),
        background=_is_background(PRIORITY.of(body)),
        cache_salt=CACHE_SALT.of(body),
    )


def _is_background(priority: int | str) -> bool:
    """vLLM's numbers are the larger the less urgent, and 0 where a request does not say."""
    return priority > 0 if isinstance(priority, int) else priority == "background"


def _read_sampling(body: Body, service: Service) -> Sampling:
    asked = {
        "temperature": TEMPERATURE.of(body),
        "top_p": TOP_P.of(body),
        "top_k": TOP_K.of(body),
        "min_p": MIN_P.of(body),
        "seed": SEED.of(body),
    }
    given = {name: value for name, value in asked.items() if value is not None}
    sampling = replace(
        service.defaults.sampling,
        **given,  # type: ignore[arg-type]
        presence_penalty=PRESENCE_PENALTY.of(body),
        frequency_penalty=FREQUENCY_PENALTY.of(body),
        repetition_penalty=REPETITION_PENALTY.of(body),
        logit_bias=LOGIT_BIAS.of(body),
        min_tokens=MIN_TOKENS.of(body),
    )
    vocab_size = service.engine.limits.vocab_size
    known_tokens([token for token, _ in sampling.logit_bias], LOGIT_BIAS.name, vocab_size)
    # Keeping every token is what 0 says, so an engine never sees a number wider than its arrays.
    if not 0 < sampling.top_k < vocab_size:
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
            prompt.thinking,
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
        raise context_exceeded(
            context, len(tokens), options.max_tokens, param, service.model_context
        )
    return Request(
        id=reply_id,
        prompt=tokens,
        sampling=replace(
            options.sampling, seed=choice_seed(service, options.sampling.seed, tokens, choice)
        ),
        max_tokens=options.max_tokens or min(service.defaults.max_tokens, room),
        end_ids=options.stop_ids | (frozenset() if options.ignore_eos else service.end_ids),
        draft=options.draft,
        background=options.background,
        cache_salt=options.cache_salt,
        constraint=prompt.constraint,
        logprobs=options.logprobs,
        prompt_logprobs=options.prompt_logprobs,
    )


def choice_seed(
    service: Service, seed: int | None, prompt: Sequence[int], choice: int
) -> int | None:
    """The seed of a prompt's choice: `choice` more than the request's own or the derived one."""
    if choice == 0:
        return seed
    return (derive_seed(prompt, service.seed_salt) if seed is None else seed) + choice
