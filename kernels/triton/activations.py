"""Activation functions on float32 blocks; the names are those of `fastsal.engine.spec.ACTIVATIONS`."""

import triton
import triton.language as tl
from triton import knobs

#: Triton's interpreter runs no assembly.
_INTERPRETED: tl.constexpr = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def exp2_fast(x):
    """One instruction, with a relative error of 2**-22; `tl.exp2` adds three for results that are denormal."""
    if _INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def reciprocal_fast(x):
    """One instruction, with an error of one unit in the last place."""
    if _INTERPRETED:
        return 1 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def tanh(x):
    # libdevice has a tanh, but on NVIDIA only, and the interpreter has none
    size = tl.abs(x)
    decay = tl.exp(-2 * size)
    far = (1 - decay) / (1 + decay)
    square = x * x
    near = size * (1 + square * (-1 / 3 + square * (2 / 15 - square * (17 / 315))))  # the series: no cancellation
    result = tl.where(size < 0.15, near, far)
    return tl.where(x < 0, -result, result)


@triton.jit
def gelu(x):
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_to_half(x):
    """GELU with a relative error of at most 2**-13 for x > -7, where float16 rounds to 2**-11 and bfloat16 to 2**-8.

    The normal distribution's tail is exp(-x*x/2) times a function that a polynomial in 1 / (1 + 0.29 x) follows (the
    form of Hastings 1955; coefficients fitted to the relative error): one exponential, one division, no branch.
    """
    size = tl.abs(x)
    t = reciprocal_fast(1 + 0.29 * size)
    tail = 0.11032407978628338 + t * (0.1605660242641133 + t * (-0.030213281454747495 + t * 0.2593662310662107))
    tail *= t * exp2_fast(x * x * -0.7213475204444817)  # -log2(e) / 2
    return tl.maximum(x, 0.0) - size * tail


@triton.jit
def gelu_tanh_to_half(x):
    """GELU's tanh form: (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)), without tanh's cancellation for negative u."""
    # -2 log2(e) sqrt(2 / pi), and 0.044715 times that
    return x * reciprocal_fast(1 + exp2_fast(x * (-2.302208198144325 - 0.1029432395800235 * (x * x))))


@triton.jit
def activate(x, ACTIVATION: tl.constexpr, dtype: tl.constexpr):
    """`x` is float32; what it becomes is rounded to `dtype`, and exact to that."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "relu2":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        x = x * x
    elif ACTIVATION == "relu6":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        x = tl.minimum(x, 6.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "leaky_relu":
        x = tl.where(x < 0, 0.01 * x, x)
    elif ACTIVATION == "sigmoid":
        x = tl.sigmoid(x)
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "tanh":
        x = tanh(x)
    elif ACTIVATION == "mish":
        # tanh(log(1 + e)) = (e^2 + 2 e) / (e^2 + 2 e + 2) with e = exp(x), which is 1 beyond 20
        e = tl.exp(tl.minimum(x, 20.0))
        x = tl.where(x > 20, x, x * (e * (e + 2) / (e * (e + 2) + 2)))
    elif ACTIVATION == "gelu" and dtype != tl.float32:
        x = gelu_to_half(x)
    elif ACTIVATION == "gelu":
        x = gelu(x)
    elif ACTIVATION == "gelu_tanh" and dtype != tl.float32:
        x = gelu_tanh_to_half(x)
    elif ACTIVATION == "gelu_tanh":
        x = 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    elif ACTIVATION == "gelu_10":
        x = gelu(x)
        x = tl.minimum(tl.maximum(x, -10.0, propagate_nan=tl.PropagateNan.ALL), 10.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "laplace":
        x = 0.5 * (1 + tl.erf((x - 0.707107) / 0.39894257487763823))  # 0.282095 sqrt 2
    elif ACTIVATION == "hardswish":
        y = tl.maximum(x + 3, 0.0, propagate_nan=tl.PropagateNan.ALL)
        x = x * (tl.minimum(y, 6.0, propagate_nan=tl.PropagateNan.ALL) / 6)
    elif ACTIVATION == "sqrtsoftplus":
        # log(1 + e) with the rounding of 1 + e taken out again
        e = tl.exp(tl.minimum(x, 20.0))
        u = 1 + e
        softplus = tl.where(u == 1, e, tl.log(u) * (e / (u - 1)))
        x = tl.sqrt(tl.where(x > 20, x, softplus))
    else:
        tl.static_assert(ACTIVATION == "linear", "unknown activation")
    return x
