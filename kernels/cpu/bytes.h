// Vectors of bytes: dot products of four of them in each lane, and floats rounded to them. Included by the kernel files
// inside their own namespace where they compute int8 in integers.

// sum + the products of four unsigned bytes, the same in every lane, with four signed bytes of each lane.
FASTSAL_INLINE IntVec dot_bytes(IntVec sum, int32_t bytes, IntVec columns) {
#if defined(FASTSAL_INT8_PAIRS)
  // Sums of two products saturate at 16 bits, which weights packed in bounded pairs cannot reach; see packing.cpp.
#if FASTSAL_LANES == 16
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi32(bytes), (__m512i)columns);
  return sum + (IntVec)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(bytes), (__m256i)columns);
  return sum + (IntVec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
#elif defined(FASTSAL_INT8_MODEL)
  const __m256i row = _mm256_set1_epi32(bytes), column = (__m256i)columns;
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(row, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(column, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(row, 8), _mm256_srai_epi16(column, 8));
  return sum + (IntVec)even + (IntVec)odd;
#elif FASTSAL_LANES == 16
  return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(bytes), (__m512i)columns);
#else
  return (IntVec)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_set1_epi32(bytes), (__m256i)columns);
#endif
}

// Rounds to the nearest, ties to even, and adds; the result is in [0, 256] and saturates.
FASTSAL_INLINE void store_bytes(char* to, Vec x, IntVec zero) {
#if FASTSAL_LANES == 16
  const __m512i rounded = _mm512_maskz_cvtps_epi32(0xffff, (__m512)x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm512_maskz_cvtusepi32_epi8(0xffff, _mm512_add_epi32(rounded, (__m512i)zero)));
#else
  const __m256i shifted = _mm256_add_epi32(_mm256_cvtps_epi32((__m256)x), (__m256i)zero);
  const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(halves, halves));
#endif
}
