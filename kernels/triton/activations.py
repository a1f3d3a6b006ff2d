"""Activation functions on float32 blocks; the names are those of `fastsal.engine.spec.ACTIVATIONS`."""

import triton
import triton.language as tl


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
def activate(x, ACTIVATION: tl.constexpr):
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
    elif ACTIVATION == "gelu":
        x = gelu(x)
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
