// Comparisons that say where, and times over ranks.
#include "measure/verify.hpp"

#include <gtest/gtest.h>
#include "launch/torch.hpp"

#include <cmath>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

template <typename Check>
std::string complaint(Check check) {
  try {
    check();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Exit::wrong);
    return error.operation + ": " + error.cause;
  }
  ADD_FAILURE() << "no complaint";
  return "";
}

TEST(EqualBits, AcceptsEqual) {
  const auto a = torch::randn({3, 4});
  EXPECT_NO_THROW(expect_equal_bits("a", a, a.clone()));
  EXPECT_NO_THROW(expect_equal_bits("transposed", a.t().contiguous(), a.t()));
  EXPECT_NO_THROW(expect_equal_bits("nan", torch::full({2}, NAN), torch::full({2}, NAN)));
  EXPECT_NO_THROW(expect_equal_bits("empty", torch::empty({0}), torch::empty({0})));
  EXPECT_NO_THROW(expect_equal_bits("half", a.to(torch::kBFloat16), a.to(torch::kBFloat16)));
  EXPECT_NO_THROW(expect_equal_bits("scalar", torch::tensor(1.0), torch::tensor(1.0)));
}

TEST(EqualBits, SaysWhereAndHowMuch) {
  const auto expected = torch::zeros({2, 3});
  auto got = expected.clone();
  got[1][2] = 0.5;
  got[1][1] = -0.25;
  EXPECT_EQ(complaint([&] { expect_equal_bits("gradient", got, expected); }),
            "gradient: not the same bits: 2 of 6 elements differ, first at [1, 1]: -0.25, expected 0; largest difference 0.5, norm-relative 0.559");
}

TEST(EqualBits, OneBitAndTheSignOfZeroMatter) {
  const auto one = torch::ones({1});
  complaint([&] { expect_equal_bits("next float", torch::full({1}, std::nextafter(1.0f, 2.0f)), one); });
  complaint([&] { expect_equal_bits("zero", torch::full({1}, -0.0f), torch::zeros({1})); });
}

TEST(EqualBits, ShapeAndTypeMustMatch) {
  EXPECT_EQ(complaint([] { expect_equal_bits("x", torch::zeros({2}), torch::zeros({2, 1})); }), "x: shape [2], expected [2, 1]");
  EXPECT_EQ(complaint([] { expect_equal_bits("x", torch::zeros({2}), torch::zeros({2}, torch::kFloat64)); }), "x: dtype Float, expected Double");
  complaint([] { expect_equal_bits("x", torch::Tensor(), torch::zeros({2})); });
}

TEST(EqualBits, ListsNameTheIndex) {
  const auto a = torch::zeros({1}), b = torch::ones({1});
  EXPECT_EQ(complaint([&] { expect_equal_bits("parameters", {a, b}, {a, a}); }).rfind("parameters[1]: ", 0), 0u);
  complaint([&] { expect_equal_bits("parameters", {a}, {a, a}); });
}

TEST(Close, WithinAndBeyondTheTolerance) {
  const auto expected = torch::full({4}, 2.0), got = expected * 1.001;
  EXPECT_NO_THROW(expect_close("x", got, expected, 2e-3));
  EXPECT_NE(complaint([&] { expect_close("x", got, expected, 1e-4); }).find("norm-relative difference 0.001 is over 0.0001: 4 of 4 elements differ"), std::string::npos);
  EXPECT_NO_THROW(expect_close("x", expected, expected.clone(), 0));
}

TEST(Close, ZeroReferenceIsAbsolute) {
  EXPECT_NO_THROW(expect_close("x", torch::full({1}, 1e-9), torch::zeros({1}), 1e-6));
  complaint([] { expect_close("x", torch::full({1}, 1e-3), torch::zeros({1}), 1e-6); });
}

TEST(Close, NotFiniteFailsUnlessExpected) {
  const auto ones = torch::ones({2});
  complaint([&] { expect_close("x", torch::full({2}, NAN), ones, 1.0); });
  complaint([&] { expect_close("x", torch::full({2}, INFINITY), ones, 1.0); });
  complaint([&] { expect_close("x", ones, torch::full({2}, NAN), 1.0); });
  EXPECT_NO_THROW(expect_close("x", torch::tensor({1.0f, INFINITY}), torch::tensor({1.0f, INFINITY}), 1e-6));
}

}  // namespace
}  // namespace manyranks
