#include "gelu_table.h"

#include <cmath>
#include <vector>

namespace fastsal {
namespace {

// From here on 1/2 - t is less than a quarter ulp of 1/2.
constexpr double kErfEnd = 5.6, kTanhEnd = 5.3;

double erf_part(double a) { return std::erf(a * std::sqrt(0.5)) / 2; }

double tanh_part(double a) { return std::tanh(std::sqrt(2 / std::acos(-1.0)) * (a + 0.044715 * a * a * a)) / 2; }

// The polynomial through the function's values at the Chebyshev points of [centre - half, centre + half], in powers of
// the distance from the centre: Newton's divided differences, multiplied out.
template <int kDegree>
std::vector<double> interpolate(double (*function)(double), double centre, double half) {
  double points[kDegree + 1], differences[kDegree + 1];
  for (int i = 0; i <= kDegree; ++i) {
    points[i] = half * std::cos(std::acos(-1.0) * (i + 0.5) / (kDegree + 1));
    differences[i] = function(centre + points[i]);
  }
  for (int order = 1; order <= kDegree; ++order)
    for (int i = kDegree; i >= order; --i)
      differences[i] = (differences[i] - differences[i - 1]) / (points[i] - points[i - order]);
  std::vector<double> polynomial(kDegree + 1, 0.0);
  for (int order = kDegree; order >= 0; --order) {  // polynomial = polynomial * (d - points[order]) + difference
    for (int power = kDegree; power > 0; --power)
      polynomial[power] = polynomial[power - 1] - points[order] * polynomial[power];
    polynomial[0] = differences[order] - points[order] * polynomial[0];
  }
  return polynomial;
}

template <int kPieces, int kDegree>
GeluTable<kPieces, kDegree> table_of(double (*function)(double), double end) {
  GeluTable<kPieces, kDegree> table{};
  table.spacing = static_cast<float>(end / (kPieces - 1.5));
  table.inverse_spacing = 1.f / table.spacing;
  table.limit = (kPieces - 1) * table.spacing;
  for (int piece = 0; piece < kPieces - 1; ++piece) {
    const auto polynomial =
        interpolate<kDegree>(function, piece * static_cast<double>(table.spacing), table.spacing / 2.0);
    for (int power = 0; power <= kDegree; ++power)
      table.coefficients[power][piece] = static_cast<float>(polynomial[static_cast<size_t>(power)]);
  }
  table.coefficients[0][kPieces - 1] = 0.5f;
  return table;
}

}  // namespace

const GeluTable16 kErfGelu16 = table_of<16, 5>(erf_part, kErfEnd);
const GeluTable16 kTanhGelu16 = table_of<16, 5>(tanh_part, kTanhEnd);
const GeluTable8 kErfGelu8 = table_of<8, 7>(erf_part, kErfEnd);
const GeluTable8 kTanhGelu8 = table_of<8, 7>(tanh_part, kTanhEnd);

}  // namespace fastsal
