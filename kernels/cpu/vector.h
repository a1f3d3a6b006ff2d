// A vector of FASTSAL_LANES floats in the compiler's own vector types: one source for every instruction set.
// Included by the kernel files inside their own namespace.

typedef float Vec __attribute__((vector_size(FASTSAL_LANES * 4), may_alias));
typedef float UnalignedVec __attribute__((vector_size(FASTSAL_LANES * 4), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(FASTSAL_LANES * 4), may_alias));

constexpr int kLanes = FASTSAL_LANES;

#define FASTSAL_INLINE static inline __attribute__((always_inline))

FASTSAL_INLINE Vec load(const float* from) { return *reinterpret_cast<const UnalignedVec*>(from); }
FASTSAL_INLINE void store(float* to, Vec value) { *reinterpret_cast<UnalignedVec*>(to) = value; }
FASTSAL_INLINE Vec splat(float value) { return value - Vec{}; }  // x - 0 keeps -0 and NaN

// a * b + c, in one rounding where the instruction set has it. The only place where that happens: the files are
// compiled with -ffp-contract=off, since a compiler that contracts does so here and not there, and a row's bits would
// depend on the tile that it falls into.
FASTSAL_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
#if FASTSAL_LANES == 16
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif FASTSAL_LANES == 8
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
FASTSAL_INLINE Vec multiply_add(Vec a, float b, Vec c) { return multiply_add(a, splat(b), c); }
FASTSAL_INLINE Vec multiply_add(Vec a, Vec b, float c) { return multiply_add(a, b, splat(c)); }

// 0, 1, 2, ...
FASTSAL_INLINE IntVec lane_numbers() {
  IntVec lanes{};
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

FASTSAL_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
FASTSAL_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }

// The first `count` lanes, 0 <= count <= kLanes; the other lanes are zeros, or stay unwritten.
#if FASTSAL_LANES == 16
FASTSAL_INLINE Vec load_partial(const float* from, int count) {
  return (Vec)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
}
FASTSAL_INLINE void store_partial(float* to, Vec value, int count) {
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)value);
}
#else
FASTSAL_INLINE Vec load_partial(const float* from, int count) {
  float lanes[kLanes] = {};
  for (int i = 0; i < kLanes; ++i)
    if (i < count) lanes[i] = from[i];
  return load(lanes);
}
FASTSAL_INLINE void store_partial(float* to, Vec value, int count) {
  float lanes[kLanes];
  store(lanes, value);
  for (int i = 0; i < kLanes; ++i)
    if (i < count) to[i] = lanes[i];
}
#endif

// A vector, or what is left of one: `count` columns from here on.
FASTSAL_INLINE Vec load_columns(const float* from, int count) {
  return count >= kLanes ? load(from) : load_partial(from, count);
}
FASTSAL_INLINE void store_columns(float* to, Vec value, int count) {
  if (count >= kLanes)
    store(to, value);
  else
    store_partial(to, value, count);
}

// Sum and maximum of the lanes; the sum in a fixed order: halves are added until one lane is left.
#if FASTSAL_LANES >= 8
FASTSAL_INLINE float sum(Vec value) {
  float lanes[kLanes];
  store(lanes, value);
  __m256 eight = _mm256_loadu_ps(lanes);
  if (kLanes == 16) eight += _mm256_loadu_ps(lanes + kLanes - 8);
  __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
  four += _mm_movehl_ps(four, four);
  return _mm_cvtss_f32(four) + _mm_cvtss_f32(_mm_shuffle_ps(four, four, 1));
}
FASTSAL_INLINE float max_lane(Vec value) {
  float lanes[kLanes];
  store(lanes, value);
  const __m256 eight = _mm256_max_ps(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + kLanes - 8));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}
#else
FASTSAL_INLINE float sum(Vec value) { return (value[0] + value[2]) + (value[1] + value[3]); }
FASTSAL_INLINE float max_lane(Vec value) {
  float best = value[0];
  for (int i = 1; i < kLanes; ++i) best = value[i] > best ? value[i] : best;
  return best;
}
#endif

constexpr int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }
