// Choosing a token from one row of logits; see sampling.h for the order of steps.
#include "sampling.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "denormals.h"
#include "pool.h"
#include "sampling_kernels.h"
#include "sampling_math.h"

namespace octavo {

using namespace sampling_math;

namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float LARGEST = std::numeric_limits<float>::max();
constexpr uint32_t PURPOSE_TOKEN = 0;
constexpr float NUCLEUS_FIRST_TRY = -8.0f;  // most nuclei lie within e^-8 of the most likely token
constexpr size_t DRAW_BY_LIST = 256;        // more survivors than this are drawn group by group
constexpr int64_t LOGITS_ALONE = 1 << 18;   // one thread takes fewer logits than this: others need time to start
constexpr int NUCLEUS_BLOCKS = 192;         // and in fewer blocks than this; else a histogram finds the edge

struct Candidate {
  float logit;
  int32_t id;
  uint64_t mass;
};

bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// One row, and what its blocks' largest say.
struct View : LogitRow {
  const SamplingKernels* kernels;
  float max;    // meaningful when finite
  bool finite;  // no NaN, no +inf, not all -inf
};

struct Scratch {
  Edits edits;
  std::vector<float> saved, raw_max;
  std::vector<Candidate> list;
  std::vector<uint64_t> buckets;
  std::vector<int32_t> ids;
};

Scratch& scratch() {
  static thread_local Scratch s;
  return s;
}

// The largest of n numbers, NaN when one of them is.
float largest(const float* x, int n, const SamplingKernels& kernels) {
  float most = -INF, rest = -INF;
  const int whole = n / 16 * 16;
  if (whole) kernels.tops(x, whole, whole, &most);
  if (whole < n) kernels.tops(x + whole, n - whole, 16, &rest);
  return rest > most || rest != rest ? rest : most;
}

View seen_as(const LogitRow& row, float most, const SamplingKernels& kernels) {
  return {row, &kernels, most, most < INF && most > -INF};
}

// tops: as RowRequest's.
View look(const float* x, int n, const float* tops, std::vector<float>& block_max, const SamplingKernels& kernels) {
  static_assert(SCAN_BLOCK == 2 * TOPS_WIDTH);
  block_max.resize((n + SCAN_BLOCK - 1) / SCAN_BLOCK);
  const LogitRow row = {.x = x, .n = n, .block_max = block_max.data()};
  if (!tops) {
    kernels.tops(x, n, SCAN_BLOCK, block_max.data());
    return seen_as(row, largest(block_max.data(), row.blocks(), kernels), kernels);
  }
  const int known = (n + TOPS_WIDTH - 1) / TOPS_WIDTH;
  kernels.pair_tops(tops, known, block_max.data());
  return seen_as(row, largest(tops, known, kernels), kernels);
}

void fetch_block(const float* x, int block) {
  for (int line = 0; line < SCAN_BLOCK; line += 16) __builtin_prefetch(x + block * SCAN_BLOCK + line);
}

// Calls f(logit, id) for every token with logit >= least, ids ascending.
template <class F>
void each_from(const View& v, float least, F&& f) {
  for (int b = 0; b < v.blocks(); b++)
    if (v.block_max[b] >= least) fetch_block(v.place(b), b);
  for (int b = 0; b < v.blocks(); b++) {
    if (!(v.block_max[b] >= least)) continue;
    const float* x = v.source(b);
    int end = std::min(v.n, (b + 1) * SCAN_BLOCK);
    for (int i = b * SCAN_BLOCK; i < end; i++)
      if (x[i] >= least) f(x[i], i);
  }
}

int32_t first_largest(const View& v) {
  int b = 0;
  while (v.block_max[b] != v.max) b++;
  int i = b * SCAN_BLOCK;
  while (v.source(b)[i] != v.max) i++;
  return i;
}

// A logit that at least k tokens reach, few more as a rule; or -inf. By the blocks' largest.
float reached_by(const View& v, int k) {
  if (k > v.blocks()) return -INF;
  if (k == 1) return v.max;
  const auto count = [&v](float least) { return v.kernels->count_from(v.block_max, v.blocks(), least); };
  float low = v.max, high = v.max;
  for (float step = 1.0f; count(low) < k; step *= 2.0f) high = low, low = v.max - step;
  for (int i = 0; i < 8; i++) {
    const float middle = low + (high - low) * 0.5f;
    const int reached = count(middle);
    (reached < k ? high : low) = middle;
    if (reached >= k && reached <= k + k / 4) break;
  }
  return low;
}

// The k first survivors of the order (all, if fewer; -inf never), unsorted, their masses unset.
void take_top(const View& v, int k, const Survivors& s, Scratch& tmp) {
  tmp.list.clear();
  each_from(v, reached_by(v, k), [&](float logit, int32_t id) {
    if (logit != -INF && s.keeps(logit, id)) tmp.list.push_back({logit, id, 0});
  });
  if (tmp.list.size() > size_t(k)) {
    std::nth_element(tmp.list.begin(), tmp.list.begin() + (k - 1), tmp.list.end(), before);
    tmp.list.resize(k);
  }
}

// Cuts the list to the shortest prefix of its order whose mass reaches `wanted`; never empty.
void cut_at_mass(std::vector<Candidate>& list, uint64_t wanted) {
  size_t low = 0, high = list.size();
  while (high - low > 32) {
    size_t middle = low + (high - low) / 2;
    std::nth_element(list.begin() + low, list.begin() + middle, list.begin() + high, before);
    uint64_t upper = 0;
    for (size_t i = low; i < middle; i++) upper += list[i].mass;
    if (upper >= wanted) {
      high = middle;
    } else {
      wanted -= upper;
      low = middle;
    }
  }
  std::sort(list.begin() + low, list.begin() + high, before);
  uint64_t sum = 0;
  size_t end = low;
  while (end < high) {
    sum += list[end++].mass;
    if (sum >= wanted) break;
  }
  list.resize(end);
}

uint64_t wanted_mass(double top_p, uint64_t total) {
  uint64_t wanted = uint64_t(std::ceil(top_p * double(total)));
  return std::clamp<uint64_t>(wanted, 1, total);
}

void end_after(Survivors& s, const std::vector<Candidate>& list) {
  const Candidate& last = *std::max_element(list.begin(), list.end(), before);
  s.last_logit = last.logit;
  s.last_id = last.id;
}

// All tokens within NUCLEUS_FIRST_TRY of the most likely, with their masses; false when they are many.
bool take_likely(const View& v, const Survivors& s, std::vector<Candidate>& list) {
  list.clear();
  auto close = [&](float top) { return s.d(top) >= NUCLEUS_FIRST_TRY; };
  if (std::count_if(v.block_max, v.block_max + v.blocks(), close) > NUCLEUS_BLOCKS) return false;
  for (int b = 0; b < v.blocks(); b++) {
    if (!close(v.block_max[b])) continue;
    const float* x = v.source(b);
    int end = std::min(v.n, (b + 1) * SCAN_BLOCK);
    for (int i = b * SCAN_BLOCK; i < end; i++) {
      float d = s.d(x[i]);
      if (d >= NUCLEUS_FIRST_TRY && d >= s.d_min) list.push_back({x[i], i, mass_of(d)});
    }
  }
  return true;
}

uint64_t total_mass(const std::vector<Candidate>& list) {
  uint64_t total = 0;
  for (const Candidate& c : list) total += c.mass;
  return total;
}

// top-p over a whole row. Leaves the survivors in tmp.list and returns true, or only narrows `s` and returns false.
bool nucleus(const View& v, double top_p, Survivors& s, Scratch& tmp) {
  if (take_likely(v, s, tmp.list)) {
    uint64_t wanted = wanted_mass(top_p, v.kernels->mass(v, s));
    if (total_mass(tmp.list) >= wanted) {
      cut_at_mass(tmp.list, wanted);
      end_after(s, tmp.list);
      return true;
    }
  }
  tmp.buckets.assign(MASS_BUCKETS, 0);
  v.kernels->histogram(v, s, tmp.buckets.data());
  uint64_t wanted = wanted_mass(top_p, std::accumulate(tmp.buckets.begin(), tmp.buckets.end(), uint64_t(0)));
  int edge = 0;
  while (tmp.buckets[edge] < wanted) wanted -= tmp.buckets[edge++];
  tmp.ids.resize(v.n);
  int count = v.kernels->gather(v, s, edge, tmp.ids.data());
  tmp.list.clear();
  for (int i = 0; i < count; i++) {
    float logit = v.at(tmp.ids[i]);
    tmp.list.push_back({logit, tmp.ids[i], mass_of(s.d(logit))});
  }
  cut_at_mass(tmp.list, wanted);
  end_after(s, tmp.list);
  return false;
}

void apply_min_p(double min_p, Survivors& s) {
  if (min_p <= 0.0) return;
  double least = log_double(min_p);
  s.d_min = float(least);
  if (double(s.d_min) < least) s.d_min = std::nextafter(s.d_min, INF);
}

// Applies top-k and top-p. True: tmp.list holds the survivors (and `s` describes them too).
bool truncate(const View& v, const SamplingOptions& o, Survivors& s, Scratch& tmp) {
  bool top_k = o.top_k > 0 && o.top_k < v.n, top_p = o.top_p < 1.0;
  if (!top_k) return top_p && nucleus(v, o.top_p, s, tmp);
  take_top(v, o.top_k, s, tmp);
  if (top_p) {
    for (Candidate& c : tmp.list) c.mass = mass_of(s.d(c.logit));
    cut_at_mass(tmp.list, wanted_mass(o.top_p, total_mass(tmp.list)));
  }
  end_after(s, tmp.list);
  return true;
}

int32_t draw(const View& v, const NoiseKey& key, const Survivors& s, const std::vector<Candidate>* list) {
  int32_t likely = first_largest(v);
  Winner best = {double(s.d(v.max)) + noise(key, uint32_t(likely)), likely};
  if (!list || list->size() > DRAW_BY_LIST) {
    v.kernels->draw(v, s, key, best);
    return best.id;
  }
  for (const Candidate& c : *list) {
    const Words group = philox(key, uint32_t(c.id) / NOISE_GROUP, LEVEL_GROUP);
    if (s.d(c.logit) + noise_bound(int32_t(group.w0)) < float(best.score) - 0.001f) continue;
    double value = double(s.d(c.logit)) + noise_in_group(key, group, uint32_t(c.id));
    if (value > best.score || (value == best.score && c.id < best.id)) best = {value, c.id};
  }
  return best.id;
}

// Whether top-p leaves token `id` of the survivors s: whether the mass before it is less than what is wanted. Weights
// prove it one way or the other for nearly all tokens, those of a few blocks for most; else the masses themselves say.
bool in_nucleus(const View& v, int32_t id, const Survivors& s, double top_p) {
  const float at = v.at(id);
  Survivors before = s;
  before.last_logit = at, before.last_id = id - 1;
  // total = kept + dropped, so kept < top_p total is kept (1 - top_p) < dropped top_p. What masses are rounded by is
  // far below TOUCH.
  constexpr double TOUCH = 1e-6;
  Weights w = {0.0f, 0.0f};
  for (const auto& [least, below] : {std::pair{at, INF}, std::pair{-INF, at}}) {
    const Weights more = v.kernels->weigh(v, before, least, below);
    w.kept += more.kept, w.dropped += more.dropped;
    const double kept = w.kept * (1.0 - top_p), dropped = w.dropped * top_p;
    if (kept * (1.0 + WEIGHT_ERROR) + TOUCH < dropped * (1.0 - WEIGHT_ERROR) / WEIGHT_EXCESS) return true;
    if (least == -INF && kept * (1.0 - WEIGHT_ERROR) / WEIGHT_EXCESS > dropped * (1.0 + WEIGHT_ERROR) + TOUCH) return false;
  }
  return v.kernels->mass(v, before) < wanted_mass(top_p, v.kernels->mass(v, s));
}

// What noise chooses of top-p's survivors, whose edge is not looked for: the luckiest token of all is mostly one of them.
// If it is not, all of them stand before it.
int32_t draw_in_nucleus(const View& v, const NoiseKey& key, const Survivors& s, double top_p) {
  Survivors open = s;
  for (;;) {
    const int32_t id = draw(v, key, open, nullptr);
    if (id == first_largest(v) || in_nucleus(v, id, s, top_p)) return id;
    open.last_logit = v.at(id), open.last_id = id - 1;
  }
}

// The chosen token, then the `top` first, of the distribution over the survivors of v.
std::vector<LogprobEntry> logprobs_of(const View& v, const Survivors& s, int32_t chosen, int top, Scratch& tmp) {
  double log_total = log_double(double(v.kernels->mass(v, s)) * MASS_UNIT);
  auto logprob = [&](float logit) {
    return float((double(logit) - double(s.max)) * double(s.inv_temperature) - log_total);
  };
  float at = v.at(chosen);
  int32_t rank = 1;
  each_from(v, at, [&](float logit, int32_t id) { rank += logit > at || id < chosen; });
  std::vector<LogprobEntry> entries = {{chosen, logprob(at), rank}};
  if (top <= 0) return entries;
  take_top(v, std::min(top, v.n), s, tmp);
  std::sort(tmp.list.begin(), tmp.list.end(), before);
  for (size_t i = 0; i < tmp.list.size(); i++)
    entries.push_back({tmp.list[i].id, logprob(tmp.list[i].logit), int32_t(i) + 1});
  return entries;
}

Survivors everyone(const View& v, double temperature) {
  return {v.max, float(1.0 / temperature), -INF, -INF, std::numeric_limits<int32_t>::max()};
}

bool edits(const RowRequest& row) {
  const SamplingState& state = *row.state;
  return state.counts() || state.options.has_allowed || !state.options.bias.empty() || !row.banned.empty() || row.mask;
}

// -inf where the mask has no bit.
void forbid(Edits& edits, const uint32_t* mask) {
  for (int32_t begin = 0; begin < edits.count(); begin += 32) {
    const uint32_t word = mask[begin / 32];
    if (word == 0xffffffffu) continue;
    float* to = &edits[begin];
    const int32_t some = std::min(32, edits.count() - begin);
    for (int32_t i = 0; i < some; i++) to[i] = (word >> i) & 1 ? to[i] : -INF;
  }
}

// The row with bias, penalties, allowed ids, bans and mask applied.
View edit(const RowRequest& row, const View& raw, Scratch& tmp) {
  const SamplingState& state = *row.state;
  Edits& edits = tmp.edits;
  edits.begin(raw);
  for (auto [id, value] : state.options.bias) edits[id] += value;
  if (state.counts()) state.penalize(edits, row.extra);
  if (state.options.has_allowed) {
    tmp.saved.clear();
    for (int32_t id : state.options.allowed) tmp.saved.push_back(edits[id]);
    edits.fill(-INF);
    size_t i = 0;
    for (int32_t id : state.options.allowed) edits[id] = tmp.saved[i++];
  }
  for (int32_t id : row.banned) edits[id] = -INF;
  if (row.mask) forbid(edits, row.mask);
  const LogitRow edited = edits.end(*raw.kernels);
  return seen_as(edited, largest(edited.block_max, edited.blocks(), *raw.kernels), *raw.kernels);
}

}  // namespace

SamplingState::SamplingState(SamplingOptions o, const std::vector<int32_t>& prompt) : options(std::move(o)) {
  if (options.repetition != 1.0f)
    for (int32_t id : prompt) seen(id).prompt++;
}

SamplingState::Seen& SamplingState::seen(int32_t id) {
  auto [at, fresh] = place_.try_emplace(id, int32_t(seen_.size()));
  if (fresh) seen_.push_back({id, 0, 0});
  return seen_[at->second];
}

void SamplingState::append(int32_t token) {
  seen(token).output++;
  output_.push_back(token);
}

void SamplingState::truncate(size_t length) {
  for (; output_.size() > length; output_.pop_back()) seen(output_.back()).output--;
}

float SamplingState::penalized(float logit, int32_t output) const {
  if (logit == -INF) return logit;
  if (options.repetition != 1.0f) logit = logit > 0.0f ? logit / options.repetition : logit * options.repetition;
  if (output > 0) logit = (logit - options.frequency * float(output)) - options.presence;
  return std::clamp(logit, -LARGEST, LARGEST);
}

void Edits::begin(const LogitRow& row) {
  row_ = row;
  states_.assign(row.blocks(), PLAIN), last_.assign(row.blocks(), -1);
  block_max_.assign(row.block_max, row.block_max + row.blocks());
  if (copies_.size() < size_t(row.n)) copies_.resize(row.n);
  changes_.clear();
  row_.states = states_.data(), row_.copies = copies_.data(), row_.block_max = block_max_.data();
  row_.edits = this, row_.copy = [](void* edits, int block) { return static_cast<Edits*>(edits)->copy(block); };
}

const float* Edits::copy(int block) {
  const int begin = block * SCAN_BLOCK;
  float* to = copies_.data();
  if (begin + SCAN_BLOCK <= row_.n) __builtin_memcpy(to + begin, row_.x + begin, SCAN_BLOCK * sizeof(float));
  else std::copy(row_.x + begin, row_.x + row_.n, to + begin);
  for (int32_t i = last_[block]; i >= 0; i = changes_[i].next) to[changes_[i].id] = changes_[i].value;
  states_[block] = COPIED;
  return to;
}

float& Edits::operator[](int32_t id) {
  if (states_[id / SCAN_BLOCK] != COPIED) copy(id / SCAN_BLOCK);
  return copies_[id];
}

void Edits::set(int32_t id, float value) {
  const int block = id / SCAN_BLOCK;
  // The largest of the block may be another one now.
  if (states_[block] == COPIED || row_.x[id] >= block_max_[block] || value > block_max_[block]) {
    (*this)[id] = value;
    return;
  }
  changes_.push_back({id, value, last_[block]});
  last_[block] = int32_t(changes_.size()) - 1;
  states_[block] = CHANGED;
}

void Edits::fill(float value) {
  std::fill(states_.begin(), states_.end(), COPIED);
  std::fill(copies_.begin(), copies_.begin() + row_.n, value);
}

LogitRow Edits::end(const SamplingKernels& kernels) {
  for (int b = 0; b < row_.blocks(); b++) {
    const int begin = b * SCAN_BLOCK;
    if (states_[b] == COPIED)
      kernels.tops(copies_.data() + begin, std::min(SCAN_BLOCK, row_.n - begin), SCAN_BLOCK, &block_max_[b]);
  }
  return row_;
}

void SamplingState::penalize(Edits& logits, const std::vector<int32_t>& extra) const {
  std::vector<Seen> late;  // ids of `extra`: few
  for (int32_t id : extra) {
    auto same = std::find_if(late.begin(), late.end(), [id](const Seen& s) { return s.id == id; });
    if (same != late.end()) {
      same->output++;
      continue;
    }
    auto at = place_.find(id);
    Seen known = at == place_.end() ? Seen{id, 0, 0} : seen_[at->second];
    late.push_back({id, known.prompt, known.output + 1});
  }
  auto apply = [&](const Seen& s) {
    if (s.id >= 0 && s.id < logits.count()) logits.set(s.id, penalized(logits.at(s.id), s.output));
  };
  for (const Seen& s : seen_)
    if (s.id >= 0 && s.id < logits.count()) logits.fetch(s.id);
  for (const Seen& s : late) apply(s);
  for (const Seen& s : seen_) {
    if (s.prompt + s.output == 0) continue;
    bool done = std::any_of(late.begin(), late.end(), [&](const Seen& l) { return l.id == s.id; });
    if (!done) apply(s);
  }
}

RowChoice choose(const RowRequest& row, int vocab, int isa) {
  const SamplingKernels& kernels = sampling_kernels(isa);
  const SamplingOptions& o = row.state->options;
  Scratch& tmp = scratch();
  RowChoice out;
  View raw = look(row.logits, vocab, row.tops, tmp.raw_max, kernels), v = raw;
  if (!raw.finite) return out;
  if (edits(row)) {
    v = edit(row, raw, tmp);
    if (!v.finite) return out;
  }
  bool greedy = o.temperature < GREEDY_BELOW;
  Survivors s = everyone(v, greedy ? 1.0 : o.temperature);
  if (greedy) {
    out.id = first_largest(v);
  } else {
    NoiseKey key = {uint32_t(o.seed), uint32_t(o.seed >> 32), row.index, PURPOSE_TOKEN};
    apply_min_p(o.min_p, s);
    const bool edge_unseen = row.top < 0 || !row.processed;  // nobody asks for probabilities among the survivors
    if (edge_unseen && o.top_p < 1.0 && (o.top_k <= 0 || o.top_k >= vocab)) {
      out.id = draw_in_nucleus(v, key, s, o.top_p);
    } else {
      bool listed = truncate(v, o, s, tmp);
      out.id = draw(v, key, s, listed ? &tmp.list : nullptr);
    }
  }
  out.finite = true;
  if (row.top >= 0)
    out.logprobs = row.processed ? logprobs_of(v, s, out.id, row.top, tmp)
                                 : logprobs_of(raw, everyone(raw, 1.0), out.id, row.top, tmp);
  return out;
}

void each_row(size_t count, int vocab, int threads, void (*row)(void* context, size_t at), void* context) {
  struct Job {
    std::atomic<size_t> next{0};
    size_t count;
    void (*row)(void*, size_t);
    void* context;
  } job;
  job.count = count, job.row = row, job.context = context;
  auto work = [](void* given, int) {
    KeepDenormals keep;
    Job& j = *static_cast<Job*>(given);
    for (size_t i; (i = j.next.fetch_add(1, std::memory_order_relaxed)) < j.count;) j.row(j.context, i);
  };
  threads = int(std::min<size_t>(threads, count));
  if (threads < 2 || int64_t(count) * vocab < LOGITS_ALONE) return work(&job, 0);
  Pool::instance().run(threads, work, &job);
}

std::vector<LogprobEntry> raw_logprobs(const float* logits, const float* tops, int vocab, int32_t target, int top,
                                       int isa) {
  Scratch& tmp = scratch();
  View raw = look(logits, vocab, tops, tmp.raw_max, sampling_kernels(isa));
  if (!raw.finite) return {};
  return logprobs_of(raw, everyone(raw, 1.0), target, top, tmp);
}

}  // namespace octavo
