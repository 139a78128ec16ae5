"""The step function: one compiled program a row bucket, over paged, donated state."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.stages import Compiled, Lowered

from tensorfold.checkpoints.interface import Progress
from tensorfold.models.family import (
    Convolution,
    LayerState,
    PagedKV,
    Recurrent,
    State,
    state_bytes,
)
from tensorfold.ops import sample
from tensorfold.ops.implementation import implementation
from tensorfold.ops.memory import empty
from tensorfold.ops.rows import PAGE, ROW_TILE
from tensorfold.ops.rules import apply_mask, words_of
from tensorfold.runtime.build import build_key, key
from tensorfold.runtime.compilation import keep_program, read_program, without_jax_cache
from tensorfold.runtime.head import Head, HeadDrawn, HeadRow
from tensorfold.runtime.kept import KeptFiles
from tensorfold.runtime.load import Leaves, LoadedModel
from tensorfold.runtime.packed import ALL, Layout, Span, unpack_settings

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 256)
"""Rows that a step may have; a step takes the smallest that holds its rows."""

_COMPILE_THREADS = 2

_PLACES: dict[str, tuple[type[LayerState], ...]] = {
    "page": (PagedKV,),
    "lane": (Recurrent, Convolution),
}
"""The layers that keep something of a page, and of a lane."""


def usable_buckets() -> tuple[int, ...]:
    """The buckets worth having: plain XLA ops need whole row tiles, the CPU kernels do not."""
    return tuple(r for r in BUCKETS if implementation() == "cpu" or r % ROW_TILE == 0)


@dataclass(frozen=True)
class StateShape:
    """How much a state holds: `lanes` sequences of up to `context` tokens on `pages` pages, of
    which `kept` at most (None: any) may hold what no sequence needs at the moment; and `snapshots`
    of lanes' own state."""

    lanes: int
    context: int
    pages: int
    kept: int | None = None
    snapshots: int = 0

    @property
    def pages_per_lane(self) -> int:
        """Length of a lane's block table."""
        return -(-self.context // PAGE)


@dataclass(frozen=True)
class Drawn:
    """What a span's drawn rows gave: tokens, and a digest of each row's logits bits."""

    tokens: tuple[int, ...]
    digests: tuple[int, ...]


class StepFunction:
    """Runs steps of a model on state that it owns. Not thread-safe: one thread owns the device."""

    def __init__(
        self,
        model: LoadedModel,
        shape: StateShape,
        buckets: Sequence[int] | None = None,
        *,
        next_token: bool = False,
    ):
        """`next_token`: run the model's next-token layers in its place (`models.family.NextToken`),
        on state of their own; rows then come with hidden vectors and draw the token after next."""
        self.model = model
        following = model.spec.next_token if next_token else None
        self._layers = following.state if following else model.spec.state
        self.paged = state_bytes(self._layers)[1] == 0
        """Whether pages are all that a sequence needs to go on. If not, a lane holds state of its
        own, and a reply must begin at position 0 of its lane or at a snapshot of another's."""
        self.width = following.width if following else 0
        """Of the hidden vectors that rows come with; 0: they come without."""
        self.shape = shape
        self.buckets = tuple(sorted(buckets or usable_buckets()))
        self.kept: KeptFiles | None = None
        """Where the programs that run are kept, if every one of them is."""
        self._programs: dict[int, Any] = {}
        self._head = Head(model)
        self._words = words_of(model.spec.vocab_size)
        self._unmasked = {
            rows: jax.device_put(np.full((rows, self._words), ALL)) for rows in self.buckets
        }
        self._copy_page: Any = None
        self._copy_lane: Any = None
        self._hidden: Array | None = None
        self._hidden_size = 0
        self._settings: np.ndarray | None = None
        self.reset()

    def reset(self) -> None:
        """Fresh state, for instance after a step that failed with the old one donated."""
        self._state = make_state(self._layers, self.shape)

    def compile(
        self,
        progress: Callable[[Progress], None] | None = None,
        kept: KeptFiles | None = None,
    ) -> None:
        """Compile every program, or take it from `kept`. Nothing compiles after this."""
        makers = self._makers()
        names = self.kept_names() if kept else {}
        programs: dict[str, Compiled] = {}

        def report() -> None:
            if progress:
                progress(Progress("compile", len(programs), len(makers), "programs"))

        def compiled(program: str, lowered: Lowered) -> Compiled:
            made = lowered.compile()
            same = keep_program(kept, names[program], made) if kept else None
            if same is None:
                self.kept = None
            return same or made

        self.kept = kept
        with ThreadPoolExecutor(_COMPILE_THREADS) as threads:
            if kept:
                found = threads.map(partial(read_program, kept), names.values())
                programs |= {name: each for name, each in zip(names, found, strict=True) if each}
            missing = [name for name in makers if name not in programs]
            if missing:
                report()
            with without_jax_cache() if kept and missing else nullcontext():
                # Tracing holds the GIL and compiling doesn't: trace in order, compile side by side.
                pending = {name: threads.submit(compiled, name, makers[name]()) for name in missing}
                for name, future in pending.items():
                    programs[name] = future.result()
                    report()
        self._programs = {rows: programs[f"step {rows}"] for rows in self.buckets}
        if not self.width:
            self._head.programs = {size: programs[f"head {size}"] for size in self._head.sizes}
            self._copy_page = programs["copy page"]
            self._copy_lane = programs["copy lane"]

    def kept_names(self) -> dict[str, str]:
        """The name that each program is kept under: another for whatever could make it another
        program."""
        flat, tree = jax.tree.flatten(self.model.leaves)
        arrays = [(leaf.shape, leaf.dtype.name) for leaf in flat]
        shape = self.shape
        sizes = shape.lanes, shape.snapshots, shape.pages_per_lane, shape.pages
        form = repr((self._layers, self.width, sizes))
        model = key(build_key(), self.model.config, arrays, str(tree), form)
        return {name: f"program-{key(model, name)}" for name in self._makers()}

    def _makers(self) -> dict[str, Callable[[], Lowered]]:
        """How each program is made: every bucket's step, every size of the head, the copy of a
        page. Next-token layers need the steps only."""
        steps: dict[str, Callable[[], Lowered]] = {
            f"step {rows}": partial(self._lower, rows) for rows in self.buckets
        }
        if self.width:
            return steps
        heads = {f"head {size}": partial(self._lower_head, size) for size in self._head.sizes}
        copies = {
            f"copy {place}": partial(self._lower_copy, kinds) for place, kinds in _PLACES.items()
        }
        return steps | heads | copies

    def run(
        self,
        spans: Sequence[Span],
        block_table: np.ndarray,
        settings: np.ndarray,
        bucket: int | None = None,
        hidden: Sequence[np.ndarray] | None = None,
    ) -> list[Drawn]:
        """Run one step and wait for it: `block_table` [L, M] and `settings` [L, 6] int32; `hidden`
        [rows, width] of each span, for next-token layers.

        Spans must be of different lanes and fit the largest bucket together; `bucket` overrides
        the choice of the smallest.
        """
        needed = sum(len(span.tokens) for span in spans)
        rows = bucket or next(bucket for bucket in self.buckets if bucket >= needed)
        layout = self._layout(rows)
        packed = layout.pack(spans, block_table)
        masks = layout.pack_masks(spans, self._words)
        if masks is None:
            masks = self._unmasked[rows]
        more = []
        if hidden is not None:
            more = [np.zeros((rows, self.width), np.float32)]
            np.concatenate(hidden, out=more[0][:needed])
        drawn, self._hidden, self._state = self._programs[rows](
            self.model.leaves, self._state, packed, settings, masks, *more
        )
        self._settings = settings
        tokens, digests = np.asarray(drawn)
        out, row = [], 0
        for span in spans:
            end = row + span.draws
            out.append(Drawn(tuple(tokens[row:end].tolist()), tuple(digests[row:end].tolist())))
            row = end
        return out

    def hidden(self) -> np.ndarray:
        """Every row's hidden vector of the last step, [R, D] float32."""
        assert self._hidden is not None
        return np.asarray(self._hidden)

    def draw(self, rows: Sequence[HeadRow]) -> list[HeadDrawn]:
        """Draw from rows of the last step under rules of their own."""
        assert self._settings is not None
        return self._head.run(self.hidden(), self._settings, rows)

    def copy_page(self, source: int, target: int) -> None:
        """Make page `target` hold what `source` does, in every layer."""
        self._state = self._copy_page(self._state, np.int32(source), np.int32(target))

    def copy_lane(self, source: int, target: int) -> None:
        """Make lane `target`'s own state what `source`'s is. Snapshots count on from the lanes."""
        self._state = self._copy_lane(self._state, np.int32(source), np.int32(target))

    def drop_bucket(self, rows: int) -> None:
        """Never run a step of this bucket again."""
        self.buckets = tuple(bucket for bucket in self.buckets if bucket != rows)

    def _layout(self, rows: int) -> Layout:
        return Layout(rows, self.shape.lanes, self.shape.pages_per_lane)

    def _lower(self, rows: int) -> Lowered:
        layout = self._layout(rows)

        def step(leaves: Leaves, state: State, *arguments: Array) -> tuple[Array, Array, State]:
            return _step(self.model, layout, leaves, state, *arguments)

        packed = jax.ShapeDtypeStruct((layout.size,), jnp.int32)
        settings = jax.ShapeDtypeStruct(layout.settings_shape, jnp.int32)
        masks = jax.ShapeDtypeStruct((rows, self._words), jnp.uint32)
        hidden = [jax.ShapeDtypeStruct((rows, self.width), jnp.float32)] if self.width else []
        lowered = jax.jit(step, donate_argnums=1).lower(
            self.model.leaves, self._state, packed, settings, masks, *hidden
        )
        self._hidden_size = lowered.out_info[1].shape[1]
        return lowered

    def _lower_head(self, size: int) -> Lowered:
        if not self._hidden_size:
            self._lower(self.buckets[0])
        return self._head.lower(size, self._hidden_size)

    def _lower_copy(self, kinds: tuple[type[LayerState], ...]) -> Lowered:
        """Copies a page or a lane of the layers that have such state."""
        place = jax.ShapeDtypeStruct((), jnp.int32)
        concerned = tuple(isinstance(layer, kinds) for layer in self._layers)
        copy = jax.jit(partial(_copy_place, concerned), donate_argnums=0)
        return copy.lower(self._state, place, place)


def make_state(layers: Sequence[LayerState], shape: StateShape) -> State:
    """The arrays of every layer. No place is read before it is written."""
    return tuple(
        tuple(empty(each) for each in layer.shapes(shape.lanes + shape.snapshots, shape.pages))
        for layer in layers
    )


def forward(
    model: LoadedModel, layout: Layout, leaves: Leaves, state: State, packed: Array
) -> tuple[Array, State]:
    """Every row's logits [R, V]: the model without the draw, for tests and measurements."""
    module = model.bind(leaves)
    rows, _, _ = layout.unpack(packed)
    hidden, state = module(rows, state)
    return module.logits(hidden), state


def _step(
    model: LoadedModel,
    layout: Layout,
    leaves: Leaves,
    state: State,
    packed: Array,
    settings: Array,
    masks: Array,
    before: Array | None = None,
) -> tuple[Array, Array, State]:
    """(drawn [2, R] int32: tokens and digests of the drawn rows in order, drawn under `masks`
    [R, W]; every row's hidden vector [R, D]; the written state). With hidden vectors from `before`,
    of the next-token layers."""
    module = model.bind(leaves)
    rows, drawn, count = layout.unpack(packed)
    row_settings = unpack_settings(settings, rows.lane[drawn])
    position = rows.position[drawn] + 1
    if before is None:
        hidden, state = module(rows, state)
    else:
        hidden, state = module.next_token(rows, before, state)
        position = position + 1

    size = min(layout.rows, ROW_TILE)

    def tile(t: Array, out: Array) -> Array:
        """The head and the draw for a few drawn rows; the logits never leave the tile."""
        start = t * size

        def cut(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, start, size)

        logits = module.logits(hidden[cut(drawn)])
        mask = cut(masks)
        allowed = lax.cond(jnp.all(mask == ALL), lambda: logits, lambda: apply_mask(logits, mask))
        tokens = sample.draw(allowed, jax.tree.map(cut, row_settings), cut(position), count - start)
        block = jnp.stack([tokens, sample.digest(logits)])
        return lax.dynamic_update_slice(out, block, (0, start))

    def head() -> Array:
        return lax.fori_loop(0, (count + size - 1) // size, tile, none)

    none = jnp.zeros((2, layout.rows), jnp.int32)
    # Of a single row XLA takes the body out of the loop, and so would run it for no rounds too.
    return lax.cond(count > 0, head, lambda: none), hidden, state


def _copy_place(concerned: tuple[bool, ...], state: State, source: Array, target: Array) -> State:
    """Copy along the first axis of the layers `concerned`."""

    def copy(places: Array) -> Array:
        place = lax.dynamic_index_in_dim(places, source, keepdims=True)
        return lax.dynamic_update_slice_in_dim(places, place, target, axis=0)

    return tuple(
        jax.tree.map(copy, layer) if copied else layer
        for copied, layer in zip(concerned, state, strict=True)
    )
