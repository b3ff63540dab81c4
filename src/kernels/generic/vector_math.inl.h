// The vector functions of a table: dot, axpy, rms_norm, silu_mul, softmax, and the exponential they need.
//
// Included inside the anonymous namespace of an instruction set's .cc file, after its vector vocabulary. Element-wise
// results do not depend on where an element stands in the array: the tail runs the same instructions under a mask.

// e^x, at most 2 ulp off where the result is normal. x = n ln2 + r with |r| <= ln2/2, e^r by its Taylor series (the
// eighth term is below 2^-27), then two exact scalings so that results down to the smallest denormal come out. Below
// -104 the result is 0, above 88.73 it is infinity.
inline Vec exp_vec(Vec x) {
  x = max(set1(-104.5f), min(set1(89.0f), x));  // argument order keeps a NaN
  const Vec n = round_to_int(mul(x, set1(1.44269504f)));
  Vec r = fma(n, set1(-0.693359375f), x);  // ln2, upper part: 9 bits, so n * upper is exact
  r = fma(n, set1(2.12194440e-4f), r);     // and what is left of it
  Vec p = set1(1.0f / 5040.0f);
  p = fma(p, r, set1(1.0f / 720.0f));
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(mul(p, r), r, r);
  p = add(p, set1(1.0f));
  const Vec half = round_to_int(mul(n, set1(0.5f)));
  return mul(mul(p, pow2(half)), pow2(sub(n, half)));
}

// Four chains by position; the order of the sum depends on n alone.
inline float dot(const float* a, const float* b, int n) {
  Vec s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 = fma(load(a + i), load(b + i), s0);
    s1 = fma(load(a + i + kLanes), load(b + i + kLanes), s1);
    s2 = fma(load(a + i + 2 * kLanes), load(b + i + 2 * kLanes), s2);
    s3 = fma(load(a + i + 3 * kLanes), load(b + i + 3 * kLanes), s3);
  }
  for (; i + kLanes <= n; i += kLanes) s0 = fma(load(a + i), load(b + i), s0);
  if (i < n) s1 = fma(load_partial(a + i, n - i), load_partial(b + i, n - i), s1);
  return reduce_add(add(add(s0, s1), add(s2, s3)));
}

inline void axpy(float a, const float* x, float* y, int n) {
  const Vec scale = set1(a);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, fma(scale, load(x + i), load(y + i)));
  if (i < n) store_partial(y + i, n - i, fma(scale, load_partial(x + i, n - i), load_partial(y + i, n - i)));
}

inline void rms_norm(const float* x, const float* weight, float eps, float* y, int n) {
  const float mean = dot(x, x, n) / static_cast<float>(n);
  const Vec scale = div(set1(1.0f), sqrt_vec(set1(mean + eps)));
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, mul(mul(load(x + i), scale), load(weight + i)));
  if (i < n) {
    const int left = n - i;
    store_partial(y + i, left, mul(mul(load_partial(x + i, left), scale), load_partial(weight + i, left)));
  }
}

inline Vec silu_vec(Vec gate, Vec up) {
  const Vec one = set1(1.0f);
  return mul(div(gate, add(one, exp_vec(sub(zero(), gate)))), up);
}

inline void silu_mul(const float* gate, const float* up, float* y, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, silu_vec(load(gate + i), load(up + i)));
  if (i < n) store_partial(y + i, n - i, silu_vec(load_partial(gate + i, n - i), load_partial(up + i, n - i)));
}

inline void softmax(float* x, int n) {
  Vec tops = set1(x[0]);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) tops = max(tops, load(x + i));
  float top = reduce_max(tops);
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  const Vec shift = set1(top);
  Vec sums = zero();
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const Vec e = exp_vec(sub(load(x + i), shift));
    store(x + i, e);
    sums = add(sums, e);
  }
  if (i < n) {
    store_partial(x + i, n - i, exp_vec(sub(load_partial(x + i, n - i), shift)));
    sums = add(sums, load_partial(x + i, n - i));  // lanes past the end load as 0
  }
  const Vec total = set1(reduce_add(sums));
  for (i = 0; i + kLanes <= n; i += kLanes) store(x + i, div(load(x + i), total));
  if (i < n) store_partial(x + i, n - i, div(load_partial(x + i, n - i), total));
}
