"""The step functions that draft for another, and their draft sources."""

from collections.abc import Callable
from dataclasses import dataclass

from tensorfold.checkpoints.interface import Checkpoint, CheckpointError, Progress
from tensorfold.engine.drafts.draft_model import ModelSource
from tensorfold.engine.drafts.next_token import NextTokenSource
from tensorfold.engine.drafts.source import DraftSource
from tensorfold.runtime.kept import KeptFiles
from tensorfold.runtime.load import LoadedModel, load
from tensorfold.runtime.step import StepFunction


@dataclass(frozen=True)
class DraftSteps:
    """Those of a draft model and of a model's own next-token layers, where there are such."""

    draft_model: StepFunction | None = None
    next_token: StepFunction | None = None

    def sources(self, target: StepFunction) -> list[DraftSource]:
        """New draft sources for one engine over `target`."""
        sources: list[DraftSource] = []
        if self.draft_model:
            sources.append(ModelSource(self.draft_model, target.model.spec.vocab_size))
        if self.next_token:
            sources.append(NextTokenSource(self.next_token))
        return sources


def load_draft_model(
    checkpoint: Checkpoint,
    target: Checkpoint,
    progress: Callable[[Progress], None] | None = None,
    kept: KeptFiles | None = None,
) -> LoadedModel:
    """Load a model that is to draft for `target`. Raises CheckpointError if its tokens are others'.

    A vocabulary may be filled up beyond the tokenizer's, and by another number in each.
    """
    ours, theirs = checkpoint.tokenizer, target.tokenizer
    for token in range(max(ours.vocab_size, theirs.vocab_size)):
        texts = [
            each.token_text(token) if token < each.vocab_size else "none" for each in (ours, theirs)
        ]
        if texts[0] != texts[1]:
            raise CheckpointError(
                f"{checkpoint.name} can't draft for {target.name}: token {token} is {texts[0]!r} "
                f"there and {texts[1]!r} here; a draft model must have the same tokenizer"
            )
    return load(checkpoint, progress, kept)


def open_draft_steps(
    target: StepFunction,
    draft_model: LoadedModel | None = None,
    progress: Callable[[Progress], None] | None = None,
    kept: KeptFiles | None = None,
) -> DraftSteps:
    """Compile what can draft for `target`, over state of its lanes and pages."""

    def opened(model: LoadedModel, next_token: bool) -> StepFunction:
        step = StepFunction(model, target.shape, next_token=next_token)
        step.compile(progress, kept)
        return step

    return DraftSteps(
        draft_model=opened(draft_model, False) if draft_model else None,
        next_token=opened(target.model, True) if target.model.spec.next_token else None,
    )
