// Fused float32 kernels for training on one CPU core, called through ctypes from fused.py.
// Every matrix is row-major and contiguous. Build:
//   gcc -O3 -march=native -mprefer-vector-width=512 -ffast-math -shared -fPIC fused.c
//       -o fused.so -lmvec -lm
// gcc vectorises expf (libmvec) only under the full -ffast-math, so no kernel relies on infinities.
#include <math.h>
#include <stdint.h>
#include <string.h>

// ---- RMSNorm: y = x * inv * w, inv = 1 / sqrt(mean(x^2) + eps), kept for the backward. ----

void rms_forward(const float* x, const float* w, float* y, float* inv, long n, long d, float eps) {
  for (long i = 0; i < n; i++) {
    const float* xi = x + i * d;
    float* yi = y + i * d;
    float sum = 0;
    for (long j = 0; j < d; j++) sum += xi[j] * xi[j];
    float r = 1.f / sqrtf(sum / d + eps);
    inv[i] = r;
    for (long j = 0; j < d; j++) yi[j] = xi[j] * r * w[j];
  }
}

// dw is accumulated into.
void rms_backward(const float* x, const float* w, const float* inv, const float* dy, float* dx,
                  float* dw, long n, long d) {
  for (long i = 0; i < n; i++) {
    const float *xi = x + i * d, *gi = dy + i * d;
    float* oi = dx + i * d;
    float r = inv[i], dot = 0;
    for (long j = 0; j < d; j++) {
      float t = gi[j] * xi[j];
      dot += t * w[j];
      dw[j] += t * r;
    }
    float c = dot * r * r * r / d;
    for (long j = 0; j < d; j++) oi[j] = gi[j] * w[j] * r - xi[j] * c;
  }
}

// ---- Residual add with dropout: y = x + keep_mask(branch) / keep. The mask is a hash of the
// element index and a seed, so the backward needs no stored mask. keep_below = keep * 2^32. ----

static inline float kept(uint32_t i, uint32_t seed, uint32_t keep_below) {
  uint32_t h = (i + seed) * 0x9E3779B1u;
  h ^= h >> 16;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  h ^= h >> 16;
  return h < keep_below ? 1.f : 0.f;
}

void residual_dropout(const float* x, const float* branch, float* y, long n, uint32_t seed,
                      uint32_t keep_below, float scale) {
  for (long i = 0; i < n; i++) y[i] = x[i] + branch[i] * (scale * kept(i, seed, keep_below));
}

void dropout_backward(const float* dy, float* dbranch, long n, uint32_t seed, uint32_t keep_below,
                      float scale) {
  for (long i = 0; i < n; i++) dbranch[i] = dy[i] * (scale * kept(i, seed, keep_below));
}

// ---- SwiGLU: h [n, 2f] = gate | up, a [n, f] = silu(gate) * up. ----

void swiglu_forward(const float* h, float* a, long n, long f) {
  for (long i = 0; i < n; i++) {
    const float *gate = h + i * 2 * f, *up = gate + f;
    float* o = a + i * f;
    for (long j = 0; j < f; j++) o[j] = gate[j] / (1.f + expf(-gate[j])) * up[j];
  }
}

void swiglu_backward(const float* h, const float* da, float* dh, long n, long f) {
  for (long i = 0; i < n; i++) {
    const float *gate = h + i * 2 * f, *up = gate + f, *d = da + i * f;
    float *dgate = dh + i * 2 * f, *dup = dgate + f;
    for (long j = 0; j < f; j++) {
      float s = 1.f / (1.f + expf(-gate[j]));
      float silu = gate[j] * s;
      dgate[j] = d[j] * up[j] * (s + silu * (1.f - s));
      dup[j] = d[j] * silu;
    }
  }
}

// ---- Rotate-half RoPE (Hugging Face layout) fused with the split of qkv [T, (H + 2K) D] into
// q [H, T, D] (scaled), k [K, T, D], v [K, T, D]. cos and sin are [T, D / 2]. ----

static void rotate(const float* x, float* o, const float* c, const float* s, long half, float m) {
  for (long j = 0; j < half; j++) {
    float a = x[j], b = x[j + half];
    o[j] = (a * c[j] - b * s[j]) * m;
    o[j + half] = (b * c[j] + a * s[j]) * m;
  }
}

static void rotate_back(const float* g, float* o, const float* c, const float* s, long half,
                        float m) {
  for (long j = 0; j < half; j++) {
    float a = g[j], b = g[j + half];
    o[j] = (a * c[j] + b * s[j]) * m;
    o[j + half] = (b * c[j] - a * s[j]) * m;
  }
}

void split_qkv(const float* x, float* q, float* k, float* v, const float* cos, const float* sin,
               long T, long H, long K, long D, float scale) {
  long half = D / 2;
  for (long t = 0; t < T; t++) {
    const float *row = x + t * (H + 2 * K) * D, *c = cos + t * half, *s = sin + t * half;
    for (long h = 0; h < H; h++) rotate(row + h * D, q + (h * T + t) * D, c, s, half, scale);
    for (long h = 0; h < K; h++) rotate(row + (H + h) * D, k + (h * T + t) * D, c, s, half, 1.f);
    for (long h = 0; h < K; h++)
      memcpy(v + (h * T + t) * D, row + (H + K + h) * D, D * sizeof(float));
  }
}

void split_qkv_backward(float* dx, const float* dq, const float* dk, const float* dv,
                        const float* cos, const float* sin, long T, long H, long K, long D,
                        float scale) {
  long half = D / 2;
  for (long t = 0; t < T; t++) {
    float* row = dx + t * (H + 2 * K) * D;
    const float *c = cos + t * half, *s = sin + t * half;
    for (long h = 0; h < H; h++) rotate_back(dq + (h * T + t) * D, row + h * D, c, s, half, scale);
    for (long h = 0; h < K; h++)
      rotate_back(dk + (h * T + t) * D, row + (H + h) * D, c, s, half, 1.f);
    for (long h = 0; h < K; h++)
      memcpy(row + (H + K + h) * D, dv + (h * T + t) * D, D * sizeof(float));
  }
}

// [H, T, D] -> [T, H * D] and back.
void heads_to_rows(const float* a, float* o, long T, long H, long D) {
  for (long t = 0; t < T; t++)
    for (long h = 0; h < H; h++)
      memcpy(o + (t * H + h) * D, a + (h * T + t) * D, D * sizeof(float));
}

void rows_to_heads(const float* a, float* o, long T, long H, long D) {
  for (long t = 0; t < T; t++)
    for (long h = 0; h < H; h++)
      memcpy(o + (h * T + t) * D, a + (t * H + h) * D, D * sizeof(float));
}

// ---- Causal softmax in place over scores [H, T, T], and its backward (g becomes dscores). ----

void softmax_causal(float* p, long H, long T) {
  for (long h = 0; h < H; h++)
    for (long t = 0; t < T; t++) {
      float* r = p + (h * T + t) * T;
      long end = t + 1;
      float m = -1e30f, z = 0;
      for (long j = 0; j < end; j++) m = r[j] > m ? r[j] : m;
      for (long j = 0; j < end; j++) {
        float e = expf(r[j] - m);
        r[j] = e;
        z += e;
      }
      z = 1.f / z;
      for (long j = 0; j < end; j++) r[j] *= z;
      memset(r + end, 0, (T - end) * sizeof(float));
    }
}

void softmax_causal_backward(const float* p, float* g, long H, long T) {
  for (long h = 0; h < H; h++)
    for (long t = 0; t < T; t++) {
      const float* r = p + (h * T + t) * T;
      float* d = g + (h * T + t) * T;
      long end = t + 1;
      float dot = 0;
      for (long j = 0; j < end; j++) dot += r[j] * d[j];
      for (long j = 0; j < end; j++) d[j] = r[j] * (d[j] - dot);
      memset(d + end, 0, (T - end) * sizeof(float));
    }
}

// ---- Mixture of experts: rows gathered by expert and scattered back with their weights. ----

void gather_rows(const float* x, const int64_t* index, float* o, long n, long d) {
  for (long i = 0; i < n; i++) memcpy(o + i * d, x + index[i] * d, d * sizeof(float));
}

// o[index[i]] += w[i] * y[i]
void scatter_add(const float* y, const int64_t* index, const float* w, float* o, long n, long d) {
  for (long i = 0; i < n; i++) {
    float* a = o + index[i] * d;
    const float* b = y + i * d;
    float c = w[i];
    for (long j = 0; j < d; j++) a[j] += c * b[j];
  }
}

// dy[i] = w[i] * g[index[i]], dw[i] = <g[index[i]], y[i]>
void scatter_add_backward(const float* g, const float* y, const int64_t* index, const float* w,
                          float* dy, float* dw, long n, long d) {
  for (long i = 0; i < n; i++) {
    const float *a = g + index[i] * d, *b = y + i * d;
    float* o = dy + i * d;
    float c = w[i], sum = 0;
    for (long j = 0; j < d; j++) {
      sum += a[j] * b[j];
      o[j] = c * a[j];
    }
    dw[i] = sum;
  }
}

// ---- Cross-entropy: logits [n, V] become scale * dloss/dlogits; returns the sum of losses. ----

double cross_entropy(float* logits, const int64_t* y, long n, long V, float scale) {
  double total = 0;
  for (long i = 0; i < n; i++) {
    float* r = logits + i * V;
    float m = -1e30f, z = 0;
    for (long j = 0; j < V; j++) m = r[j] > m ? r[j] : m;
    float target = r[y[i]] - m;
    for (long j = 0; j < V; j++) {
      float e = expf(r[j] - m);
      r[j] = e;
      z += e;
    }
    total += logf(z) - target;
    z = scale / z;
    for (long j = 0; j < V; j++) r[j] *= z;
    r[y[i]] -= scale;
  }
  return total;
}

// Labels a * q + (1 - a) * onehot(y), q [n, V] the teacher's probabilities.
double cross_entropy_soft(float* logits, const float* q, const int64_t* y, long n, long V,
                          float scale, float a) {
  double total = 0;
  for (long i = 0; i < n; i++) {
    float* r = logits + i * V;
    const float* p = q + i * V;
    float m = -1e30f, z = 0, expected = 0;
    for (long j = 0; j < V; j++) m = r[j] > m ? r[j] : m;
    float hard = r[y[i]] - m;
    for (long j = 0; j < V; j++) {
      float d = r[j] - m;
      expected += p[j] * d;
      float e = expf(d);
      r[j] = e;
      z += e;
    }
    total += logf(z) - a * expected - (1 - a) * hard;
    z = scale / z;
    for (long j = 0; j < V; j++) r[j] = r[j] * z - scale * a * p[j];
    r[y[i]] -= scale * (1 - a);
  }
  return total;
}

// ---- AdamW over one flat buffer. decay holds the weight decay of each weight (0 for norms). ----

double sum_of_squares(const float* g, long n) {
  double total = 0;
  for (long b = 0; b < n; b += 4096) {
    long end = b + 4096 < n ? b + 4096 : n;
    float a = 0;
    for (long i = b; i < end; i++) a += g[i] * g[i];
    total += a;
  }
  return total;
}

// correct1, correct2 = 1 / (1 - beta^t). The gradient is scaled by grad_scale, used and zeroed.
void adamw(float* p, float* g, float* m, float* v, const float* decay, long n, float lr, float b1,
           float b2, float eps, float correct1, float correct2, float grad_scale) {
  for (long i = 0; i < n; i++) {
    float a = g[i] * grad_scale;
    g[i] = 0;
    m[i] = b1 * m[i] + (1 - b1) * a;
    v[i] = b2 * v[i] + (1 - b2) * a * a;
    p[i] -= lr * ((m[i] * correct1) / (sqrtf(v[i] * correct2) + eps) + decay[i] * p[i]);
  }
}
