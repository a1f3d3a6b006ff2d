"""An encoder on the Triton kernels: weights in the kernels' layout, one workspace, CUDA graphs for small batches."""

from __future__ import annotations

import enum
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastsal.backends.cuda_graph import captured
from fastsal.backends.device_batch import Capacity, Chunk, DeviceBatch, HostBatch, make_chunk, to_host, view, write
from fastsal.backends.fingerprint import pooling_fingerprint
from fastsal.backends.stream_order import StreamOrder
from fastsal.engine.packing import PackedBatch, pack_token_lists
from fastsal.engine.pooling import PoolingSpec, check_lengths
from fastsal.engine.spec import EncoderSpec, EncoderWeights, LayerNorm, Linear
from fastsal.kernels.triton.attention import AttentionPlan, attention_into, plan_attention, qkv_attention_into
from fastsal.kernels.triton.conv_pool import BLOCK_TOKENS, PackedConvolutions, conv_pool_into, pack_convolutions
from fastsal.kernels.triton.embeddings import MAX_MAPPED_WIDTH, embed_into
from fastsal.kernels.triton.layer_norm import residual_norm_into
from fastsal.kernels.triton.linear import bias_activation_in_place, linear_into, project_norm_into
from fastsal.kernels.triton.pooling import normalize_in_place, pool_into
from fastsal.kernels.triton.tuning import Tuning, tuning_for

#: Tokens of one pass, which bounds the workspace; larger batches are computed in several. At 768 columns in half
#: precision a norm finds about half of what it reads in an H200's L2, and products fill its last wave.
CHUNK_TOKENS = 16_384

#: Batches of at most these many tokens replay a CUDA graph made for the next larger size, as long as no stage of it is
#: cuBLAS's. Half as many sentences fit: one has at least [CLS] and [SEP]. Steps above 256 add a fifth at most.
GRAPH_TOKENS = (
    *(16, 32, 64, 128),
    *(size * quarters // 4 for size in (256, 512, 1024, 2048, 4096, 8192) for quarters in (4, 5, 6, 7)),
    16_384,
)

#: Rows that the workspace has at least.
_LEAST_ROWS = 2048

logger = logging.getLogger(__name__)

#: Graphs and sets of packed convolutions that are kept, the least recently used go first. Those of one pooling fit.
_MAX_GRAPHS = 64
_MAX_PACKED_CONVOLUTIONS = 4


class _Mark(enum.Enum):
    """What is known of a kind of chunk that has no graph."""

    SEEN = enum.auto()  # once: worth a graph when it comes again
    REFUSED = enum.auto()  # it could not be captured


@dataclass(frozen=True)
class _Layer:
    """One layer's weights; `qkv` has the rows of query, key and value one after the other."""

    qkv: Linear
    attention_output: Linear
    attention_norm: LayerNorm
    up: Linear
    down: Linear
    output_norm: LayerNorm


class _Workspace:
    """Activations of up to `rows` tokens. `wide` holds q, k, v, then the feed-forward layer's middle."""

    def __init__(self, rows: int, spec: EncoderSpec, dtype: torch.dtype, device: torch.device) -> None:
        wide = max(3 * spec.hidden_size, spec.intermediate_size, spec.embedding_size)
        self.rows = rows
        self.x, self.y, self.context = (
            torch.empty(rows, spec.hidden_size, dtype=dtype, device=device) for _ in range(3)
        )
        self._wide = torch.empty(rows * wide, dtype=dtype, device=device)

    def wide(self, rows: int, columns: int) -> Tensor:
        return self._wide[: rows * columns].view(rows, columns)


@dataclass(frozen=True)
class _Graph:
    """Launches for any chunk that `capacity` holds: `replay` computes `result` from `buffer`.

    The launches hold addresses; `pooling` and `packed` keep the memory behind them.
    """

    capacity: Capacity
    buffer: Tensor
    result: Tensor
    replay: Callable[[], None]
    pooling: PoolingSpec | None
    packed: PackedConvolutions | None


class TritonEncoder:
    """An encoder for one device; implements `PreparedEncoder`.

    Weights that are in the dtype asked for already are used where they are, except q, k and v, which are joined.
    Calls from several threads run one after the other. Small batches replay CUDA graphs from the second call of a
    size on; results are copies, which later calls leave alone.
    """

    def __init__(
        self, spec: EncoderSpec, weights: EncoderWeights, dtype: str = "float32", tuning: Tuning | None = None
    ) -> None:
        self._spec = spec
        self._dtype = getattr(torch, dtype)
        self._device = weights.word_embeddings.device
        self._tuning = tuning or tuning_for(self._device)
        self._order = StreamOrder(self._device)
        weakref.finalize(self, self._order.wait).atexit = False
        with self._order.turn(), torch.inference_mode(False):
            self._word_table = self._own(weights.word_embeddings)
            self._position_table = self._own(weights.position_embeddings)
            self._type_table = self._own(weights.type_embeddings)
            self._embedding_norm = LayerNorm(*self._own_pair(weights.embedding_norm))
            self._mapping = None if weights.mapping is None else Linear(*self._own_pair(weights.mapping))
            self._layers = [
                _Layer(
                    qkv=Linear(
                        torch.cat([self._own(part.weight) for part in (layer.query, layer.key, layer.value)]),
                        torch.cat([self._own(part.bias) for part in (layer.query, layer.key, layer.value)]),
                    ),
                    attention_output=Linear(*self._own_pair(layer.attention_output)),
                    attention_norm=LayerNorm(*self._own_pair(layer.attention_norm)),
                    up=Linear(*self._own_pair(layer.up)),
                    down=Linear(*self._own_pair(layer.down)),
                    output_norm=LayerNorm(*self._own_pair(layer.output_norm)),
                )
                for layer in weights.layers
            ]
        self._graph_tokens = [size for size in GRAPH_TOKENS if not self._calls_cublas(size, fused=True)]
        self._workspace: _Workspace | None = None
        self._graph_workspace: _Workspace | None = None
        self._graphs: OrderedDict[tuple, _Graph | _Mark] = OrderedDict()
        self._convolutions: OrderedDict[tuple, tuple[PoolingSpec, PackedConvolutions]] = OrderedDict()

    def hidden_states(self, batch: PackedBatch, all_layers: bool = False) -> Tensor:
        host = to_host(batch, self._spec)
        num_states = len(self._spec.layer_schedule) + 1 if all_layers else 1
        with self._exclusively():
            states = torch.empty(
                num_states, batch.num_tokens, self._spec.hidden_size, dtype=self._dtype, device=self._device
            )
            for first, end in host.chunks(CHUNK_TOKENS):
                start, stop = int(host.cu_seqlens[first]), int(host.cu_seqlens[end])
                chunk = self._chunk(host, first, end)
                graph = None if all_layers or batch.inputs_embeds is not None else self._graph(chunk, None, None)
                if graph is not None:
                    self._replay(graph, chunk)
                    states[0, start:stop] = graph.result[: stop - start]
                else:
                    vectors = self._vectors(batch, start, stop)
                    self._encode(self._send(chunk, vectors), self._room(stop - start), states[:, start:stop])
        return states if all_layers else states[0]

    def sentence_embeddings(self, batch: PackedBatch, pooling: PoolingSpec) -> Tensor:
        host = to_host(batch, self._spec)
        if pooling.convolutions:
            check_lengths((host.cu_seqlens[1:] - host.cu_seqlens[:-1]).tolist(), pooling)
        with self._exclusively():
            packed = self._packed(pooling) if pooling.convolutions else None
            width = pooling.output_size(self._spec.hidden_size)
            embeddings = torch.empty(batch.num_sentences, width, dtype=torch.float32, device=self._device)
            for first, end in host.chunks(CHUNK_TOKENS):
                start, stop = int(host.cu_seqlens[first]), int(host.cu_seqlens[end])
                chunk = self._chunk(host, first, end, None if packed is None else BLOCK_TOKENS)
                graph = None if batch.inputs_embeds is not None else self._graph(chunk, pooling, packed)
                if graph is not None:
                    self._replay(graph, chunk)
                    embeddings[first:end] = graph.result[: end - first]
                else:
                    sent = self._send(chunk, self._vectors(batch, start, stop))
                    self._pool(
                        self._encode(sent, self._room(stop - start)), sent, pooling, packed, embeddings[first:end]
                    )
        return embeddings

    def warm_up(self, pooling: PoolingSpec) -> None:
        """Compile the kernels and capture the graphs of every size, for `sentence_embeddings` with this pooling."""
        longest = self._spec.max_positions
        for tokens in (*self._graph_tokens, CHUNK_TOKENS):
            lengths = {self._plan(tokens, length): length for length in (16, 32, 64, 128, longest) if length <= longest}
            for length in lengths.values():
                sentences = [np.zeros(min(length, tokens), np.int64)] * max(tokens // length, 1)
                for _ in range(2):  # the second of a kind is captured
                    self.sentence_embeddings(pack_token_lists(sentences), pooling)

    # Where it runs

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """The workspace for this thread and stream alone; tensors made inside are ordinary ones."""
        with self._order.turn(), torch.inference_mode(False), torch.no_grad():
            yield

    def _room(self, num_tokens: int) -> _Workspace:
        if self._workspace is None or self._workspace.rows < num_tokens:
            self._order.finish()
            self._workspace = None  # frees the memory before more is taken
            rows = max(1 << max(num_tokens - 1, 0).bit_length(), _LEAST_ROWS)
            self._workspace = _Workspace(rows, self._spec, self._dtype, self._device)
        return self._workspace

    def _chunk(self, host: HostBatch, first: int, end: int, block_tokens: int | None = None) -> Chunk:
        rows = int(host.cu_seqlens[end] - host.cu_seqlens[first])
        return make_chunk(host, first, end, self._plan(rows, host.longest(first, end)), block_tokens)

    def _plan(self, rows: int, longest: int) -> AttentionPlan:
        return plan_attention(rows, longest, self._spec.head_size, self._dtype, self._tuning)

    def _send(self, chunk: Chunk, vectors: Tensor | None) -> DeviceBatch:
        buffer = write(chunk, chunk.capacity, pin=self._device.type == "cuda")
        return view(buffer.to(self._device, non_blocking=True), chunk.capacity, chunk.attention, vectors)

    def _vectors(self, batch: PackedBatch, start: int, stop: int) -> Tensor | None:
        if batch.inputs_embeds is None:
            return None
        return batch.inputs_embeds[start:stop].detach().to(self._device, self._dtype).contiguous()

    # CUDA graphs

    def _graph(self, chunk: Chunk, pooling: PoolingSpec | None, packed: PackedConvolutions | None) -> _Graph | None:
        """The graph that computes this chunk, or None if none does: the chunk is large, or the first of its kind."""
        capacity = self._graph_capacity(chunk)
        if capacity is None or (pooling is not None and _changes_unnoticed(pooling)):
            return None
        key = (capacity.tokens, chunk.attention, None if pooling is None else pooling_fingerprint(pooling))
        known = self._graphs.pop(key, None)
        if known is _Mark.SEEN:
            known = self._capture(chunk, capacity, pooling, packed)
        self._graphs[key] = known or _Mark.SEEN
        if len(self._graphs) > _MAX_GRAPHS:
            self._order.finish()
            self._graphs.popitem(last=False)
        return known if isinstance(known, _Graph) else None

    def _graph_capacity(self, chunk: Chunk) -> Capacity | None:
        needed, tile_tokens = chunk.capacity, chunk.attention.tile_tokens
        tokens = next((size for size in self._graph_tokens if needed.tokens <= size), None)
        if tokens is None or needed.sentences == 0 or self._calls_cublas(tokens, chunk.attention.fused):
            return None
        # Two blocks in a row are more than one full, a long sentence fills its tiles but for the last.
        capacity = Capacity(
            tokens=tokens,
            sentences=tokens // 2,
            tiles=3 * tokens // tile_tokens + 2,
            blocks=2 * tokens // BLOCK_TOKENS + 2 if needed.blocks else 0,
        )
        return capacity if capacity.holds(needed) else None

    def _calls_cublas(self, rows: int, fused: bool) -> bool:
        """Whether a stage does, which a graph cannot hold (see `captured`)."""
        hidden = self._spec.hidden_size
        widths = {"attention_output": hidden, "up": self._spec.intermediate_size, "down": hidden}
        if not fused:
            widths["qkv"] = 3 * hidden
        return any(self._tuning.choice(stage, self._dtype, rows, width) == "cublas" for stage, width in widths.items())

    def _capture(
        self, chunk: Chunk, capacity: Capacity, pooling: PoolingSpec | None, packed: PackedConvolutions | None
    ) -> _Graph | _Mark:
        if self._graph_workspace is None:
            self._graph_workspace = _Workspace(self._graph_tokens[-1], self._spec, self._dtype, self._device)
        workspace = self._graph_workspace
        buffer = write(chunk, capacity, pin=False).to(self._device)
        batch = view(buffer, capacity, chunk.attention)
        if pooling is None:
            result = torch.empty(1, capacity.tokens, self._spec.hidden_size, dtype=self._dtype, device=self._device)
        else:
            width = pooling.output_size(self._spec.hidden_size)
            result = torch.empty(capacity.sentences, width, dtype=torch.float32, device=self._device)

        def compute() -> None:
            if pooling is None:
                self._encode(batch, workspace, result)
            else:
                self._pool(self._encode(batch, workspace), batch, pooling, packed, result)

        compute()  # compiles and loads the kernels, which a capture must not
        try:
            replay = captured(compute, self._device)
        except RuntimeError as error:
            logger.warning("batches of %d tokens run without a CUDA graph: %s", capacity.tokens, error)
            return _Mark.REFUSED
        return _Graph(capacity, buffer, result[0] if pooling is None else result, replay, pooling, packed)

    def _replay(self, graph: _Graph, chunk: Chunk) -> None:
        graph.buffer.copy_(write(chunk, graph.capacity, pin=self._device.type == "cuda"), non_blocking=True)
        graph.replay()

    # What is computed

    def _encode(self, batch: DeviceBatch, workspace: _Workspace, states: Tensor | None = None) -> Tensor:
        """The last layer's (tokens, H), a part of the workspace. `states` gets as many of the last states as it has
        room for: (n, tokens, H)."""
        spec, rows = self._spec, batch.positions.numel()
        x = workspace.x[:rows]
        num_states = len(spec.layer_schedule) + 1
        first_kept = num_states if states is None else num_states - len(states)

        def keep(index: int) -> None:
            if states is not None and index >= first_kept:
                states[index - first_kept] = x

        self._embed(batch, workspace, x)
        keep(0)
        for index, layer in enumerate(spec.layer_schedule):
            self._layer(self._layers[layer], x, batch, workspace)
            keep(index + 1)
        return x

    def _embed(self, batch: DeviceBatch, workspace: _Workspace, x: Tensor) -> None:
        norm, mapping, width = self._embedding_norm, self._mapping, self._spec.embedding_size
        mapped_inside = mapping is not None and width <= MAX_MAPPED_WIDTH
        target = x if mapping is None or mapped_inside else workspace.wide(len(x), width)
        embed_into(
            batch.ids if batch.vectors is None else None,
            batch.positions,
            batch.types,
            batch.vectors,
            self._word_table,
            self._position_table,
            self._type_table,
            norm.weight,
            norm.bias,
            mapping.weight if mapping is not None and mapped_inside else None,
            mapping.bias if mapping is not None and mapped_inside else None,
            self._spec.layer_norm_eps,
            target,
            self._tuning,
        )
        if mapping is not None and not mapped_inside:
            linear_into(target, mapping.weight, mapping.bias, None, "linear", x, self._tuning)

    def _layer(self, layer: _Layer, x: Tensor, batch: DeviceBatch, workspace: _Workspace) -> None:
        """One layer, `x` in place."""
        rows, tuning = len(x), self._tuning
        y, context = workspace.y[:rows], workspace.context[:rows]
        self._attend(layer.qkv, x, batch, workspace, context)
        self._project("attention_output", context, layer.attention_output, x, layer.attention_norm, y)
        middle = workspace.wide(rows, self._spec.intermediate_size)
        if tuning.choice("up", self._dtype, rows, self._spec.intermediate_size) == "cublas":
            torch.mm(y, layer.up.weight.t(), out=middle)
            bias_activation_in_place(middle, layer.up.bias, self._spec.activation, tuning)
        else:
            linear_into(y, layer.up.weight, layer.up.bias, None, self._spec.activation, middle, tuning)
        self._project("down", middle, layer.down, y, layer.output_norm, x)

    def _attend(self, qkv: Linear, x: Tensor, batch: DeviceBatch, workspace: _Workspace, context: Tensor) -> None:
        spec, tuning, rows, tile_tokens = self._spec, self._tuning, len(x), batch.attention.tile_tokens
        if batch.attention.fused:
            qkv_attention_into(
                x, qkv.weight, qkv.bias, batch.segments, batch.tiles, spec.num_heads, tile_tokens, context, tuning
            )
            return
        projected = workspace.wide(rows, 3 * spec.hidden_size)
        if tuning.choice("qkv", self._dtype, rows, 3 * spec.hidden_size) == "cublas":
            torch.addmm(qkv.bias, x, qkv.weight.t(), out=projected)
        else:
            linear_into(x, qkv.weight, qkv.bias, None, "linear", projected, tuning)
        attention_into(projected, batch.segments, batch.tiles, spec.num_heads, tile_tokens, context, tuning)

    def _project(self, stage: str, x: Tensor, linear: Linear, residual: Tensor, norm: LayerNorm, out: Tensor) -> None:
        """``out = layer_norm(x @ weight.T + bias + residual)``; `out` is neither `x` nor `residual`."""
        tuning, eps = self._tuning, self._spec.layer_norm_eps
        use = tuning.choice(stage, self._dtype, len(x), len(linear.weight))
        if use == "fused":
            project_norm_into(x, linear.weight, linear.bias, residual, norm.weight, norm.bias, eps, out, tuning)
        elif use == "triton":
            linear_into(x, linear.weight, linear.bias, residual, "linear", out, tuning)
            residual_norm_into(out, None, None, norm.weight, norm.bias, eps, out, tuning)
        else:
            torch.mm(x, linear.weight.t(), out=out)
            residual_norm_into(out, linear.bias, residual, norm.weight, norm.bias, eps, out, tuning)

    def _pool(
        self, x: Tensor, batch: DeviceBatch, pooling: PoolingSpec, packed: PackedConvolutions | None, out: Tensor
    ) -> None:
        tuning, skip = self._tuning, pooling.skip_tokens
        cu_seqlens = batch.cu_seqlens
        normalize_inside = pooling.normalize and packed is None and len(pooling.modes) == 1
        width = out.shape[1] // len(pooling.modes)
        for index, mode in enumerate(pooling.modes):
            columns = out[:, index * width : (index + 1) * width]
            if packed is None:
                pool_into(x, cu_seqlens, mode, skip, normalize_inside, columns, tuning)
            else:
                conv_pool_into(
                    x, packed.weight, packed.bias, packed.table, batch.segments, cu_seqlens, batch.blocks,
                    mode, skip, columns, tuning,
                )  # fmt: skip
        if pooling.normalize and not normalize_inside:
            normalize_in_place(out)

    # Weights

    def _packed(self, pooling: PoolingSpec) -> PackedConvolutions:
        if _changes_unnoticed(pooling):
            return pack_convolutions(pooling.convolutions, self._dtype, self._device)
        key = pooling_fingerprint(pooling)
        if key not in self._convolutions:
            packed = pack_convolutions(pooling.convolutions, self._dtype, self._device)
            self._convolutions[key] = (pooling, packed)  # the spec keeps the addresses in its fingerprint
            if len(self._convolutions) > _MAX_PACKED_CONVOLUTIONS:
                self._order.finish()
                self._convolutions.popitem(last=False)
        self._convolutions.move_to_end(key)
        return self._convolutions[key][1]

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to(self._dtype).contiguous()

    def _own_pair(self, parameters: Linear | LayerNorm) -> tuple[Tensor, Tensor]:
        return self._own(parameters.weight), self._own(parameters.bias)


def _changes_unnoticed(pooling: PoolingSpec) -> bool:
    """Whether its weights count no versions, as those made in inference mode: its fingerprint never comes again."""
    return any(t.is_inference() for c in pooling.convolutions for t in (c.weight, c.bias) if t is not None)
