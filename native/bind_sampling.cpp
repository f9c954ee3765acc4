// Sampling for Python: SamplingState, sample, prompt_logprobs, gumbel_noise.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "sampling.h"
#include "sampling_kernels.h"
#include "sampling_math.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_logits(const Logits& logits) {
  if (logits.shape(1) == 0 || logits.shape(1) > size_t(sampling_math::MAX_VOCABULARY))
    throw nb::value_error("sampling: the vocabulary must have 1 to 524288 tokens");
}

const float* row_of(const Logits& logits, int64_t row) {
  if (row < 0 || row >= int64_t(logits.shape(0))) throw nb::index_error("sampling: no such row of logits");
  return logits.data() + size_t(row) * logits.shape(1);
}

void check_ids(const std::vector<int32_t>& ids, size_t vocab) {
  for (int32_t id : ids)
    if (id < 0 || size_t(id) >= vocab) throw nb::value_error("sampling: a token id is outside the vocabulary");
}

nb::object entries_of(const std::vector<LogprobEntry>& entries) {
  nb::list out;
  for (const LogprobEntry& e : entries) out.append(nb::make_tuple(e.id, e.logprob, e.rank));
  return nb::tuple(out);
}

// (state, logits row, index), or with extra, banned, mask or None, top, processed after them
RowRequest parse(const nb::tuple& row, const Logits& logits) {
  RowRequest out;
  size_t vocab = logits.shape(1);
  out.state = nb::cast<const SamplingState*>(row[0]);
  out.logits = row_of(logits, nb::cast<int64_t>(row[1]));
  out.index = nb::cast<uint32_t>(row[2]);
  check_ids(out.state->options.allowed, vocab);
  for (auto [id, value] : out.state->options.bias)
    if (id < 0 || size_t(id) >= vocab) throw nb::value_error("sampling: a biased id is outside the vocabulary");
  if (nb::len(row) == 3) return out;
  if (nb::object extra = row[3]; nb::len(extra)) out.extra = nb::cast<std::vector<int32_t>>(extra);
  if (nb::object banned = row[4]; nb::len(banned)) out.banned = nb::cast<std::vector<int32_t>>(banned);
  if (!row[5].is_none()) {
    Mask mask = nb::cast<Mask>(row[5]);
    if (mask.shape(0) < (vocab + 31) / 32) throw nb::value_error("sampling: the mask is shorter than the vocabulary");
    out.mask = mask.data();
  }
  out.top = nb::cast<int32_t>(row[6]);
  out.processed = nb::cast<bool>(row[7]);
  check_ids(out.banned, vocab);
  return out;
}

template <class F>
void each(size_t count, const Logits& logits, int threads, F&& row) {
  each_row(count, int(logits.shape(1)), threads, [](void* f, size_t i) { (*static_cast<F*>(f))(i); }, &row);
}

nb::list sample(const Logits& logits, const nb::list& rows, int isa, int threads) {
  check_logits(logits);
  std::vector<RowRequest> requests;
  requests.reserve(nb::len(rows));
  for (nb::handle row : rows) requests.push_back(parse(nb::cast<nb::tuple>(row), logits));
  std::vector<RowChoice> choices(requests.size());
  {
    nb::gil_scoped_release release;
    each(requests.size(), logits, threads, [&](size_t i) { choices[i] = choose(requests[i], int(logits.shape(1)), isa); });
  }
  nb::list out;
  for (size_t i = 0; i < choices.size(); i++) {
    nb::object logprobs = requests[i].top >= 0 && choices[i].finite ? entries_of(choices[i].logprobs) : nb::none();
    out.append(nb::make_tuple(choices[i].id, choices[i].finite, logprobs));
  }
  return out;
}

// rows: (logits row, target, top)
nb::list prompt_logprobs(const Logits& logits, const nb::list& rows, int isa, int threads) {
  check_logits(logits);
  struct Wanted {
    const float* x;
    int32_t target, top;
    std::vector<LogprobEntry> entries;
  };
  std::vector<Wanted> wanted;
  wanted.reserve(nb::len(rows));
  for (nb::handle handle : rows) {
    nb::tuple row = nb::cast<nb::tuple>(handle);
    int32_t target = nb::cast<int32_t>(row[1]), top = nb::cast<int32_t>(row[2]);
    check_ids({target}, logits.shape(1));
    wanted.push_back({row_of(logits, nb::cast<int64_t>(row[0])), target, top, {}});
  }
  {
    nb::gil_scoped_release release;
    each(wanted.size(), logits, threads, [&](size_t i) {
      wanted[i].entries = raw_logprobs(wanted[i].x, int(logits.shape(1)), wanted[i].target, wanted[i].top, isa);
    });
  }
  nb::list out;
  for (const Wanted& row : wanted) out.append(entries_of(row.entries));
  return out;
}

double gumbel_noise(uint64_t seed, uint32_t index, uint32_t token, uint32_t purpose) {
  using namespace sampling_math;
  return noise({uint32_t(seed), uint32_t(seed >> 32), index, purpose}, token);
}

void init_state(SamplingState* self, double temperature, int32_t top_k, double top_p, double min_p, float presence,
                float frequency, float repetition, uint64_t seed, std::vector<std::pair<int32_t, float>> bias,
                nb::object allowed, const std::vector<int32_t>& prompt) {
  SamplingOptions o = {temperature, top_p,      min_p, top_k,           presence,
                       frequency,   repetition, seed,  std::move(bias), {},       false};
  if (!allowed.is_none()) {
    o.allowed = nb::cast<std::vector<int32_t>>(allowed);
    o.has_allowed = true;
  }
  new (self) SamplingState(std::move(o), prompt);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<SamplingState>(m, "SamplingState")
      .def("__init__", init_state, nb::kw_only(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "presence"_a,
           "frequency"_a, "repetition"_a, "seed"_a, "bias"_a, "allowed"_a.none(), "prompt"_a)
      .def_prop_ro("counts", &SamplingState::counts)
      .def_prop_ro("num_output", &SamplingState::num_output)
      .def("append", [](SamplingState& s, const std::vector<int32_t>& ids) { for (int32_t id : ids) s.append(id); })
      .def("truncate", &SamplingState::truncate);
  m.def("sample", sample, "logits"_a, "rows"_a, "isa"_a = -1, "threads"_a = 1);
  m.def("prompt_logprobs", prompt_logprobs, "logits"_a, "rows"_a, "isa"_a = -1, "threads"_a = 1);
  m.def("gumbel_noise", gumbel_noise, "seed"_a, "index"_a, "token"_a, "purpose"_a);
}

}  // namespace octavo
