#pragma once

namespace fastsal {

// GELU is x / 2 + |x| t(|x|), where t(a) = erf(a / sqrt(2)) / 2, or tanh(sqrt(2 / pi) (a + 0.044715 a^3)) / 2 in its
// other form, rises from 0 to 1/2. Here t is a polynomial on each of as many pieces as a vector has lanes, so that a
// permutation of a register looks a coefficient up. Piece i is centred at i * spacing; the last one is the constant
// 1/2.
template <int kPieces, int kDegree>
struct GeluTable {
  alignas(64) float coefficients[kDegree + 1][kPieces];  // of (a - centre)^power
  float spacing, inverse_spacing;
  float limit;  // the last centre; larger arguments count as this
};

typedef GeluTable<16, 5> GeluTable16;
typedef GeluTable<8, 7> GeluTable8;

extern const GeluTable16 kErfGelu16, kTanhGelu16;
extern const GeluTable8 kErfGelu8, kTanhGelu8;

}  // namespace fastsal
