// Rows of floats -> operands of the matrix products. Included by the kernel files inside their own namespace.

typedef uint16_t HalfVec __attribute__((vector_size(FASTSAL_LANES * 2), aligned(2), may_alias));

FASTSAL_INLINE void store_bfloat16_as_float(float* to, const uint16_t* from) {
  const IntVec bits = __builtin_convertvector(*reinterpret_cast<const HalfVec*>(from), IntVec) << 16;
  store(to, reinterpret_cast<Vec>(bits));
}

// Rounds to the nearest, ties to even; |x| < 2^22.
FASTSAL_INLINE Vec round_to_even(Vec x) {
  const Vec shifter = splat(12582912.f);  // 1.5 * 2^23
  return (x + shifter) - shifter;
}

#if defined(FASTSAL_BF16_DOT) || defined(FASTSAL_MATRIX_TILES)
// Behind the columns zeros, up to the end of a tile.
static void convert_to_bfloat16(const ConvertTask& task) {
  for (int r = 0; r < task.rows; ++r) {
    const float* input = task.input + r * task.input_stride;
    char* output = static_cast<char*>(task.output) + r * task.row_bytes;
    for (int c = 0; c < round_up(task.columns, 2 * kLanes); c += kLanes) {
      const Vec value = c < task.columns ? load_columns(input + c, task.columns - c) : Vec{};
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(output + 2 * c), (__m256i)_mm512_cvtneps_pbh((__m512)value));
    }
  }
}
#endif

// A chunk of a row on its way to 8 bits. It gets an offset, and each of its groups a scale s whose whole multiple the
// offset is, -offset = s * z: entries are q = round(x / s) + z in [0, 255], and 0 is exact. Stored are bytes q, or
// where there is no instruction for them the integers q - z as floats.
class Chunk {
 public:
  // Loads `count` values and finds their extent, which includes 0.
  void read(const float* input, const float* inverse_smoothing, int count, int group) {
    Vec low{}, total{};
    count_ = count;
    group_ = group;
    for (int g = 0; g * group < count; ++g) {
      Vec high{};
      for (int c = g * group; c < end_of(g); c += kLanes) {
        Vec value = load_columns(input + c, count - c);
        if (inverse_smoothing) value *= load(inverse_smoothing + c);  // padded to whole vectors
        store(values_ + c, value);
        low = min(value, low);
        high = max(value, high);
        total += value;
      }
      groups_[g].highest = max_lane(high);
    }
    lowest_ = -max_lane(-low);
    check_ = sum(total) * 0.f;
  }

  // The offset, then the groups' scales. The offset is a whole multiple of the widest group's scale, for which 254
  // steps leave room; narrower groups have more steps below zero. A thousandth of a step does not count: rounding
  // takes it in, and a quotient that is an integer but for its last bit is that integer.
  void choose_scales(float* scales, int64_t stride) {
    float highest = 0.f;
    for (int g = 0; g * group_ < count_; ++g) highest = groups_[g].highest > highest ? groups_[g].highest : highest;
    const float range = highest - lowest_;
    const float widest = range > 1e-30f ? range * (1.f / 254.f) : 1.f;
    const float fewest = __builtin_ceilf(-lowest_ / widest - 1e-3f);
    const float offset = -fewest * widest;
    scales[0] = offset;
    for (int g = 0; g * group_ < count_; ++g) {
      Group& group = groups_[g];
      const float needed = (group.highest - offset) * (1.f / 255.f);
      float scale = needed > 1e-30f ? needed : 1.f;
      group.zero = 0.f;
      if (offset < 0.f) {
        group.zero = __builtin_floorf(-offset / scale + 1e-3f);
        scale = -offset / group.zero;
      }
      group.inverse_scale = 1.f / scale;
      scales[(1 + g) * stride] = scale + check_;  // NaN and infinity go on into the result
    }
  }

  // `output` is the row's; the chunk begins at column `begin`.
  void write(char* output, int begin) const {
    for (int g = 0; g * group_ < count_; ++g) {
      const Group& group = groups_[g];
      for (int c = g * group_; c < end_of(g); c += kLanes) {
        const Vec scaled = load(values_ + c) * group.inverse_scale;
#if defined(FASTSAL_INT8_DOT)
        store_bytes(output + begin + c, scaled, __builtin_convertvector(splat(group.zero), IntVec));
#else
        const Vec shifted = min(max(round_to_even(scaled) + group.zero, splat(0.f)), splat(255.f));
        store(reinterpret_cast<float*>(output) + begin + c, shifted - group.zero);
#endif
      }
    }
  }

 private:
  struct Group {
    float highest, inverse_scale, zero;
  };

  int end_of(int g) const { return (g + 1) * group_ < count_ ? (g + 1) * group_ : count_; }

  int count_, group_;
  float values_[kSumChunk];
  float lowest_;
  float check_;  // 0, or NaN where a value is not finite
  Group groups_[kSumChunk / kSmallestGroup];
};

// Several rows side by side, so that none waits for its scales' divisions.
static void convert_to_int8(const ConvertTask& task) {
  constexpr int kTogether = 4;
  const PackedLinear& weights = *task.weights;
  Chunk chunks[kTogether];
  for (int first = 0; first < task.rows; first += kTogether) {
    const int rows = task.rows - first < kTogether ? task.rows - first : kTogether;
    const float* input = task.input + first * task.input_stride;
    char* output = static_cast<char*>(task.output) + first * task.row_bytes;
    float* scales = task.scales + first;
    for (int begin = 0; begin < task.columns; begin += kSumChunk) {
      const int count = task.columns - begin < kSumChunk ? task.columns - begin : kSumChunk;
      const float* inverse_smoothing = weights.inverse_smoothing ? weights.inverse_smoothing + begin : nullptr;
      for (int r = 0; r < rows; ++r)
        chunks[r].read(input + r * task.input_stride + begin, inverse_smoothing, count, weights.group);
      for (int r = 0; r < rows; ++r) chunks[r].choose_scales(scales + r, task.scales_stride);
      for (int r = 0; r < rows; ++r) chunks[r].write(output + r * task.row_bytes, begin);
      scales += chunk_scales(weights.group) * task.scales_stride;
    }
  }
}

static void convert(const ConvertTask& task) {
#if defined(FASTSAL_BF16_DOT) || defined(FASTSAL_MATRIX_TILES)
  if (task.weights->precision == Precision::bfloat16) return convert_to_bfloat16(task);
#endif
  if (task.weights->precision == Precision::int8) return convert_to_int8(task);
}
