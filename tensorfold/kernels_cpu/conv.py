"""The call of the convolution kernel; src/conv.h has the order of its sum."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


def causal_conv(
    x: Float[Array, "R C"],
    weight: Float[Array, "C W"],
    kept: Float[Array, "L 2 S C"],
    lane: Int[Array, " R"],
    position: Int[Array, " R"],
    bias: Float[Array, " C"] | None,
) -> tuple[Float[Array, "R C"], Float[Array, "L 2 S C"]]:
    """As `ops.conv.causal_conv`; what is kept is written where it stands."""
    shapes = [jax.ShapeDtypeStruct(each.shape, jnp.float32) for each in (x, kept)]
    call = jax.ffi.ffi_call("tensorfold_conv", shapes, input_output_aliases={3: 1})
    none = jnp.zeros((0,), jnp.float32)
    out, kept = call(x, weight, none if bias is None else bias, kept, lane, position)
    return out, kept
