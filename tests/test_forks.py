"""encode in a forked process whose parent has used torch's and the tokenizers library's threads: never a hang."""

from __future__ import annotations

import os

import pytest
from processes import run_python

pytestmark = [pytest.mark.quiet, pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")]

PROGRAM = """
import os, pathlib, signal, numpy as np, torch, fastsal
from fastsal.backends.rows import as_numpy
from torch import nn
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from tiny import bert_checkpoint
from models_zoo import random_batch, tiny_bert

os.environ["TOKENIZERS_PARALLELISM"] = "true"
torch.set_num_threads(2)
checkpoint = str(bert_checkpoint(pathlib.Path(FOLDER) / "bert"))
many = ["the cat sat on the mat", "a dog", "old green house"] * 1700

def encoder(*behind, dtype=torch.float32, **settings):
    modules = [Transformer(checkpoint), Pooling(32, "mean"), *behind]
    model = SentenceTransformer(modules=modules, device="cpu").to(dtype)
    return fastsal.accelerate(model, **settings)

def wide(dtype):
    return Dense(32, 2048, activation_function=nn.GELU()).to(dtype)

def encode(model, texts, **options):
    def run():
        result = model.encode(texts, **options)
        return np.concatenate([row.numpy().ravel() for row in result]) if isinstance(result, list) else result
    return run

def forward(model, rows, columns, **options):
    batch = random_batch(rows=rows, columns=columns)
    def run():
        return as_numpy(model(**batch, **options).pooler_output)
    return run

cases = {
    "LayerNorm, two texts": encode(encoder(Dense(32, 32768), LayerNorm(32768)), many[:2]),
    "Dense with GELU": encode(encoder(wide(torch.float32)), many),
    "Dense with bfloat16 parameters": encode(encoder(wide(torch.bfloat16)), many[:200]),
    "Dense with another activation": encode(encoder(Dense(32, 2048, activation_function=nn.PReLU())), many),
    "five texts": encode(encoder(), many[:5]),
    "float16": encode(encoder(dtype=torch.float16), many),
    "float64": encode(encoder(dtype=torch.float64), many),
    "reference": encode(encoder(backend="reference"), many),
    "pairs": encode(encoder(), [("the cat", "a dog")] * 400),
    "token embeddings": encode(encoder(), many[:400], output_value="token_embeddings"),
    "a pooler in bfloat16": forward(fastsal.accelerate(tiny_bert().bfloat16()), 2000, 3),
    "a pooler in float32": forward(fastsal.accelerate(tiny_bert()), 2000, 3),
    "attentions": forward(fastsal.accelerate(tiny_bert(attn_implementation="eager")), 64, 40, output_attentions=True),
    "tokens": lambda: encoder(backend="reference")[0].model.sentence_embeddings([[1, 2, 3]] * 4000).numpy(),
}
with torch.no_grad():
    for name in NAMES:
        run = cases[name]
        expected = run()
        torch.randn(700, 700).exp() @ torch.randn(700, 700)
        encoder().encode(many)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            ours = run()
            alike = np.array_equal(ours, expected) or np.allclose(ours, expected, rtol=1e-2, atol=1e-3)
            kept = torch.get_num_threads() == 2 and os.environ["TOKENIZERS_PARALLELISM"] == "true"
            os._exit(0 if alike and kept else 1)
        print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sep=": ")
"""

KERNELS = ["LayerNorm, two texts", "Dense with GELU", "Dense with bfloat16 parameters", "five texts", "float16"]
KERNELS += ["a pooler in float32", "a pooler in bfloat16"]
REFERENCE = [
    "Dense with another activation",
    "float64",
    "reference",
    "pairs",
    "token embeddings",
    "attentions",
    "tokens",
]


@pytest.mark.parametrize("names", [KERNELS, REFERENCE], ids=["kernels", "reference"])
def test_in_a_forked_child(tmp_path, names):
    program = PROGRAM.replace("FOLDER", repr(str(tmp_path))).replace("NAMES", repr(names))
    assert run_python(program, timeout=300) == [f"{name}: 0" for name in names]
