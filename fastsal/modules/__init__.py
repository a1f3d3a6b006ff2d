"""Drop-in Hugging Face modules: architectures, what the kernels cover, preparation, watching, compilation.

May import torch, transformers, the backends and the engine; nothing of sentence-transformers.
"""
