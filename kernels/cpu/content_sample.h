// Whether memory was written to by someone who left no other trace: another process, a collective, a NumPy view.
#pragma once

#include <cstdint>

namespace fastsal {

// Piece of memory: where it starts and how many bytes it has.
struct Piece {
  const unsigned char* start;
  int64_t bytes;
};

// A number made from a few words of every piece, the first and the last among them, spread evenly; a piece of at most
// as many words counts whole. Who writes all of a piece anew changes it; who writes a single number may not.
uint64_t content_sample(const Piece* pieces, int64_t count);

}  // namespace fastsal
