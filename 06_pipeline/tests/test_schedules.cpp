// Every schedule that we generate is sound, and costs what theory says.
#include <gtest/gtest.h>

#include <random>

#include "check.hpp"
#include "count.hpp"
#include "gantt.hpp"
#include "generate.hpp"
#include "launch/errors.hpp"

using namespace manyranks;
using namespace manyranks::pipeline;

static std::string first_finding(const Schedule& schedule, const Limits& limits = {}) {
  const auto findings = check(schedule, limits);
  return findings.empty() ? "" : to_string(findings.front());
}

static int chunks_for(const std::string& name, int chunks) { return name == "interleaved" ? chunks : 1; }

TEST(Schedules, a_thousand_random_shapes_are_sound) {
  std::mt19937 random(6);
  const auto pick = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  for (int i = 0; i < 1000; ++i) {
    const int p = pick(1, 12), m = pick(1, 40), v = pick(1, 5);
    for (const std::string& name : schedule_names()) {
      const Schedule schedule = generate(name, p, m, chunks_for(name, v));
      const int bound = name == "gpipe" ? m : name == "interleaved" ? 2 * (p - 1) + (v - 1) * p + 1 : name == "naive" ? 1 : p;
      // 1F1B and what builds on it lets two neighbours send to each other at once: one message must fit the channel. No more.
      ASSERT_EQ(first_finding(schedule, {.buffers = 1, .peak_live = bound}), "") << name << " p=" << p << " m=" << m << " v=" << v;
      ASSERT_NO_THROW(count(schedule)) << name;
    }
  }
}

TEST(Schedules, the_bubble_is_what_theory_says) {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 32; ++m)
      for (const std::string& name : schedule_names())
        for (int v = 1; v <= chunks_for(name, 4); ++v)
          for (const Costs costs : {Costs{1, 1, 1}, Costs{2, 1, 1}, Costs{3, 4, 2}}) {
            const Schedule schedule = generate(name, p, m, v);
            const auto theory = theory_bubble(schedule, costs);
            if (name == "interleaved" && m % p != 0) {
              ASSERT_FALSE(theory);
              continue;
            }
            if (name == "zb-h1" && !theory) continue;
            const Count counted = count(schedule, costs);
            ASSERT_EQ(counted.bubble, *theory) << name << " p=" << p << " m=" << m << " v=" << v << " F=" << costs.forward << ": counted "
                                               << counted.bubble.numerator << "/" << counted.bubble.denominator << ", theory "
                                               << theory->numerator << "/" << theory->denominator;
          }
}

TEST(Schedules, peak_activations_are_what_theory_says) {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 32; ++m)
      for (const std::string& name : schedule_names())
        for (int v = 1; v <= chunks_for(name, 3); ++v) {
          const Schedule schedule = generate(name, p, m, v);
          const Count counted = count(schedule);
          for (int stage = 0; stage < p; ++stage) {
            const auto theory = theory_peak_live(schedule, stage);
            ASSERT_EQ(counted.peak_live[stage], theory.value_or(counted.peak_live[stage])) << name << " p=" << p << " m=" << m << " v=" << v << " stage " << stage;
          }
        }
}

TEST(Schedules, one_f_one_b_holds_min_m_p_minus_i) {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 32; ++m)
      for (int stage = 0; stage < p; ++stage) ASSERT_EQ(peak_live(one_f_one_b_schedule(p, m), stage), std::min(m, p - stage));
}

TEST(Schedules, zero_bubble_idles_less_than_one_f_one_b) {
  for (int p = 2; p <= 8; ++p)
    for (int m = 1; m <= 32; ++m)
      for (const Costs costs : {Costs{1, 1, 1}, Costs{2, 2, 1}, Costs{3, 4, 2}})
        ASSERT_LT(count(zero_bubble_schedule(p, m), costs).bubble, count(one_f_one_b_schedule(p, m), costs).bubble) << p << " " << m;
}

TEST(Schedules, interleaving_with_one_chunk_is_one_f_one_b) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 12; ++m) EXPECT_EQ(interleaved_schedule(p, m, 1), one_f_one_b_schedule(p, m));
}

TEST(Schedules, known_by_heart) {
  // p = 2, m = 2, F = 1, B = 2: (m + p-1) * 3 = 9 units, of which 6 are busy.
  const Count gpipe = count(gpipe_schedule(2, 2));
  EXPECT_EQ(gpipe.makespan, 9);
  EXPECT_EQ(gpipe.busy, (std::vector<int64_t>{6, 6}));
  EXPECT_EQ(draw_gantt(gpipe.timeline, 1),
            "  stage 0 |F0F1......B0B0B1B1|\n"
            "  stage 1 |..F0F1B0B0B1B1....|\n");
  EXPECT_DOUBLE_EQ(measured_bubble(gpipe.timeline), gpipe.bubble.value());
  // Zero bubble: 3m + p-1 = 7 units.
  EXPECT_EQ(draw_gantt(count(zero_bubble_schedule(2, 2)).timeline, 1),
            "  stage 0 |F0F1..B0W0B1W1|\n"
            "  stage 1 |..F0B0F1B1W0W1|\n");
}

TEST(Schedules, refuse_what_cannot_be) {
  EXPECT_THROW(generate("gpipe", 0, 4), Error);
  EXPECT_THROW(generate("gpipe", 2, 0), Error);
  EXPECT_THROW(generate("gpipe", 2, 4, 2), Error);
  EXPECT_THROW(generate("gpip", 2, 4), Error);
}

TEST(Gantt, spans_survive_the_way_to_rank_0) {
  const auto timeline = count(interleaved_schedule(2, 4, 2)).timeline;
  for (const auto& spans : timeline) {
    const auto back = spans_from_text(spans_to_text(spans));
    ASSERT_EQ(back.size(), spans.size());
    for (size_t i = 0; i < spans.size(); ++i) {
      EXPECT_EQ(back[i].action, spans[i].action);
      EXPECT_EQ(back[i].start, spans[i].start);
      EXPECT_EQ(back[i].end, spans[i].end);
    }
  }
}
