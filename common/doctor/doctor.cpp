// doctor: what each node of this job has, what is wrong with it, and what to do about it.
//
//   build/common/doctor                     this node
//   mpirun -np 8 build/common/doctor        every node of the job, with its binding
//   build/common/doctor --json              for scripts
//
// Exit 0 unless something is broken (69). Warnings cost speed or a lesson, not results.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "doctor/collect.hpp"    // collect
#include "doctor/findings.hpp"   // examine
#include "launch/process.hpp"    // Process, Options
#include "measure/table.hpp"     // Table

using namespace manyranks;
using doctor::Finding;
using doctor::Level;
using doctor::NodeFacts;

namespace {

struct Examined {
  std::string host;
  nlohmann::json facts;
  std::vector<Finding> findings;
};

int count(const std::vector<Examined>& nodes, Level level) {
  int n = 0;
  for (const auto& node : nodes)
    for (const auto& finding : node.findings) n += finding.level == level;
  return n;
}

void print_json(const std::vector<Examined>& nodes) {
  nlohmann::json all = {{"nodes", nlohmann::json::array()}, {"warnings", count(nodes, Level::warning)}, {"broken", count(nodes, Level::broken)}};
  for (const auto& node : nodes) all["nodes"].push_back({{"host", node.host}, {"findings", node.findings}, {"facts", node.facts}});
  fmt::print("{}\n", all.dump(2));
}

// A finding that is the same on all nodes takes one line; others a line per node.
void print_table(const std::vector<Examined>& nodes) {
  Table table({"finding", "level", "node", "detail"});
  std::string advice;
  for (size_t i = 0; i < nodes[0].findings.size(); ++i) {
    bool same = true;
    for (const auto& node : nodes) same = same && node.findings[i].level == nodes[0].findings[i].level && node.findings[i].detail == nodes[0].findings[i].detail;
    for (const auto& node : nodes) {
      const Finding& finding = node.findings[i];
      const std::string where = same && nodes.size() > 1 ? "all" : node.host;
      table.add({finding.what, level_name(finding.level), where, finding.detail});
      if (finding.level != Level::good) advice += fmt::format("  {} ({}, {}): {}\n", finding.what, level_name(finding.level), where, finding.advice);
      if (same) break;
    }
  }
  fmt::print("{}", table.text());
  if (!advice.empty()) fmt::print("\nWhat to do:\n{}", advice);
  fmt::print("\n{} node(s): {} broken, {} warning(s)\n", nodes.size(), count(nodes, Level::broken), count(nodes, Level::warning));
}

}  // namespace

int main(int argc, char** argv) {
  Process process(argc, argv);
  return process.run([&] {
    Options options("common/doctor", "What this node has, and what is wrong with it.");
    process.start(options);

    // 1. Each rank looks at its own node and binding; facts travel as JSON, so that no Communicator is needed.
    const auto texts = process.rendezvous().all_gather(nlohmann::json(doctor::collect(process)).dump());
    if (!process.is_root()) return;
    std::vector<NodeFacts> ranks;
    for (const auto& text : texts) ranks.push_back(nlohmann::json::parse(text).get<NodeFacts>());

    // 2. One set of findings per node.
    std::vector<Examined> nodes;
    for (const auto& facts : doctor::merge_by_host(ranks)) nodes.push_back({facts.host, facts, doctor::examine(facts)});

    // 3. Report.
    options.json ? print_json(nodes) : print_table(nodes);
    std::fflush(stdout);
    for (const auto& node : nodes)
      for (const auto& finding : node.findings)
        if (finding.level == Level::broken) throw unavailable_error("doctor", fmt::format("{} on {}: {}", finding.what, node.host, finding.detail), finding.advice);
  });
}
