// The step header from a plan's rows (request.py): one pass to size it, one to fill it. Fields: header.h.
// No array crosses over to Python here: that costs more than a step's rows, caches being cold.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

#include "header.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Words = nb::ndarray<nb::numpy, const int32_t, nb::ndim<1>, nb::c_contig>;

// Attribute names, interned once: they are looked up for every row of every step.
struct Names {
  PyObject* slot = PyUnicode_InternFromString("slot");
  PyObject* start = PyUnicode_InternFromString("start");
  PyObject* token_ids = PyUnicode_InternFromString("token_ids");
  PyObject* logits_from = PyUnicode_InternFromString("logits_from");
  PyObject* num_drafts = PyUnicode_InternFromString("num_drafts");
  PyObject* parents = PyUnicode_InternFromString("parents");
  PyObject* no_write = PyUnicode_InternFromString("no_write");
  PyObject* source = PyUnicode_InternFromString("source");
  PyObject* target = PyUnicode_InternFromString("target");
  PyObject* group = PyUnicode_InternFromString("group");
  PyObject* first = PyUnicode_InternFromString("first");
  PyObject* blocks = PyUnicode_InternFromString("blocks");
  PyObject* replay = PyUnicode_InternFromString("replay");
  PyObject* restore = PyUnicode_InternFromString("restore");
  PyObject* snapshots = PyUnicode_InternFromString("snapshots");
};

const Names& names() {
  static const Names* const all = new Names();
  return *all;
}

nb::object get(nb::handle object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name);
  if (!value) throw nb::python_error();
  return nb::steal(value);
}

int32_t whole(nb::handle value) { return nb::cast<int32_t>(value); }
int32_t whole(nb::handle object, PyObject* name) { return whole(get(object, name)); }

// A row of the plan as the header needs it.
struct RowView {
  nb::tuple ids;
  int32_t slot, start, logits_from;
};

std::vector<RowView> views(nb::sequence rows) {
  std::vector<RowView> out;
  out.reserve(nb::len(rows));
  const Names& n = names();
  for (nb::handle row : rows)
    out.push_back({nb::cast<nb::tuple>(get(row, n.token_ids)), whole(row, n.slot), whole(row, n.start),
                   whole(row, n.logits_from)});
  return out;
}

// Drafts of a tree: the parent's step row, and the position after its parent's. Those that go on from the row before
// them, without a branch so far, are a chain's: they share their tile with it.
void fill_tree(nb::handle row, const nb::tuple& parents, int32_t begin, int32_t count, int32_t* parent,
               int32_t* position) {
  const int32_t at = begin + count - whole(row, names().num_drafts);
  for (size_t draft = 0; draft < nb::len(parents); draft++) {
    const int32_t above = whole(parents[draft]);
    if (above < 0 || above >= at - begin + int32_t(draft)) throw nb::value_error("header: a draft before its parent");
    const int32_t t = at + int32_t(draft);
    parent[t] = begin + above == t - 1 && parent[t - 1] < 0 ? -1 : begin + above;
    position[t] = position[begin + above] + 1;
  }
}

// What each row does to recurrent state: of a plan that says nothing of it, all tokens are firm.
void fill_states(nb::sequence rows, nb::sequence states, const int32_t* row_begin, int32_t* firm, int32_t* replay,
                 int32_t* restore, int32_t* snapshots) {
  const Names& n = names();
  const bool given = nb::len(states) != 0;
  for (size_t i = 0; i < nb::len(rows); i++) {
    firm[i] = row_begin[i + 1] - row_begin[i], replay[i] = restore[i] = 0;
    if (!given) continue;
    nb::handle state = states[i];
    firm[i] -= whole(rows[i], n.num_drafts), replay[i] = whole(state, n.replay), restore[i] = whole(state, n.restore);
    for (nb::handle taken : get(state, n.snapshots)) {
      *snapshots++ = int32_t(i), *snapshots++ = whole(nb::object(taken[0])), *snapshots++ = whole(nb::object(taken[1]));
    }
  }
}

void write(StepHeader& out, nb::sequence rows, nb::sequence copies, nb::sequence tables, nb::sequence states,
           nb::sequence source_rows) {
  const Names& n = names();
  const std::vector<RowView> view = views(rows);
  size_t T = 0, R = 0, S = 0, U = 0;
  const size_t N = view.size(), C = nb::len(copies);
  for (const RowView& row : view) T += nb::len(row.ids), R += nb::len(row.ids) - row.logits_from;
  for (nb::handle update : tables) U += 4 + nb::len(get(update, n.blocks));
  for (nb::handle state : states) S += nb::len(get(state, n.snapshots));
  if (nb::len(source_rows) != 0 && nb::len(source_rows) != T) throw nb::value_error("header: one source row a token");
  if (nb::len(states) != 0 && nb::len(states) != N) throw nb::value_error("header: one step of state a row");
  out.words.resize(header_words(T, R, N, C, S, U));

  int32_t* at = out.words.data();
  const size_t scalars[HEADER_SCALARS] = {size_t(HEADER_VERSION), T, R, N, C, S, U};
  for (size_t value : scalars) *at++ = int32_t(value);
  auto field = [&at](size_t length) {
    int32_t* begin = at;
    at += length;
    return begin;
  };
  int32_t *token = field(T), *position = field(T), *index = field(T), *request = field(T), *adapter = field(T);
  int32_t *flags = field(T), *parent = field(T), *source = field(T);
  int32_t *slot = field(N), *row_begin = field(N + 1), *context = field(N);
  int32_t *firm = field(N), *replay = field(N), *restore = field(N), *logit_row = field(R);
  int32_t t = 0;
  for (size_t i = 0; i < N; i++) {
    const RowView& row = view[i];
    const int32_t begin = t, count = int32_t(nb::len(row.ids));
    row_begin[i] = begin, slot[i] = row.slot, context[i] = row.start;
    for (int32_t k = 0; k < count; k++, t++) {
      token[t] = whole(row.ids[k]), position[t] = index[t] = row.start + k, request[t] = int32_t(i);
      adapter[t] = flags[t] = source[t] = 0, parent[t] = -1;
      if (k >= row.logits_from) *logit_row++ = t;
    }
    nb::handle given = rows[i];
    if (nb::cast<bool>(get(given, n.no_write))) flags[begin] = FLAG_NO_WRITE;
    if (count == 1) continue;  // no drafts
    const nb::tuple parents = nb::cast<nb::tuple>(get(given, n.parents));
    if (nb::len(parents)) fill_tree(given, parents, begin, count, parent, position);
  }
  row_begin[N] = t;
  if (nb::len(source_rows))
    for (size_t i = 0; i < T; i++) source[i] = whole(nb::object(source_rows[i]));
  for (nb::handle copy : copies)
    *at++ = whole(copy, n.slot), *at++ = whole(copy, n.source), *at++ = whole(copy, n.target);
  fill_states(rows, states, row_begin, firm, replay, restore, field(3 * S));
  for (nb::handle update : tables) {
    const nb::tuple blocks = nb::cast<nb::tuple>(get(update, n.blocks));
    *at++ = whole(update, n.slot), *at++ = whole(update, n.group), *at++ = whole(update, n.first);
    *at++ = int32_t(nb::len(blocks));
    for (nb::handle block : blocks) *at++ = whole(block);
  }
}

Words words(nb::handle self) {
  const StepHeader& header = nb::cast<StepHeader&>(self);
  return Words(header.words.data(), {header.words.size()}, self);
}

// Whether every request of the step has one token and wants its logits.
bool one_each(const StepHeader& header) {
  Header h;
  return parse_header(header.words.data(), header.words.size(), h) && h.T == h.N && h.R == h.N;
}

}  // namespace

void bind_header(nb::module_& m) {
  nb::class_<StepHeader>(m, "StepHeader")
      .def("__init__", [](StepHeader* self, size_t words) { (new (self) StepHeader())->words.reserve(words); },
           nb::arg("words") = 0)
      .def("write", &write, nb::arg("rows"), nb::arg("copies"), nb::arg("tables"), nb::arg("states"),
           nb::arg("source_rows"))
      .def_prop_ro("one_each", &one_each)
      .def("words", &words)
      .def("__array__", [](nb::handle self, nb::args, nb::kwargs) { return words(self); });
}

}  // namespace octavo
