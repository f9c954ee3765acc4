// Feeds: rows of exports that a program reads, found before anything of its step is written. See program/feeds.py.
#include <cstring>
#include <stdexcept>

#include "session.h"

namespace octavo {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

}  // namespace

// "PROGRAM/EXPORT"
Feed::Source Session::find_export(const BufferRecord& wanted) const {
  const size_t cut = wanted.name.find('/');
  for (const auto& program : programs_) {
    if (program->record.name != wanted.name.substr(0, cut)) continue;
    for (const BufferRecord& theirs : program->record.buffers) {
      if (theirs.kind != BufferKind::EXPORT || theirs.name != wanted.name.substr(cut + 1)) continue;
      if (theirs.width != wanted.width || theirs.dtype != wanted.dtype) fail("export " + wanted.name + " has another shape");
      return {program.get(), &theirs};
    }
  }
  fail("no program exports " + wanted.name);
}

void Session::bind_feed(LoadedProgram& p, BoundOp& op) {
  const OpRecord& r = *op.record;
  Feed feed;
  for (size_t i = 0; i + 1 < r.ins.size(); ++i) feed.sources.push_back(find_export(p.record.buffers.at(r.ins[i])));
  const BufferRecord& out = p.record.buffers.at(r.outs.at(0));
  for (const Feed::Source& source : feed.sources) {
    if (source.program == &p) feed.held.resize(limits_.max_tokens * out.row_bytes());
  }
  feed.rows.resize(limits_.max_tokens);
  op.feed = static_cast<int32_t>(p.feeds.size());
  p.feeds.push_back(std::move(feed));
}

// Where the row of every token stands. What the step may overwrite, its own program's, is put aside.
void Session::find_rows(LoadedProgram& p, const Header& h) {
  for (Feed& feed : p.feeds) {
    for (int32_t t = 0; t < h.T; ++t) {
      int32_t row = h.source_row[t];
      const Feed::Source* found = nullptr;
      for (const Feed::Source& source : feed.sources) {
        const LoadedProgram& owner = *source.program;
        const int32_t count = source.buffer->rows(owner.T, owner.R, owner.N);
        if (row < count) {
          found = &source;
          break;
        }
        row -= count;
      }
      if (!found || row < 0) {
        const LoadedProgram& first = *feed.sources[0].program;
        fail("header: source_row " + std::to_string(h.source_row[t]) + " is no row of " + first.record.name + "/" +
             feed.sources[0].buffer->name + (first.T == 0 ? ", which has not run" : ""));
      }
      const size_t bytes = found->buffer->row_bytes();
      const LoadedProgram& owner = *found->program;
      const uint8_t* from = owner.arena.data() + owner.region_at[found->buffer->region] + row * bytes;
      if (&owner == &p) from = static_cast<uint8_t*>(std::memcpy(feed.held.data() + t * bytes, from, bytes));
      feed.rows[t] = from;
    }
  }
}

}  // namespace octavo
