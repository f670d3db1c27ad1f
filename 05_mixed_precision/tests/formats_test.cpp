// Every conversion by hand against c10's own types and against tensors, bit by bit; TF32, which has no type, by its arithmetic.
#include <gtest/gtest.h>

#include "launch/torch.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <random>

#include "formats.hpp"
#include "launch/cpu_features.hpp"

namespace manyranks {
namespace {

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

// A million floats of every kind: all bit patterns are equally likely, so 1 in 128 is NaN or subnormal; a quarter is drawn where the
// narrow formats live, a quarter exactly between two neighbours of a narrow format.
std::vector<float> many_floats(const Format& format) {
  std::mt19937 random(17);
  std::vector<float> values{0.0F, -0.0F, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                            std::bit_cast<float>(0x7f800001U), std::bit_cast<float>(0xffffffffU), std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::max(), 65504.0F, 65519.996F, 65520.0F, 448.0F, 464.0F, 464.00003F, 57344.0F, 61440.0F};
  while (values.size() < 1'000'000) {
    const uint32_t bits = static_cast<uint32_t>(random());
    switch (values.size() % 4) {
      case 0: values.push_back(std::ldexp(1.0F + static_cast<float>(bits & 0x7fffffU) * 0x1p-23F, static_cast<int>(bits >> 23) % 48 - 30)); break;
      case 1: {  // a tie: the middle of two neighbours
        const uint32_t code = bits % format.largest();
        values.push_back(static_cast<float>((static_cast<double>(decode(code, format)) + decode(code + 1, format)) / 2) * (bits >> 31 ? -1.0F : 1.0F));
        break;
      }
      default: values.push_back(std::bit_cast<float>(bits));
    }
  }
  return values;
}

template <class Type, class Bits>
void check(const Format& format, torch::Dtype dtype, torch::Dtype bits_dtype) {
  // All codes, to float.
  for (uint32_t code = 0; code < (1U << format.bits()); ++code) {
    const Type theirs(static_cast<Bits>(code), Type::from_bits());
    ASSERT_EQ(bits_of(decode(code, format)), bits_of(static_cast<float>(theirs))) << format.name << " " << code;
    if (std::isnan(decode(code, format))) continue;
    ASSERT_EQ(encode(decode(code, format), format), code) << format.name << ", there and back";
  }
  // A million floats, from float: against the type.
  const std::vector<float> values = many_floats(format);
  int64_t ties = 0, subnormal = 0, nan = 0;
  std::vector<uint32_t> ours(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const Type theirs(values[i]);
    ours[i] = encode(values[i], format);
    ASSERT_EQ(ours[i], static_cast<uint32_t>(theirs.x)) << format.name << " of " << values[i] << ", bits " << bits_of(values[i]);
    const uint32_t magnitude = ours[i] & (format.sign_bit() - 1);
    subnormal += magnitude > 0 && magnitude < (1U << format.mantissa_bits);
    nan += std::isnan(values[i]);
    const Cut parts = cut(values[i], format);
    ties += std::isfinite(values[i]) && parts.shift > 0 && parts.rest == (1U << (parts.shift - 1));
  }
  EXPECT_GT(ties, 10000) << format.name;
  EXPECT_GT(subnormal, 1000) << format.name;
  EXPECT_GT(nan, 1000) << format.name;
  // And against tensors, whose vector instructions choose other NaNs (bfloat16 ffff; fp16 keeps the payload).
  const auto as_floats = torch::from_blob(const_cast<float*>(values.data()), {static_cast<int64_t>(values.size())}, torch::kFloat);
  const auto codes = as_floats.to(dtype).view(bits_dtype).contiguous();
  const auto* theirs = static_cast<const Bits*>(codes.data_ptr());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(decode(theirs[i], format)));
    } else {
      ASSERT_EQ(ours[i], theirs[i]) << format.name << " of " << values[i] << " in a tensor";
    }
  }
}

TEST(Formats, HalfIsTorchs) { check<c10::Half, uint16_t>(fp16, torch::kHalf, torch::kShort); }
TEST(Formats, Bfloat16IsTorchs) { check<c10::BFloat16, uint16_t>(bf16, torch::kBFloat16, torch::kShort); }
TEST(Formats, Float8E4m3IsTorchs) { check<c10::Float8_e4m3fn, uint8_t>(fp8_e4m3, torch::kFloat8_e4m3fn, torch::kByte); }
TEST(Formats, Float8E5m2IsTorchs) { check<c10::Float8_e5m2, uint8_t>(fp8_e5m2, torch::kFloat8_e5m2, torch::kByte); }

// TF32 is a float whose last 13 bits are zero. Nearest of the two neighbours, the even one of two equally near; fp32 keeps every bit.
TEST(Formats, Tf32IsTheNearestFloatWithThirteenZeroBits) {
  for (const float value : many_floats(tf32)) {
    if (std::isnan(value)) continue;
    ASSERT_EQ(bits_of(round_to(value, fp32)), bits_of(value));
    const uint32_t rounded = bits_of(round_to(value, tf32)), below = bits_of(value) & ~0x1fffU, above = below + 0x2000U;
    if (std::isinf(value)) {
      ASSERT_EQ(rounded, bits_of(value));
      continue;
    }
    const uint32_t rest = bits_of(value) - below;
    const uint32_t expected = rest < 0x1000U ? below : rest > 0x1000U ? above : (below & 0x2000U) ? above : below;
    ASSERT_EQ(rounded, expected) << value;
  }
}

// Right on average: over many draws the mean is the value, where nearest would be off by up to half a step.
TEST(Formats, StochasticRoundingHasNoBias) {
  std::mt19937 random(3);
  for (const float value : {1.001F, -3.3F, 1e-5F, 1.0F, 255.4F, 3e-39F}) {
    const Cut parts = cut(value, bf16);
    const double step = std::ldexp(1.0, std::max(parts.exponent, -126) - bf16.mantissa_bits);
    const double down = std::copysign(std::abs(decode(encode(value, bf16), bf16)), value);
    double sum = 0;
    constexpr int draws = 200000;
    for (int i = 0; i < draws; ++i) {
      const double got = decode(encode_stochastic(value, bf16, static_cast<uint32_t>(random())), bf16);
      ASSERT_LT(std::abs(got - static_cast<double>(value)), step) << value;
      sum += got;
    }
    // The standard deviation of the mean is at most step / 2 / sqrt(draws).
    EXPECT_NEAR(sum / draws, value, 5 * step / 2 / std::sqrt(draws)) << value << ", nearest would be " << down;
  }
  EXPECT_EQ(encode_stochastic(1.0F, bf16, 0xffffffffU), encode(1.0F, bf16)) << "a number of the format stays";
  EXPECT_EQ(encode_stochastic(std::numeric_limits<float>::infinity(), bf16, 0xffffffffU), bf16.infinity());
}

// The instruction set that some virtual machines promise and do not have: what used to die here was a bfloat16 product.
TEST(Formats, HalfPrecisionProductsRunOnThisCpu) {
  const CpuFeatures cpu = probe_cpu();
  const char* cap = std::getenv("ONEDNN_MAX_CPU_ISA");
  ASSERT_TRUE(cap != nullptr || !cpu.amx_advertised || cpu.amx_usable) << "AMX has no tile palette here, and nothing keeps oneDNN from it";
  std::printf("  %s\n", cap ? cap : "ONEDNN_MAX_CPU_ISA is not set: nothing to cap");
  torch::manual_seed(1);
  const auto a = torch::randn({96, 128}), b = torch::randn({128, 64}), x = torch::randn({4, 8, 16, 16}), w = torch::randn({16, 8, 3, 3});
  for (const auto& [dtype, limit] : {std::pair{torch::kHalf, 2e-3}, std::pair{torch::kBFloat16, 1e-2}}) {
    const auto close = [&, limit = limit](const torch::Tensor& got, const torch::Tensor& expected) {
      return ((got.to(torch::kFloat) - expected).norm() / expected.norm()).item<double>() < limit;
    };
    EXPECT_TRUE(close(a.to(dtype).mm(b.to(dtype)), a.mm(b))) << dtype;
    EXPECT_TRUE(close(torch::conv2d(x.to(dtype), w.to(dtype)), torch::conv2d(x, w))) << dtype;
  }
}

}  // namespace
}  // namespace manyranks
