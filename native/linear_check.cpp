// isa_self_check: small linears of every kind on one class against the portable one and against themselves.
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "denormals.h"
#include "linear.h"
#include "ops.h"
#include "panel.h"

namespace octavo {
namespace {

struct Noise {
  uint32_t state = 1;
  uint32_t next() { return state = state * 1664525u + 1013904223u; }
  uint8_t byte() { return (uint8_t)(next() >> 24); }
  float unit() { return (float)(int32_t)next() * 0x1p-31f; }
};

uint16_t bf16_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return (uint16_t)(bits >> 16);
}

struct Case {
  WeightKind kind;
  int m, n, group, offset;
  ScaleCode scale;
  BiasCode bias;
};

// A packed weight of noise. Scales between 2^-5 and 2^-4, or below that much times 64.
struct Sample {
  PackedLinear packed{};
  std::unique_ptr<uint8_t[]> owned;

  Sample(const Case& c, Noise& noise) {
    std::vector<uint8_t> data((size_t)c.m * c.n), scale, bias;
    std::vector<uint16_t> floats((size_t)c.m * c.n), super_scale, super_bias;
    const int bits = 4 + plane_bits(c.kind);
    for (uint8_t& b : data) b = plane_bits(c.kind) ? noise.byte() & ((1 << bits) - 1) : noise.byte();
    if (c.kind == WeightKind::FP8)
      for (uint8_t& b : data) b &= 0xBF;  // numbers, and none that outweighs all others
    for (uint16_t& b : floats) b = bf16_bits(noise.unit());
    LogicalTensor t{};
    t.kind = c.kind;
    t.m = c.m;
    t.n = c.n;
    t.data = is_grouped(c.kind) ? (const void*)data.data() : floats.data();
    if (is_grouped(c.kind)) {
      t.group = c.group;
      t.offset = c.offset;
      const size_t scales = (size_t)c.m * (c.n / c.group), supers = (size_t)c.m * (c.n / SUPER_GROUP);
      const auto halves = [&](std::vector<uint8_t>& out, size_t count) {
        for (size_t i = 0; i < count; i++) {
          out.push_back(noise.byte());
          out.push_back(0x28);
        }
      };
      t.scale_code = c.scale;
      t.bias_code = c.bias;
      if (c.scale == ScaleCode::U8) {
        for (size_t i = 0; i < scales; i++) {
          scale.push_back(noise.byte() & 63);
          bias.push_back(noise.byte() & 63);
        }
        for (size_t i = 0; i < supers; i++) {
          super_scale.push_back(0x1400 | noise.byte());
          super_bias.push_back(0x9400 | noise.byte());
        }
        t.super_scale = super_scale.data();
        t.super_bias = super_bias.data();
      } else if (c.scale == ScaleCode::F16) {
        halves(scale, scales);
        halves(bias, scales);
      } else {
        for (size_t i = 0; i < scales; i++) {
          if (c.scale == ScaleCode::E8M0) scale.push_back(120 + noise.byte() % 8);
          else scale.insert(scale.end(), {noise.byte(), noise.byte(), noise.byte(), 0x3D});
          bias.insert(bias.end(), {(uint8_t)(noise.byte() & 15), 0});
        }
      }
      t.scale = scale.data();
      t.bias = bias.data();
    }
    const size_t bytes = packed_bytes(t);
    owned = std::make_unique<uint8_t[]>(bytes + 64);
    packed.data = (uint8_t*)(((uintptr_t)owned.get() + 63) / 64 * 64);
    pack_linear(t, packed);
  }
};

std::vector<float> run_all(Isa isa, const Sample& w, ActKind input, const void* x, int rows, int ldx) {
  std::vector<float> out((size_t)rows * w.packed.m);
  std::vector<uint8_t> scratch(linear_scratch_bytes(w.packed.n, rows));
  LinearArgs a{};
  a.w = &w.packed;
  a.input = input;
  a.x = x;
  a.rows = rows;
  a.ldx = ldx;
  a.out = out.data();
  a.ldo = w.packed.m;
  const LinearKernels& kernels = linear_kernels(isa);
  kernels.prepare(a, scratch.data());
  kernels.run(a, 0, w.packed.panels, scratch.data());
  return out;
}

bool agree(Isa isa, const std::vector<float>& got, const std::vector<float>& want) {
  if (isa != Isa::AVX512) return std::memcmp(got.data(), want.data(), got.size() * 4) == 0;
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); i++) {
    error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    size += (double)want[i] * want[i];
  }
  return error <= 1e-9 * size;
}

bool check_case(Isa isa, const Case& c, Noise& noise) {
  const Sample w(c, noise);
  const int ldx = (c.n + K_ALIGN - 1) / K_ALIGN * K_ALIGN, most = 48;
  std::vector<uint16_t> x((size_t)most * ldx);
  for (int r = 0; r < most; r++)
    for (int k = 0; k < c.n; k++) x[(size_t)r * ldx + k] = bf16_bits(noise.unit());
  const std::vector<float> want = run_all(Isa::PORTABLE, w, ActKind::BF16, x.data(), 33, ldx);
  for (const int rows : {1, 17, 33}) {
    const std::vector<float> got = run_all(isa, w, ActKind::BF16, x.data(), rows, ldx);
    const std::vector<float> head(want.begin(), want.begin() + (size_t)rows * c.m);
    if (!agree(isa, got, head)) return false;
    const std::vector<float> alone = run_all(isa, w, ActKind::BF16, x.data() + (size_t)(rows - 1) * ldx, 1, ldx);
    if (std::memcmp(alone.data(), got.data() + (size_t)(rows - 1) * c.m, (size_t)c.m * 4)) return false;
  }
  return true;
}

std::vector<uint8_t> records_of(Isa isa, ActKind kind, const std::vector<float>& x, int rows, int n, int ld) {
  std::vector<uint8_t> out((size_t)rows * ld);
  ElementArgs e{};
  e.a = x.data(), e.records = out.data(), e.kind = kind, e.width = n, e.ldo = ld;
  op_kernels(isa).quantize(e, 0, rows);
  return out;
}

// Integer activations: the same bits in every class, for any number of rows.
bool check_records(Isa isa, const Case& c, ActKind kind, Noise& noise) {
  const Sample w(c, noise);
  const int ld = (c.n + BLOCK - 1) / BLOCK * record_bytes(kind), most = 39;
  std::vector<float> x((size_t)most * c.n);
  for (float& value : x) value = noise.unit();
  const std::vector<uint8_t> records = records_of(Isa::PORTABLE, kind, x, most, c.n, ld);
  if (records_of(isa, kind, x, most, c.n, ld) != records) return false;
  const std::vector<float> want = run_all(Isa::PORTABLE, w, kind, records.data(), most, ld);
  for (const int rows : {1, 7, most}) {
    const std::vector<float> got = run_all(isa, w, kind, records.data(), rows, ld);
    if (std::memcmp(got.data(), want.data(), got.size() * 4)) return false;
  }
  return true;
}

bool passes(Isa isa) {
  static const Case CASES[] = {
      {WeightKind::BF16, 40, 104, 0, 0, ScaleCode::F16, BiasCode::NONE},
      {WeightKind::I8, 40, 96, 32, 0, ScaleCode::F16, BiasCode::NONE},
      {WeightKind::I8, 33, 256, 16, 0, ScaleCode::U8, BiasCode::NONE},
      {WeightKind::U4, 40, 96, 32, 8, ScaleCode::F16, BiasCode::NONE},
      {WeightKind::U4, 40, 96, 32, 0, ScaleCode::F16, BiasCode::VALUE},
      {WeightKind::U4, 33, 256, 32, 0, ScaleCode::U8, BiasCode::VALUE},
      {WeightKind::U4, 40, 256, 128, 8, ScaleCode::F16, BiasCode::NONE},
      {WeightKind::U4, 40, 192, 64, 0, ScaleCode::F32, BiasCode::ZERO},
      {WeightKind::FP4, 40, 96, 32, 0, ScaleCode::E8M0, BiasCode::NONE},
      {WeightKind::NL4, 33, 96, 32, 0, ScaleCode::F16, BiasCode::NONE},
      {WeightKind::U5, 40, 96, 32, 0, ScaleCode::F16, BiasCode::VALUE},
      {WeightKind::U6, 33, 256, 16, 32, ScaleCode::U8, BiasCode::NONE},
      {WeightKind::FP8, 40, 192, 64, 0, ScaleCode::F32, BiasCode::NONE},
  };
  const FlushDenormals flush;
  Noise noise;
  for (const Case& c : CASES)
    if (!check_case(isa, c, noise)) return false;
  for (const Case& c : CASES) {
    if (!is_whole(c.kind)) continue;
    for (const ActKind kind : {ActKind::I15, ActKind::I8G32, ActKind::I15G32, ActKind::I15Q})
      if (!check_records(isa, c, kind, noise)) return false;
  }
  return true;
}

}  // namespace

bool isa_self_check(Isa isa) {
  if (!isa_supported(isa)) return false;
  static std::atomic<int> known[5];  // 0: not asked yet
  std::atomic<int>& answer = known[static_cast<int>(isa)];
  if (!answer) answer = passes(isa) ? 1 : -1;
  return answer > 0;
}

}  // namespace octavo
