"""The call of the linear attention kernel; src/linear_attention.h has the order of every sum."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


def can_attend(key_dim: int, value_dim: int) -> bool:
    """Whether the kernel takes heads of these sizes."""
    return key_dim % 8 == 0 and value_dim % 8 == 0


def linear_attention(
    q: Float[Array, "R K dk"],
    k: Float[Array, "R K dk"],
    v: Float[Array, "R N dv"],
    g: Float[Array, "R N D"],
    b: Float[Array, "R N"] | None,
    kept: tuple[
        Float[Array, "L 2 K S dk"],
        Float[Array, "L 2 N S dv"],
        Float[Array, "L 2 N S D"],
        Float[Array, "L 2 N dk dv"],
    ],
    lane: Int[Array, " R"],
    position: Int[Array, " R"],
) -> tuple[
    Float[Array, "R N dv"],
    Float[Array, "L 2 K S dk"],
    Float[Array, "L 2 N S dv"],
    Float[Array, "L 2 N S D"],
    Float[Array, "L 2 N dk dv"],
]:
    """As `ops.linear_attention.linear_attention`; what is kept is written where it stands."""
    corrected = jnp.zeros((0, 0), jnp.float32) if b is None else b
    call = jax.ffi.ffi_call(
        "tensorfold_linear_attention",
        [jax.ShapeDtypeStruct(each.shape, jnp.float32) for each in (v, *kept)],
        input_output_aliases={5: 1, 6: 2, 7: 3, 8: 4},
    )
    out, k, u, G, S = call(q, k, v, g, corrected, *kept, lane, position)
    return out, k, u, G, S
