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
    q_RNH: Float[Array, "R N H"],
    k_RKH: Float[Array, "R K H"],
    v_RKH: Float[Array, "R K H"],
    k_pages: Float[Array, "P K H S"],
    v_pages: Float[Array, "P K S H"],
    lane: Int[Array, " R"],
    position: Int[Array, " R"],
    block_table: Int[Array, "L M"],
    *,
    scale: float,
    window: int | None = None,
) -> tuple[Float[Array, "R N H"], Float[Array, "P K H S"], Float[Array, "P K S H"]]:
    """As `ops.attention.attention`; the pages are written where they stand."""
    shapes = [jax.ShapeDtypeStruct(a.shape, jnp.float32) for a in (q_RNH, k_pages, v_pages)]
    call = jax.ffi.ffi_call("tensorfold_attention", shapes, input_output_aliases={3: 1, 4: 2})
    out, k_pages, v_pages = call(
        q_RNH,
        k_RKH,
        v_RKH,
        k_pages,
        v_pages,
        lane,
        position,
        block_table,
        scale=np.float32(scale),
        window=np.int64(window or 0),
    )
    return out, k_pages, v_pages
