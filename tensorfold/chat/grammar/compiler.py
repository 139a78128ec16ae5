"""Grammars compiled for a tokenizer by xgrammar, the extra `grammar`, in bounded time.

xgrammar imports PyTorch, so neither is imported before the first structured reply.
"""

import importlib.util
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from tensorfold.chat.grammar.cases import SchemaError
from tensorfold.chat.grammar.constraint import GrammarConstraint, Vocabulary
from tensorfold.checkpoints.interface import Tokenizer

_PREFIX = re.compile(r"^\[[^\]]*\] \S+:[0-9]+: ")
_MOST_AT_ONCE = 2
_MOST_WAITING = 8


class GrammarError(ValueError):
    """A grammar that can't be enforced here; the message says why."""


class GrammarCompiler:
    """Compiles grammars for one model and keeps those last used.

    vocab_size: the model's, which may be more than the tokenizer's
    end_ids: the tokens of which one ends a reply once its grammar is complete
    seconds: the longest that a grammar may take
    kept: how many compiled grammars are kept
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        end_ids: frozenset[int],
        *,
        seconds: float = 30.0,
        kept: int = 64,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._seconds = seconds
        self._most_kept = kept
        self._kept: OrderedDict[str, Callable[[], GrammarConstraint]] = OrderedDict()
        self._compiler: Any = None
        self._lock = threading.Lock()
        self._running = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self.callers = ThreadPoolExecutor(_MOST_WAITING, "tensorfold-grammar-caller")
        """Threads for calls of `compile`, which may wait long, so that no others wait for them."""

    def compile(self, make: Callable[[], str], key: str) -> Callable[[], GrammarConstraint]:
        """What makes a fresh constraint for each reply under the grammar that `make` returns.

        `key` is equal for equal grammars. Blocks, for `seconds` at most. Raises `GrammarError`.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        _require_xgrammar()
        if not self._running.acquire(timeout=self._seconds):
            raise GrammarError("other grammars are still being compiled; try again later")
        done: Future[Callable[[], GrammarConstraint]] = Future()
        # A thread that takes too long can't be stopped, only no longer waited for.
        threading.Thread(
            target=self._run, args=(make, done), name="tensorfold-grammar", daemon=True
        ).start()
        try:
            found = done.result(self._seconds)
        except TimeoutError:
            raise GrammarError(
                f"it takes longer than {self._seconds:g} seconds to compile; make it simpler"
            ) from None
        with self._lock:
            self._kept[key] = found
            if len(self._kept) > self._most_kept:
                self._kept.popitem(last=False)
        return found

    def _run(
        self, make: Callable[[], str], done: "Future[Callable[[], GrammarConstraint]]"
    ) -> None:
        try:
            done.set_result(self._compiled(make()))
        except (SchemaError, GrammarError) as error:
            done.set_exception(GrammarError(str(error)))
        except Exception as error:
            done.set_exception(error)
        finally:
            self._running.release()

    def _compiled(self, grammar: str) -> Callable[[], GrammarConstraint]:
        import xgrammar

        with self._lock:
            if self._compiler is None:
                self._compiler = self._new_compiler()
        try:
            compiled = self._compiler.compile_grammar(xgrammar.Grammar.from_ebnf(grammar))
        except RuntimeError as error:
            reason = _PREFIX.sub("", str(error)).strip().splitlines()
            raise GrammarError(f"xgrammar refuses it: {reason[0] if reason else error}") from None
        vocabulary = Vocabulary(self._tokenizer, self._vocab_size, self._end_ids)

        def constraint() -> GrammarConstraint:
            return GrammarConstraint(compiled, vocabulary)

        first = constraint().masks(())[0]
        if first is not None and not np.any(first):
            raise GrammarError("no token of this model can begin it")
        return constraint

    def _new_compiler(self) -> Any:
        import xgrammar

        tokenizer = self._tokenizer
        # Text never encodes to a control token: bytes that are in no UTF-8 keep them out of it,
        # and leave them to be named as tokens. A token without bytes is never allowed.
        spellings = [
            b"\xff%d" % token if token in tokenizer.control_ids else tokenizer.token_bytes(token)
            for token in range(min(self._vocab_size, tokenizer.vocab_size))
        ]
        info = xgrammar.TokenizerInfo(
            spellings, vocab_size=self._vocab_size, stop_token_ids=sorted(self._end_ids)
        )
        return xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False)


def is_available() -> bool:
    """Whether xgrammar is installed; finding out does not import it."""
    return importlib.util.find_spec("xgrammar") is not None


def _require_xgrammar() -> None:
    try:
        import xgrammar  # noqa: F401
    except ImportError:
        raise GrammarError(
            "structured output needs xgrammar on the server: pip install 'xgrammar>=0.2'"
        ) from None
