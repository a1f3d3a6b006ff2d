// Token blocks: consecutive sentences whose tokens are computed together.
#pragma once

#include <cstdint>
#include <vector>

namespace fastsal {

struct Block {
  int64_t first_sentence, last_sentence;
  int64_t first_row;
  int rows;
};

// Whole sentences, about `target` tokens a block; up to about twice as many, or one longer sentence.
std::vector<Block> cut_into_blocks(const int64_t* cu_seqlens, int64_t num_sentences, int64_t target);

// The largest load of a thread over the mean load, when the next free thread takes the next block.
double imbalance(const std::vector<Block>& blocks, int threads);

}  // namespace fastsal
