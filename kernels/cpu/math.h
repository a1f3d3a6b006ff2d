// exp, tanh, erf and the activations, a vector at a time. Included by the kernel files inside their own namespace.
// Error bounds (maximum over all floats against float64) are tested in tests/kernels/test_cpu_activations.py.

FASTSAL_INLINE Vec select(IntVec condition, Vec yes, Vec no) { return condition ? yes : no; }

// exp(x) = 2^n exp(r), |r| <= ln(2)/2; exactly 0 below -87.3, infinity above 88.7.
FASTSAL_INLINE Vec exp(Vec x) {
  const Vec clamped = max(splat(-87.34f), min(splat(88.8f), x));  // NaN stays NaN
  const Vec shifter = splat(12582912.f);                          // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = multiply_add(clamped, 1.44269504f, shifter) - shifter;
  const Vec r = multiply_add(n, -1.42860677e-6f, multiply_add(n, -0.693145752f, clamped));
  Vec p = splat(1.98412698e-4f);
  p = multiply_add(p, r, 1.38888889e-3f);
  p = multiply_add(p, r, 8.33333333e-3f);
  p = multiply_add(p, r, 4.16666667e-2f);
  p = multiply_add(p, r, 1.66666667e-1f);
  p = multiply_add(p, r, 0.5f);
  p = multiply_add(p * r, r, r);
  p = p + 1.f;
#if FASTSAL_LANES == 16
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.33f), _CMP_NLT_UQ);
  return (Vec)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)n);
#else
  // 2^n in two halves, so that n = 128 and results near the ends stay exact.
  const IntVec exponent = __builtin_convertvector(n, IntVec);
  const IntVec half = exponent >> 1;
  const Vec first = reinterpret_cast<Vec>((half + 127) << 23);
  const Vec second = reinterpret_cast<Vec>((exponent - half + 127) << 23);
  return select(x < -87.33f, Vec{}, p * first * second);
#endif
}

FASTSAL_INLINE Vec sigmoid(Vec x) { return 1.f / (1.f + exp(-x)); }

// |x| < 1: an odd polynomial, where 1 - 2 / (exp(2x) + 1) would lose digits.
FASTSAL_INLINE Vec tanh(Vec x) {
  const Vec square = x * x;
  Vec p = splat(1.4487139e-4f);
  p = multiply_add(p, square, -9.30796534e-4f);
  p = multiply_add(p, square, 3.21687114e-3f);
  p = multiply_add(p, square, -8.70474206e-3f);
  p = multiply_add(p, square, 2.1831975e-2f);
  p = multiply_add(p, square, -5.39638219e-2f);
  p = multiply_add(p, square, 1.33333132e-1f);
  p = multiply_add(p, square, -3.33333332e-1f);
  const Vec near = multiply_add(p * square, x, x);
  const Vec far = 1.f - 2.f / (exp(x + x) + 1.f);
  return select(square < 1.f, near, far);
}

// |x| < 0.92: x times a polynomial in x^2. Beyond: 1 - exp(-q(|x|)), q fitted to -log(erfc) on [0.9, 4]; 1 from 4 on.
FASTSAL_INLINE Vec erf(Vec x) {
  const Vec square = x * x;
  Vec p = splat(8.39728797e-5f);
  p = multiply_add(p, square, -8.14968758e-4f);
  p = multiply_add(p, square, 5.20170581e-3f);
  p = multiply_add(p, square, -2.68596982e-2f);
  p = multiply_add(p, square, 1.12837015e-1f);
  p = multiply_add(p, square, -3.76126342e-1f);
  p = multiply_add(p, square, 1.12837917f);
  const Vec near = p * x;
  const Vec size = select(x < 0.f, -x, x);
  const Vec a = min(size, splat(4.f));
  Vec q = splat(2.09095554e-5f);
  q = multiply_add(q, a, -4.32303003e-4f);
  q = multiply_add(q, a, 4.16052698e-3f);
  q = multiply_add(q, a, -2.50914968e-2f);
  q = multiply_add(q, a, 1.08236619e-1f);
  q = multiply_add(q, a, 6.33386647e-1f);
  q = multiply_add(q, a, 1.12949516f);
  q = multiply_add(q, a, -1.70552027e-4f);
  const Vec tail = 1.f - exp(-q);
  const Vec far = select(x < 0.f, -tail, tail);
  return select(size < 0.92f, near, select(x == x, far, x));
}

#if FASTSAL_LANES == 16
FASTSAL_INLINE Vec look_up(const float* table, IntVec index) {
  // All lanes kept: the form without a mask makes gcc 12 warn inside its own header.
  return (Vec)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)index, (__m512)load(table));
}
typedef GeluTable16 Gelu;
static const Gelu &kErfGelu = kErfGelu16, &kTanhGelu = kTanhGelu16;
#elif FASTSAL_LANES == 8
FASTSAL_INLINE Vec look_up(const float* table, IntVec index) {
  return (Vec)_mm256_permutevar8x32_ps((__m256)load(table), (__m256i)index);
}
typedef GeluTable8 Gelu;
static const Gelu &kErfGelu = kErfGelu8, &kTanhGelu = kTanhGelu8;
#endif

#if FASTSAL_LANES >= 8
FASTSAL_INLINE Vec gelu_by_table(Vec x, const Gelu& table) {
  const Vec size = reinterpret_cast<Vec>(reinterpret_cast<IntVec>(x) & 0x7fffffff);
  const Vec a = min(splat(table.limit), size);  // NaN stays NaN
  const Vec shifter = splat(12582912.f);        // 1.5 * 2^23: adding it rounds to an integer, in the sum's last bits
  const Vec shifted = multiply_add(a, table.inverse_spacing, shifter);
  const IntVec piece = reinterpret_cast<IntVec>(shifted);
  const Vec distance = multiply_add(shifted - shifter, -table.spacing, a);
  constexpr int kDegree = sizeof(table.coefficients) / sizeof(table.coefficients[0]) - 1;
  Vec t = look_up(table.coefficients[kDegree], piece);
#pragma GCC unroll 8
  for (int power = kDegree - 1; power >= 0; --power)
    t = multiply_add(t, distance, look_up(table.coefficients[power], piece));
  return multiply_add(size, t, x * 0.5f);
}
FASTSAL_INLINE Vec gelu(Vec x) { return gelu_by_table(x, kErfGelu); }
FASTSAL_INLINE Vec gelu_tanh(Vec x) { return gelu_by_table(x, kTanhGelu); }
#else
FASTSAL_INLINE Vec gelu(Vec x) { return (x * 0.5f) * (1.f + erf(x * 0.707106781f)); }
// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u))
FASTSAL_INLINE Vec gelu_tanh(Vec x) {
  return x / (1.f + exp(x * multiply_add(x * x, splat(-0.0713548163f), -1.59576912f)));
}
#endif

template <Activation kKind>
FASTSAL_INLINE Vec activation(Vec x) {
  const Vec zero{};
  switch (kKind) {
    case Activation::linear:
      return x;
    case Activation::relu:
      return select(x < 0.f, zero, x);
    case Activation::relu2: {
      const Vec positive = select(x < 0.f, zero, x);
      return positive * positive;
    }
    case Activation::relu6:
      return select(x < 0.f, zero, select(x > 6.f, splat(6.f), x));
    case Activation::leaky_relu:
      return select(x < 0.f, x * 0.01f, x);
    case Activation::sigmoid:
      return sigmoid(x);
    case Activation::silu:
      return x / (1.f + exp(-x));
    case Activation::tanh:
      return tanh(x);
    case Activation::mish: {  // x tanh(log(1 + e)) = x (e^2 + 2e) / (e^2 + 2e + 2), e = exp(x)
      const Vec e = exp(select(x > 20.f, splat(20.f), x));
      const Vec n = e * (e + 2.f);
      return x * (n / (n + 2.f));
    }
    case Activation::gelu:
      return gelu(x);
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::quick_gelu:
      return x / (1.f + exp(x * -1.702f));
    case Activation::gelu_10: {
      const Vec y = gelu(x);
      return select(y > 10.f, splat(10.f), select(y < -10.f, splat(-10.f), y));
    }
    case Activation::laplace:
      return 0.5f * (1.f + erf((x - 0.707107f) * 2.50662642f));
    case Activation::hardswish: {  // x relu6(x + 3) / 6
      const Vec y = x + 3.f;
      return x * (select(y < 0.f, zero, select(y > 6.f, splat(6.f), y)) / 6.f);
    }
    case Activation::sqrt_softplus: {  // rare enough for the C library
      float lanes[kLanes];
      store(lanes, x);
      for (float& value : lanes) {
        const float softplus = value > 20.f ? value : __builtin_log1pf(__builtin_expf(value));
        value = __builtin_sqrtf(softplus);
      }
      return load(lanes);
    }
  }
  return x;
}

template <Activation kKind>
static void activate_rows(float* values, int64_t stride, int rows, int columns) {
  for (int r = 0; r < rows; ++r, values += stride)
    for (int c = 0; c < columns; c += kLanes) store(values + c, activation<kKind>(load(values + c)));
}

// Applies `kind` in place to `rows` rows of `columns` floats, a multiple of kLanes.
static void activate(float* values, int64_t stride, int rows, int columns, Activation kind) {
  switch (kind) {
    case Activation::linear:
      return;
    case Activation::relu:
      return activate_rows<Activation::relu>(values, stride, rows, columns);
    case Activation::relu2:
      return activate_rows<Activation::relu2>(values, stride, rows, columns);
    case Activation::relu6:
      return activate_rows<Activation::relu6>(values, stride, rows, columns);
    case Activation::leaky_relu:
      return activate_rows<Activation::leaky_relu>(values, stride, rows, columns);
    case Activation::sigmoid:
      return activate_rows<Activation::sigmoid>(values, stride, rows, columns);
    case Activation::silu:
      return activate_rows<Activation::silu>(values, stride, rows, columns);
    case Activation::tanh:
      return activate_rows<Activation::tanh>(values, stride, rows, columns);
    case Activation::mish:
      return activate_rows<Activation::mish>(values, stride, rows, columns);
    case Activation::gelu:
      return activate_rows<Activation::gelu>(values, stride, rows, columns);
    case Activation::gelu_tanh:
      return activate_rows<Activation::gelu_tanh>(values, stride, rows, columns);
    case Activation::quick_gelu:
      return activate_rows<Activation::quick_gelu>(values, stride, rows, columns);
    case Activation::gelu_10:
      return activate_rows<Activation::gelu_10>(values, stride, rows, columns);
    case Activation::laplace:
      return activate_rows<Activation::laplace>(values, stride, rows, columns);
    case Activation::hardswish:
      return activate_rows<Activation::hardswish>(values, stride, rows, columns);
    case Activation::sqrt_softplus:
      return activate_rows<Activation::sqrt_softplus>(values, stride, rows, columns);
  }
}
