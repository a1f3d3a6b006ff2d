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

#if defined(FASTSAL_BF16_DOT)
static void convert_to_bfloat16(const ConvertTask& task) {
  for (int r = 0; r < task.rows; ++r) {
    const float* input = task.input + r * task.input_stride;
    char* output = static_cast<char*>(task.output) + r * task.row_bytes;
    for (int c = 0; c < task.columns; c += kLanes) {
      const Vec value = load_columns(input + c, task.columns - c);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(output + 2 * c), (__m256i)_mm512_cvtneps_pbh((__m512)value));
    }
  }
}
#endif

#if defined(FASTSAL_INT8_DOT)
// Rounds to the nearest, ties to even, and adds; the result is in [0, 256] and saturates.
FASTSAL_INLINE void store_bytes(char* to, Vec x, IntVec zero) {
  const __m512i rounded = _mm512_maskz_cvtps_epi32(0xffff, (__m512)x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm512_maskz_cvtusepi32_epi8(0xffff, _mm512_add_epi32(rounded, (__m512i)zero)));
}
#endif

// Every group of a row gets a scale s and a zero point z: q = round(x / s) + z in [0, 255], and 0 is exact. Stored are
// bytes q, or where there is no instruction for them the integers q - z as floats.
static void convert_to_int8(const ConvertTask& task) {
  for (int r = 0; r < task.rows; ++r) {
    const float* input = task.input + r * task.input_stride;
    char* output = static_cast<char*>(task.output) + r * task.row_bytes;
    float* scales = task.scales + r * task.scales_stride;
    for (int begin = 0; begin < task.columns; begin += kGroup, scales += 2) {
      const int count = task.columns - begin < kGroup ? task.columns - begin : kGroup;
      float values[kGroup];
      Vec low{}, high{}, check{};
      for (int c = 0; c < count; c += kLanes) {
        Vec value = load_columns(input + begin + c, count - c);
        if (task.inverse_smoothing) value *= load(task.inverse_smoothing + begin + c);  // padded to whole vectors
        store(values + c, value);
        low = min(value, low);
        high = max(value, high);
        check = multiply_add(value, 0.f, check);
      }
      const float lowest = -max_lane(-low), highest = max_lane(high);
      const float range = highest - lowest;
      const float scale = range > 1e-30f ? range * (1.f / 255.f) : 1.f;
      const float inverse = 1.f / scale;
      const Vec zero = round_to_even(splat(-lowest * inverse));
      scales[0] = scale + sum(check);  // NaN and infinity go on into the result
      scales[1] = scales[0] * zero[0];
      for (int c = 0; c < count; c += kLanes) {
        const Vec scaled = load(values + c) * inverse;
#if defined(FASTSAL_INT8_DOT)
        store_bytes(output + begin + c, scaled, __builtin_convertvector(zero, IntVec));
#else
        const Vec shifted = min(max(round_to_even(scaled) + zero, splat(0.f)), splat(255.f));
        store(reinterpret_cast<float*>(output) + begin + c, shifted - zero);
#endif
      }
    }
  }
}

static void convert(const ConvertTask& task) {
#if defined(FASTSAL_BF16_DOT)
  if (task.precision == Precision::bfloat16) return convert_to_bfloat16(task);
#endif
  if (task.precision == Precision::int8) return convert_to_int8(task);
}
