// Sampling for Python: SamplingState, Cohort, sample, prompt_logprobs, gumbel_noise.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "header.h"
#include "sampling.h"
#include "sampling_kernels.h"
#include "sampling_math.h"
#include "session.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {

namespace {

using Array = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

static_assert(PANEL == TOPS_WIDTH);

// Logits as they came: a session's own, or an array.
struct Logits {
  const float* data;
  size_t rows, vocab;
  Array array;  // holds what it points to
  const float* tops = nullptr;
  size_t tops_width = 0;

  const float* row(int64_t at) const {
    if (at < 0 || at >= int64_t(rows)) throw nb::index_error("sampling: no such row of logits");
    return data + size_t(at) * vocab;
  }
  const float* tops_of(int64_t at) const { return tops ? tops + size_t(at) * tops_width : nullptr; }
};

Logits logits_of(nb::handle given) {
  Logits out{};
  if (nb::isinstance<Session::Export>(given)) {
    const Session::View view = nb::cast<const Session::Export&>(given).view();
    out.data = view.data, out.rows = size_t(view.rows), out.vocab = size_t(view.width);
    out.tops = view.tops, out.tops_width = size_t(view.tops_width);
  } else {
    out.array = nb::cast<Array>(given);
    out.data = out.array.data(), out.rows = out.array.shape(0), out.vocab = out.array.shape(1);
  }
  if (out.vocab == 0 || out.vocab > size_t(sampling_math::MAX_VOCABULARY))
    throw nb::value_error("sampling: the vocabulary must have 1 to 524288 tokens");
  return out;
}

void check_ids(const std::vector<int32_t>& ids, size_t vocab) {
  for (int32_t id : ids)
    if (id < 0 || size_t(id) >= vocab) throw nb::value_error("sampling: a token id is outside the vocabulary");
}

void check_options(const SamplingOptions& options, size_t vocab) {
  check_ids(options.allowed, vocab);
  for (auto [id, value] : options.bias)
    if (id < 0 || size_t(id) >= vocab) throw nb::value_error("sampling: a biased id is outside the vocabulary");
}

nb::object entries_of(const std::vector<LogprobEntry>& entries) {
  nb::list out;
  for (const LogprobEntry& e : entries) out.append(nb::make_tuple(e.id, e.logprob, e.rank));
  return nb::tuple(out);
}

// (state, logits row, index), or with extra, banned, mask or None, top, processed after them
RowRequest parse(const nb::tuple& row, const Logits& logits) {
  RowRequest out;
  size_t vocab = logits.vocab;
  out.state = nb::cast<const SamplingState*>(row[0]);
  const int64_t at = nb::cast<int64_t>(row[1]);
  out.logits = logits.row(at), out.tops = logits.tops_of(at);
  out.index = nb::cast<uint32_t>(row[2]);
  check_options(out.state->options, vocab);
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
  each_row(count, int(logits.vocab), threads, [](void* f, size_t i) { (*static_cast<F*>(f))(i); }, &row);
}

nb::list sample(nb::handle given, const nb::list& rows, int isa, int threads) {
  const Logits logits = logits_of(given);
  std::vector<RowRequest> requests;
  requests.reserve(nb::len(rows));
  for (nb::handle row : rows) requests.push_back(parse(nb::cast<nb::tuple>(row), logits));
  std::vector<RowChoice> choices(requests.size());
  {
    nb::gil_scoped_release release;
    each(requests.size(), logits, threads, [&](size_t i) { choices[i] = choose(requests[i], int(logits.vocab), isa); });
  }
  nb::list out;
  for (size_t i = 0; i < choices.size(); i++) {
    nb::object logprobs = requests[i].top >= 0 && choices[i].finite ? entries_of(choices[i].logprobs) : nb::none();
    out.append(nb::make_tuple(choices[i].id, choices[i].finite, logprobs));
  }
  return out;
}

// Requests that are sampled together, step after step, and need nothing but their own state: no drafts, no
// log-probabilities, no bans. Row i of a step's logits is that of request i. Where tokens are counted, the one that a step
// computes is counted before the next is chosen: it is the last that was sampled.
struct Cohort {
  nb::list held;  // the states, as Python knows them
  std::vector<SamplingState*> states;
  std::vector<int32_t> prompts;  // tokens of each prompt
  int threads;
  size_t checked = 0;  // the vocabulary that their ids were found to lie in
};

void init_cohort(Cohort* self, nb::list states, std::vector<int32_t> prompts, int threads) {
  new (self) Cohort{states, {}, std::move(prompts), threads, 0};
  for (nb::handle state : states) self->states.push_back(nb::cast<SamplingState*>(state));
  if (self->prompts.size() != self->states.size()) throw nb::value_error("sampling: one prompt a state");
}

// Whether the state has counted all output up to `token` at this index; it may be the next one.
bool count_last(SamplingState& state, int32_t token, int32_t index, int32_t prompt) {
  const auto output = int64_t(index) + 1 - prompt;
  if (output > 0 && int64_t(state.num_output()) + 1 == output) state.append(token);
  return int64_t(state.num_output()) == output;
}

// One id a request, -1 where its logits are not finite. The header says at which index each of them stands.
nb::tuple sample_cohort(Cohort& self, nb::handle given, const StepHeader& words) {
  const Logits logits = logits_of(given);
  const size_t count = self.states.size();
  Header header;
  if (!parse_header(words.words.data(), words.words.size(), header) || size_t(header.N) != count ||
      size_t(header.T) != count || logits.rows < count)
    throw nb::value_error("sampling: the step is not one of this cohort");
  for (size_t i = 0; i < count; i++)
    if (self.states[i]->counts() && !count_last(*self.states[i], header.token[i], header.context[i], self.prompts[i]))
      throw nb::value_error("sampling: the step is not one of this cohort");
  if (self.checked != logits.vocab)
    for (const SamplingState* state : self.states) check_options(state->options, logits.vocab);
  self.checked = logits.vocab;
  std::vector<int32_t> ids(count);
  {
    nb::gil_scoped_release release;
    each(count, logits, self.threads, [&](size_t i) {
      RowRequest row{};
      row.state = self.states[i], row.logits = logits.row(int64_t(i)), row.tops = logits.tops_of(int64_t(i));
      row.index = uint32_t(header.context[i] + 1);
      ids[i] = choose(row, int(logits.vocab), -1).id;
    });
  }
  nb::object out = nb::steal(PyTuple_New(Py_ssize_t(count)));
  if (!out.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < count; i++) PyTuple_SetItem(out.ptr(), Py_ssize_t(i), nb::int_(ids[i]).release().ptr());
  return nb::cast<nb::tuple>(out);
}

// rows: (logits row, target, top)
nb::list prompt_logprobs(nb::handle given, const nb::list& rows, int isa, int threads) {
  const Logits logits = logits_of(given);
  struct Wanted {
    const float *x, *tops;
    int32_t target, top;
    std::vector<LogprobEntry> entries;
  };
  std::vector<Wanted> wanted;
  wanted.reserve(nb::len(rows));
  for (nb::handle handle : rows) {
    nb::tuple row = nb::cast<nb::tuple>(handle);
    int32_t target = nb::cast<int32_t>(row[1]), top = nb::cast<int32_t>(row[2]);
    check_ids({target}, logits.vocab);
    const int64_t at = nb::cast<int64_t>(row[0]);
    wanted.push_back({logits.row(at), logits.tops_of(at), target, top, {}});
  }
  {
    nb::gil_scoped_release release;
    each(wanted.size(), logits, threads, [&](size_t i) {
      Wanted& w = wanted[i];
      w.entries = raw_logprobs(w.x, w.tops, int(logits.vocab), w.target, w.top, isa);
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
      .def_prop_ro("last_output", &SamplingState::last_output)
      .def("append", [](SamplingState& s, const std::vector<int32_t>& ids) { for (int32_t id : ids) s.append(id); })
      .def("truncate", &SamplingState::truncate);
  nb::class_<Cohort>(m, "Cohort")
      .def("__init__", init_cohort, "states"_a, "prompts"_a, "threads"_a)
      .def("sample", sample_cohort, "logits"_a, "header"_a);
  m.def("sample", sample, "logits"_a, "rows"_a, "isa"_a = -1, "threads"_a = 1);
  m.def("prompt_logprobs", prompt_logprobs, "logits"_a, "rows"_a, "isa"_a = -1, "threads"_a = 1);
  m.def("gumbel_noise", gumbel_noise, "seed"_a, "index"_a, "token"_a, "purpose"_a);
}

}  // namespace octavo
