#include "blocks.h"

#include <algorithm>

namespace fastsal {

std::vector<Block> cut_into_blocks(const int64_t* cu_seqlens, int64_t num_sentences, int64_t target) {
  std::vector<Block> blocks;
  Block block{0, 0, 0, 0};
  for (int64_t s = 0; s < num_sentences; ++s) {
    const int64_t tokens = cu_seqlens[s + 1] - cu_seqlens[s];
    if (block.rows > 0 && block.rows + tokens - tokens / 2 > target) {
      blocks.push_back(block);
      block = {s, s, cu_seqlens[s], 0};
    }
    block.last_sentence = s + 1;
    block.rows += static_cast<int>(tokens);
  }
  if (block.last_sentence > block.first_sentence) blocks.push_back(block);
  return blocks;
}

double imbalance(const std::vector<Block>& blocks, int threads) {
  std::vector<int64_t> load(static_cast<size_t>(threads), 0);
  int64_t total = 0;
  for (const Block& block : blocks) {
    *std::min_element(load.begin(), load.end()) += block.rows;
    total += block.rows;
  }
  if (total == 0) return 1;
  return static_cast<double>(*std::max_element(load.begin(), load.end())) * threads / static_cast<double>(total);
}

}  // namespace fastsal
