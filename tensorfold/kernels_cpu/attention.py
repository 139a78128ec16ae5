"""The call of the paged attention kernel; src/attention.h has the order of every sum."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int


def can_attend(head_dim: int) -> bool:
    """Whether the kernel takes this head size."""
    return head_dim % 8 == 0


def attention(
    qkv: Float[Array, "R X"],
    cos: Float[Array, "R H/2"],
    sin: Float[Array, "R H/2"],
    k_pages: Float[Array, "P K H S"],
    v_pages: Float[Array, "P K S H"],
    lane: Int[Array, " R"],
    position: Int[Array, " R"],
    block_table: Int[Array, "L M"],
    *,
    scale: float,
    window: int | None,
    qk_norm: tuple[Float[Array, " H"], Float[Array, " H"], float] | None,
    sinks: Float[Array, " N"] | None = None,
) -> tuple[Float[Array, "R N H"], Float[Array, "P K H S"], Float[Array, "P K S H"]]:
    """As `ops.attention.attention`; the pages are written where they stand."""
    kv_heads, head_dim = k_pages.shape[1:3]
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    none = jnp.zeros((0,), jnp.float32)
    q_norm, k_norm, epsilon = qk_norm or (none, none, 0.0)
    shapes = [(qkv.shape[0], heads, head_dim), k_pages.shape, v_pages.shape]
    call = jax.ffi.ffi_call(
        "tensorfold_attention",
        [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        input_output_aliases={5: 1, 6: 2},
    )
    out, k_pages, v_pages = call(
        qkv,
        cos,
        sin,
        q_norm,
        k_norm,
        k_pages,
        v_pages,
        lane,
        position,
        block_table,
        none if sinks is None else sinks,
        scale=np.float32(scale),
        window=np.int64(window or 0),
        epsilon=np.float32(epsilon),
    )
    return out, k_pages, v_pages
