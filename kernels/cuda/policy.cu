#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/selection.cuh"
#include "kernels/ops/sampling_pieces.h"

namespace brigade::kernels::cuda {
namespace {

constexpr int kThreads = kSelectThreads;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One row and where its intermediate results lie. Candidates stay in rising token id.
struct LawRow {
  const PolicyArgs& args;
  const PolicyRow& settings;
  const float* logits;
  double* scores;   // [vocab]
  double* weights;  // [vocab], of the candidates
  int32_t* tokens;  // [vocab], of the candidates
  uint8_t* marks;   // [vocab]
};

__device__ LawRow law_row(const PolicyArgs& args, int64_t row_bytes, int64_t r) {
  double* scores = reinterpret_cast<double*>(static_cast<char*>(args.scratch) + r * row_bytes);
  double* weights = scores + args.vocab;
  int32_t* tokens = reinterpret_cast<int32_t*>(weights + args.vocab);
  return {args,    args.settings[r], args.logits + r * args.vocab,
          scores,  weights,          tokens,
          reinterpret_cast<uint8_t*>(tokens + args.vocab)};
}

// Scores as f64. False when the row must not be sampled.
__device__ bool take_logits(const LawRow& row) {
  int broken = 0, finite = 0;
  for (int t = threadIdx.x; t < row.args.vocab; t += kThreads) {
    const double logit = row.logits[t];
    broken |= !(logit < kInfinity);
    finite |= logit > kOut;
    row.scores[t] = logit;
  }
  broken = __syncthreads_or(broken);
  finite = __syncthreads_or(finite);
  return broken == 0 && finite != 0;
}

// A token may stand in the list more than once: its first entry's thread adds them all, in order.
__device__ void add_bias(const LawRow& row) {
  const TokenRange range = row.settings.bias;
  const int32_t* tokens = row.args.bias_tokens + range.first;
  const float* values = row.args.bias_values + range.first;
  for (int i = threadIdx.x; i < range.count; i += kThreads) {
    const int32_t token = tokens[i];
    bool first = true;
    for (int j = 0; j < i; ++j) first &= tokens[j] != token;
    for (int j = i; first && j < range.count; ++j) {
      if (tokens[j] == token) row.scores[token] = __dadd_rn(row.scores[token], values[j]);
    }
  }
  __syncthreads();
}

__device__ void apply_penalties(const LawRow& row) {
  const PolicyRow& s = row.settings;
  for (int i = threadIdx.x; i < s.seen.count; i += kThreads) {
    const int32_t token = row.args.seen_tokens[s.seen.first + i];
    const int32_t count = row.args.seen_counts[s.seen.first + i];
    double score = row.scores[token];
    score =
        score > 0 ? __ddiv_rn(score, s.repetition_penalty) : __dmul_rn(score, s.repetition_penalty);
    if (count > 0) {
      const double counted = __dmul_rn(s.frequency_penalty, static_cast<double>(count));
      score = __dsub_rn(score, __dadd_rn(s.presence_penalty, counted));
    }
    row.scores[token] = score;
  }
  __syncthreads();
}

__device__ void exclude_tokens(const LawRow& row) {
  const TokenRange allowed = row.settings.allowed, banned = row.settings.banned;
  if (allowed.count > 0) {
    for (int t = threadIdx.x; t < row.args.vocab; t += kThreads) row.marks[t] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < allowed.count; i += kThreads) {
      row.marks[row.args.allowed_tokens[allowed.first + i]] = 1;
    }
    __syncthreads();
    for (int t = threadIdx.x; t < row.args.vocab; t += kThreads) {
      if (row.marks[t] == 0) row.scores[t] = kOut;
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < banned.count; i += kThreads) {
    row.scores[row.args.banned_tokens[banned.first + i]] = kOut;
  }
  __syncthreads();
}

// The one best token. Returns the number of candidates.
__device__ int take_best(const LawRow& row, SelectShared* shared) {
  double best = kOut;
  for (int t = threadIdx.x; t < row.args.vocab; t += kThreads) best = fmax(best, row.scores[t]);
  best = block_max(best, shared);
  if (!(best > kOut && best < kInfinity)) return 0;
  const Cut cut = find_cut(row.scores, row.args.vocab, 1, shared);
  const auto keep = [&](int t) { return within(cut, row.scores[t], t); };
  const auto read = [](int t) { return t; };
  const auto write = [&](int place, int t) {
    row.tokens[place] = t;
    row.weights[place] = 1.0;
  };
  return compact(row.args.vocab, keep, read, write, shared);
}

// Temperature, top-k, exp(score - best). Returns the number of candidates with weights above 0.
__device__ int weigh(const LawRow& row, SelectShared* shared) {
  const int vocab = row.args.vocab;
  double best = kOut;
  int count = 0;
  for (int t = threadIdx.x; t < vocab; t += kThreads) {
    if (is_out(row.scores[t])) continue;
    row.scores[t] = __ddiv_rn(row.scores[t], row.settings.temperature);
    best = fmax(best, row.scores[t]);
    ++count;
  }
  best = block_max(best, shared);
  count = block_sum(count, shared);
  const int top_k = row.settings.top_k;
  Cut cut{0, 0};
  if (top_k > 0 && top_k < count) cut = find_cut(row.scores, vocab, top_k, shared);
  // Each thread weighs what it divided; others' weights are read behind the barrier.
  for (int t = threadIdx.x; t < vocab; t += kThreads) {
    const bool kept = !is_out(row.scores[t]) && within(cut, row.scores[t], t);
    row.scores[t] = kept ? exp_f64(__dsub_rn(row.scores[t], best)) : 0;
  }
  __syncthreads();
  const auto keep = [&](int t) { return row.scores[t] != 0; };
  const auto read = [](int t) { return t; };
  const auto write = [&](int place, int t) {
    row.tokens[place] = t;
    row.weights[place] = row.scores[t];
  };
  return compact(vocab, keep, read, write, shared);
}

// The next heaviest candidates, sorted: a window on the order of weights.
struct Window {
  double weights[kThreads];
  int indices[kThreads];
  int filled;
  double mass;  // of all windows so far
  int crossed;  // place in this window where the mass crosses, or -1
};

__device__ __forceinline__ bool before(const Window* w, int a, int b) {
  return w->weights[a] > w->weights[b] ||
         (w->weights[a] == w->weights[b] && w->indices[a] < w->indices[b]);
}

__device__ void sort_window(Window* window) {
  const int i = static_cast<int>(threadIdx.x);
  for (int size = 2; size <= kThreads; size *= 2) {
    for (int apart = size / 2; apart > 0; apart /= 2) {
      __syncthreads();
      const int j = i ^ apart;
      if (j <= i) continue;
      const bool falling = (i & size) == 0;
      if (before(window, j, i) == falling) {
        const double weight = window->weights[i];
        const int index = window->indices[i];
        window->weights[i] = window->weights[j];
        window->indices[i] = window->indices[j];
        window->weights[j] = weight;
        window->indices[j] = index;
      }
    }
  }
  __syncthreads();
}

// Fills the window with the candidates behind `done` up to `cut`. Their places are drawn by an
// atomic: sorting gives them one order.
__device__ void fill_window(const LawRow& row, int count, const Cut* done, Cut cut,
                            Window* window) {
  window->weights[threadIdx.x] = -1;
  window->indices[threadIdx.x] = row.args.vocab + static_cast<int>(threadIdx.x);
  if (threadIdx.x == 0) window->filled = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const double weight = row.weights[i];
    if (!within(cut, weight, i) || (done != nullptr && within(*done, weight, i))) continue;
    const int place = atomicAdd(&window->filled, 1);
    window->weights[place] = weight;
    window->indices[place] = i;
  }
}

// The cut behind the heaviest candidates whose mass, summed in falling weight, reaches `wanted`.
__device__ Cut cut_at_mass(const LawRow& row, int count, double wanted, Window* window,
                           SelectShared* shared) {
  Cut done{0, 0};
  if (threadIdx.x == 0) window->mass = 0;
  for (int taken = 0; taken < count; taken += kThreads) {
    const Cut cut = find_cut(row.weights, count, min(taken + kThreads, count), shared);
    fill_window(row, count, taken == 0 ? nullptr : &done, cut, window);
    sort_window(window);
    if (threadIdx.x == 0) {
      window->crossed = -1;
      for (int i = 0; i < window->filled && window->crossed < 0; ++i) {
        window->mass = __dadd_rn(window->mass, window->weights[i]);
        if (window->mass >= wanted) window->crossed = i;
      }
    }
    __syncthreads();
    const int crossed = window->crossed;
    if (crossed >= 0) return {order_key(window->weights[crossed]), window->indices[crossed]};
    done = cut;
    __syncthreads();
  }
  return {0, 0};  // rounding kept the mass below: everything stays
}

// Keeps the candidates within `cut` that are not lighter than min_p. Returns how many.
__device__ int keep_within(const LawRow& row, int count, Cut cut, SelectShared* shared) {
  struct Candidate {
    double weight;
    int32_t token;
  };
  const double min_p = row.settings.min_p;
  const auto keep = [&](int i) {
    const double weight = row.weights[i];
    return within(cut, weight, i) && !(min_p > 0 && weight < min_p);
  };
  const auto read = [&](int i) { return Candidate{row.weights[i], row.tokens[i]}; };
  const auto write = [&](int place, const Candidate& candidate) {
    row.weights[place] = candidate.weight;
    row.tokens[place] = candidate.token;
  };
  return compact(count, keep, read, write, shared);
}

// Candidates and their weights. Returns how many.
__device__ int take_candidates(const LawRow& row, Window* window, SelectShared* shared) {
  if (!take_logits(row)) return 0;
  add_bias(row);
  apply_penalties(row);
  exclude_tokens(row);
  if (row.settings.temperature == 0) return take_best(row, shared);
  int count = weigh(row, shared);
  const bool cuts = row.settings.top_p < 1;
  if (cuts || row.settings.min_p > 0) {
    Cut cut{0, 0};
    if (cuts) {
      const double wanted = __dmul_rn(row.settings.top_p, sum_in_order(row.weights, count, shared));
      cut = cut_at_mass(row, count, wanted, window, shared);
    }
    count = keep_within(row, count, cut, shared);
  }
  return count;
}

__device__ int make_law(const LawRow& row, int64_t r, Window* window, SelectShared* shared) {
  const int count = take_candidates(row, window, shared);
  const double sum = sum_in_order(row.weights, count, shared);
  if (!(sum > 0 && sum < kInfinity)) return 0;
  const int64_t first = r * row.args.max_candidates;
  for (int i = threadIdx.x; i < min(count, row.args.max_candidates); i += kThreads) {
    row.args.tokens[first + i] = row.tokens[i];
    row.args.probabilities[first + i] = __ddiv_rn(row.weights[i], sum);
  }
  return count;
}

// A block a row; one a multiprocessor, so that registers suffice.
__global__ void __launch_bounds__(kThreads, 1) policy_kernel(PolicyArgs args, int64_t row_bytes) {
  GPU_SHARED(SelectShared, shared, 1);
  GPU_SHARED(Window, window, 1);
  const LawRow row = law_row(args, row_bytes, blockIdx.x);
  const int count = make_law(row, blockIdx.x, window, shared);
  if (threadIdx.x == 0) args.counts[blockIdx.x] = count;
}

}  // namespace

cudaError_t policy(cudaStream_t stream, const PolicyArgs& args) {
  return launch(policy_kernel, dim3(args.rows), dim3(kThreads), 0, stream, args,
                policy_scratch_bytes(1, args.vocab));
}

}  // namespace brigade::kernels::cuda
