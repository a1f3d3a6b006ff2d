"""TEMPORARY: plain PyTorch until the native kernels land (minutes). The class names and signatures stay."""
import sys, pathlib
import torch
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))

class CpuBackend:
    name = "cpu"
    def unavailable(self): return None
    def describe(self): return "plain PyTorch stand-in"
    def unsupported(self, spec, dtype, device):
        if device.type != "cpu": return f"the CPU kernels need tensors on the CPU, these are on {device}"
        if dtype != "float32": return f"the CPU kernels compute in float32 only so far, not {dtype}"
        return None
    def prepare(self, spec, weights, dtype):
        from oracle import OracleEncoder
        class Prepared(OracleEncoder):
            def _check(self, b):
                for name, ids, n in (("input_ids", b.input_ids, spec.vocab_size), ("position_ids", b.position_ids, spec.max_positions), ("token_type_ids", b.token_type_ids, spec.type_vocab_size)):
                    if ids is not None and ids.numel() and (ids.min() < 0 or ids.max() >= n):
                        raise IndexError(f"{name} must be in [0, {n}), got {int(ids.max())}")
            def hidden_states(self, batch, all_layers=False):
                self._check(batch)
                return super().hidden_states(batch, all_layers).float()
            def sentence_embeddings(self, batch, pooling):
                return super().sentence_embeddings(batch, pooling).float()
        return Prepared(spec, weights, torch.float32)
