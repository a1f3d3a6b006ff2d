"""Triton kernels for packed sentences, one family per file. Nothing here knows Hugging Face or a backend.

Shapes: T packed tokens of B sentences, hidden size H. Matrices are (out_features, in_features), as in `nn.Linear`.
Each file holds the kernels, a launcher ``..._into`` that writes to memory it is given, and a torch.library operator
``fastsal::...`` that allocates its result. Sums, statistics and softmax are float32, and so are products of float32.
"""
