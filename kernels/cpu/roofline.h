// Measurements for benchmarks/test_cpu_roofline.py: what the processor can do, what the matrix products reach, and
// where a forward pass spends its time.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace fastsal {

// Operations per second of one core with all operands in registers.
double peak_rate(const Kernels& kernels, Precision precision);

// Operations per second of one core for (rows x in_features) times (in_features x out_features).
double product_rate(const Kernels& kernels, Precision precision, int rows, int in_features, int out_features);

// The parts of a forward pass.
enum Part : int { kEmbeddings, kProducts, kConversions, kAttention, kNorms, kPooling, kParts };

// Seconds spent in each part by one thread.
struct Profile {
  double seconds[kParts] = {};
};

// Adds the time of its life to a part; does nothing without a profile.
class PartTimer {
 public:
  PartTimer(Profile* profile, Part part) : profile_(profile), part_(part), start_(profile ? now() : 0) {}
  ~PartTimer() {
    if (profile_) profile_->seconds[part_] += now() - start_;
  }
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;

 private:
  static double now();

  Profile* const profile_;
  const Part part_;
  const double start_;
};

}  // namespace fastsal
