"""fastsal's CPU kernels (kernels/cpu/module.cpp). Arrays are contiguous CPU tensors or anything with DLPack."""

from enum import Enum
from typing import Any, TypeAlias

Array: TypeAlias = Any
WeightAndBias: TypeAlias = tuple[Array, Array]

class InstructionSet:
    @property
    def name(self) -> str: ...
    @property
    def runs_here(self) -> bool: ...
    @property
    def refused(self) -> str: ...
    @property
    def model(self) -> bool: ...
    @property
    def native(self) -> list[str]: ...

def instruction_sets() -> list[InstructionSet]: ...
def selected_instruction_set() -> str: ...
def activate(values: Array, activation: str) -> None: ...
def linear(input: Array, weight: Array, bias: Array | None, output: Array, activation: str, threads: int) -> None: ...
def layer_norm(rows: Array, weight: Array, bias: Array, eps: float) -> None: ...
def normalize(rows: Array) -> None: ...
def content_sample(addresses: Array, sizes: Array) -> int: ...
def peak_rate(precision: str) -> float: ...
def product_rate(precision: str, rows: int, in_features: int, out_features: int) -> float: ...

class Scheme(Enum):
    by_cost = ...
    block_per_thread = ...
    shared_blocks = ...

class Layer:
    def __init__(
        self,
        *,
        query: WeightAndBias,
        key: WeightAndBias,
        value: WeightAndBias,
        attention_output: WeightAndBias,
        attention_norm: WeightAndBias,
        up: WeightAndBias,
        down: WeightAndBias,
        output_norm: WeightAndBias,
        qkv_smoothing: Array | None,
        up_smoothing: Array | None,
    ) -> None: ...

class Pooling:
    @property
    def output_size(self) -> int: ...

class Encoder:
    def __init__(
        self,
        *,
        num_heads: int,
        head_size: int,
        intermediate_size: int,
        activation: str,
        layer_norm_eps: float,
        precision: str,
        layer_schedule: list[int],
        word_embeddings: Array,
        position_embeddings: Array,
        type_embeddings: Array,
        embedding_norm: WeightAndBias,
        mapping: WeightAndBias | None,
        layers: list[Layer],
        threads: int,
    ) -> None: ...
    @property
    def instruction_set(self) -> str: ...
    @property
    def packed_bytes(self) -> int: ...
    def pooling(
        self,
        *,
        modes: list[str],
        convolutions: list[tuple[Array, Array | None, int]],
        skip: int,
        normalize: bool,
    ) -> Pooling: ...
    def hidden_states(
        self,
        *,
        input_ids: Array | None,
        inputs_embeds: Array | None,
        position_ids: Array,
        token_type_ids: Array,
        cu_seqlens: Array,
        output: Array,
        threads: int,
    ) -> None: ...
    def sentence_embeddings(
        self,
        *,
        pooling: Pooling,
        input_ids: Array | None,
        inputs_embeds: Array | None,
        position_ids: Array,
        token_type_ids: Array,
        cu_seqlens: Array,
        output: Array,
        threads: int,
        scheme: Scheme = ...,
    ) -> None: ...
    def profile(
        self, *, pooling: Pooling, input_ids: Array, position_ids: Array, token_type_ids: Array, cu_seqlens: Array
    ) -> dict[str, float]: ...
