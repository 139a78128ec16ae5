"""What the application serves: everything it needs, given once and never changed."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from tensorfold.chat.grammar.compiler import GrammarCompiler
from tensorfold.chat.prompt import ChatEncoder
from tensorfold.chat.reasoning import Markers, find_markers
from tensorfold.chat.tools.gate import Spellings
from tensorfold.chat.tools.hermes import HermesParser
from tensorfold.chat.tools.parser import CallParser
from tensorfold.checkpoints.interface import GenerationDefaults, Tokenizer
from tensorfold.engine.interface import Engine, Sampling
from tensorfold.serving.counts import Counts

T = TypeVar("T")


@dataclass(frozen=True)
class ReplyDefaults:
    """What a reply is like where its request does not say."""

    max_tokens: int = 4096
    sampling: Sampling = field(default_factory=Sampling)
    thinking_budget: int = 0
    """0: none."""
    loop_guard: bool = False

    @classmethod
    def of(
        cls,
        generation: GenerationDefaults,
        *,
        max_tokens: int = 4096,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        thinking_budget: int = 0,
        loop_guard: bool = False,
    ) -> "ReplyDefaults":
        """The server's own settings where given, over the checkpoint's."""

        def first(flag: T | None, own: T | None, otherwise: T) -> T:
            return next((value for value in (flag, own) if value is not None), otherwise)

        sampling = Sampling(
            temperature=first(temperature, generation.temperature, 0.0),
            top_k=first(top_k, generation.top_k, 0),
            top_p=first(top_p, generation.top_p, 1.0),
            min_p=first(min_p, generation.min_p, 0.0),
        )
        return cls(max_tokens, sampling, thinking_budget, loop_guard)


@dataclass(frozen=True)
class Service:
    """A model to serve. `chat` is None when it has no chat template."""

    engine: Engine
    tokenizer: Tokenizer
    chat: ChatEncoder | None
    name: str
    created: int
    aliases: tuple[str, ...] = ()
    end_ids: frozenset[int] = frozenset()
    defaults: ReplyDefaults = field(default_factory=ReplyDefaults)
    backend: str | None = None
    device: str | None = None
    reasoning_effort: str | None = None
    """What a chat request asks for that does not say."""
    model_context: int = 0
    """The model's own, where --context says less; else 0."""
    drafts: bool = True
    """Whether replies may be drafted at all (--no-drafts)."""
    seed_salt: int = 0
    """What the engine derives seeds with."""
    request_timeout: float | None = None
    """Seconds from a request's arrival after which its replies are ended."""
    counts: Counts = field(default_factory=Counts)

    tool_format: type[CallParser] = HermesParser
    """How the model writes tool calls."""

    @cached_property
    def control_spellings(self) -> dict[int, str]:
        """The tokenizer's control tokens."""
        return {token: self.tokenizer.token_text(token) for token in self.tokenizer.control_ids}

    @cached_property
    def spellings(self) -> Spellings:
        """What forced calls are spelled with."""
        return Spellings(self.tokenizer, self.engine.limits.vocab_size)

    @property
    def model_ids(self) -> tuple[str, ...]:
        """The served name, then its aliases."""
        return (self.name, *self.aliases)

    def reply_model(self, asked: str | None) -> str:
        """The model a reply names: the id that was asked for if it is known, else the name."""
        return asked if asked is not None and asked in self.model_ids else self.name

    @cached_property
    def markers(self) -> Markers | None:
        """The tokens around the model's reasoning, if it has any."""
        return find_markers(self.tokenizer, self.chat.template_source if self.chat else "")

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiles what replies must match."""
        return GrammarCompiler(self.tokenizer, self.engine.limits.vocab_size, self.end_ids)
