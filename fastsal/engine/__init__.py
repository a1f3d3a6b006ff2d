"""Texts to vectors without torch: model files, tokenisation, packing, pooling, the encode loop, `TextEncoder`.

May import numpy, tokenizers, safetensors, huggingface_hub (for Hub ids alone) and the compiled kernels, and nothing
else of fastsal.
"""
