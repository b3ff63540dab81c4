// `carpool doctor`: this machine, what will be used of it, and its read speed. See doctor.h.
#include "cli/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "backend/ops.h"
#include "base/cpu_info.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "measure/ab.h"
#include "measure/report.h"

namespace carpool {
namespace {

constexpr int kProbes = 5;
constexpr double kTightMemory = 2e9;  // bytes; less cannot hold a useful model beside its KV cache

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return printable(line);
}

std::vector<Cache> read_caches(const std::string& root) {
  std::vector<Cache> out;
  for (int i = 0; i < 16; ++i) {
    const std::string folder = fmt::format("{}/sys/devices/system/cpu/cpu0/cache/index{}/", root, i);
    const std::string level = first_line(folder + "level");
    if (level.size() != 1 || level[0] < '1' || level[0] > '9') continue;
    out.push_back({level[0] - '0', first_line(folder + "type"), first_line(folder + "size")});
  }
  return out;
}

// The choice in brackets of "always [madvise] never".
std::string bracketed(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos || close < open
             ? ""
             : line.substr(open + 1, close - open - 1);
}

std::string caches_text(const std::vector<Cache>& caches) {
  std::string out;
  for (const Cache& c : caches) {
    const std::string kind = c.type == "Unified" ? "" : c.type == "Data" ? "d" : "i";
    out += fmt::format("{}L{}{} {}", out.empty() ? "" : ", ", c.level, kind, c.size);
  }
  return out.empty() ? "unknown" : out;
}

std::string join(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& s : list) out += (out.empty() ? "" : ", ") + s;
  return out;
}

Bandwidth probe(int threads, const std::string& isa) {
  const std::unique_ptr<Ops> ops = make_cpu_ops(threads, isa);
  ReadProbe read(*ops);
  std::vector<double> values;
  for (int i = 0; i < kProbes; ++i) values.push_back(read.gbps());
  const auto [lo, hi] = std::minmax_element(values.begin(), values.end());
  return {threads, {median(values), *lo, *hi}};
}

struct Options {
  int threads = 0;
  std::string isa, json;
};

void run(const Options& options, const Invocation& invocation) {
  DoctorReport report;
  report.machine = read_machine();
  report.isas = cpu_isa_names();
  report.threads = options.threads > 0 ? options.threads : report.machine.usable_cpus;
  report.isa = make_cpu_ops(1, options.isa)->isa();
  report.isa_reason = options.isa == "auto" ? "the fastest that processor and system support" : "asked for by name";
  report.command = command_line(invocation.words);
  report.commit = build_commit();
  report.bandwidth.push_back(probe(1, report.isa));
  if (report.threads > 1) report.bandwidth.push_back(probe(report.threads, report.isa));
  if (options.json != "-") write_output("-", doctor_text(report));
  if (!options.json.empty()) write_output(options.json, pretty(doctor_json(report)));
}

}  // namespace

MachineState read_machine(const std::string& root) {
  MachineState m;
  m.processor = printable(cpu_info().model);
  m.features = feature_names(cpu_info());
  m.logical_cpus = cpu_info().logical_cpus;
  m.usable_cpus = default_threads(root);
  m.quota_cpus = cgroup_cpus(root);
  m.caches = read_caches(root);
  m.available_memory_bytes = available_memory(root);
  m.huge_pages = bracketed(first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  m.governor = first_line(root + "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  return m;
}

std::vector<std::string> warnings(const DoctorReport& r) {
  const MachineState& m = r.machine;
  std::vector<std::string> out;
  if (std::find(r.isas.begin(), r.isas.end(), "avx2") == r.isas.end())
    out.push_back("this processor has no AVX2 with FMA: only the scalar kernels run here, which is many times slower");
  else if (r.isa != r.isas.back())
    out.push_back(fmt::format("the {} kernels were asked for, {} would be faster", r.isa, r.isas.back()));
  if (m.quota_cpus < m.logical_cpus) {
    out.push_back(fmt::format("the control group allows {} of {} CPUs; threads beyond that would be stopped in turn",
                              number_text(m.quota_cpus, 2), m.logical_cpus));
  }
  if (r.threads > m.usable_cpus) {
    out.push_back(fmt::format("{} threads are more than the {} usable CPUs: every step waits for the last of them",
                              r.threads, m.usable_cpus));
  }
  if (!m.available_memory_bytes) {
    out.push_back("the system does not say how much memory is available");
  } else if (static_cast<double>(*m.available_memory_bytes) < kTightMemory) {
    out.push_back(fmt::format("only {} MB of memory are available", *m.available_memory_bytes / 1000000));
  }
  if (m.governor.empty()) {
    out.push_back("the frequency governor is unknown (usual in virtual machines): speeds may vary with the host");
  } else if (m.governor != "performance") {
    out.push_back(fmt::format("the frequency governor is {}: measurements are steadier under performance", m.governor));
  }
  if (m.huge_pages == "never") out.push_back("transparent huge pages are off: large models pay more for page walks");
  return out;
}

std::string doctor_text(const DoctorReport& r) {
  const MachineState& m = r.machine;
  std::string out = fmt::format("command       {}\ncommit        {}\n", printable(r.command), r.commit);
  out += fmt::format("processor     {}\n", m.processor);
  out += fmt::format("extensions    {}\n", m.features.empty() ? "none that kernels use" : join(m.features));
  out += fmt::format("CPUs          {} usable of {} (control group quota: {})\n", m.usable_cpus, m.logical_cpus,
                     std::isfinite(m.quota_cpus) ? number_text(m.quota_cpus, 2) + " CPUs" : "none");
  out += fmt::format("threads       {}\n", r.threads);
  out += fmt::format("kernels       {} (of {}): {}\n", r.isa, join(r.isas), r.isa_reason);
  out += fmt::format("memory        {}\n",
                     m.available_memory_bytes
                         ? number_text(static_cast<double>(*m.available_memory_bytes) / 1e9, 1) + " GB available"
                         : "unknown");
  out += fmt::format("caches        {}\n", caches_text(m.caches));
  out += fmt::format("huge pages    {}\n", m.huge_pages.empty() ? "unknown" : m.huge_pages);
  out += fmt::format("governor      {}\n", m.governor.empty() ? "unknown" : m.governor);
  for (const Bandwidth& b : r.bandwidth) {
    out += fmt::format("read speed    {} GB/s with {} thread{} (median of {}, {} to {})\n",
                       number_text(b.gbps.value, 1), b.threads, b.threads == 1 ? "" : "s", kProbes,
                       number_text(b.gbps.lo, 1), number_text(b.gbps.hi, 1));
  }
  if (!r.bandwidth.empty()) {
    const double gbps = r.bandwidth.back().gbps.value;
    out += fmt::format(
        "\nDecoding reads weights from memory: a step that reads 1 GB takes at least {} ms here, {} such steps a "
        "second.\ncarpool inspect MODEL says how many bytes a step of a model reads at each batch.\n",
        number_text(1e3 / gbps, 1), number_text(gbps, 1));
  }
  const std::vector<std::string> worries = warnings(r);
  if (!worries.empty()) out += "\n";
  for (const std::string& w : worries) out += fmt::format("warning: {}\n", w);
  return out;
}

json::value doctor_json(const DoctorReport& r) {
  const MachineState& m = r.machine;
  json::object out;
  out["command"] = r.command;
  out["commit"] = r.commit;
  out["machine"] = machine_facts(r.threads, r.isa);
  out["processor"] = m.processor;
  json::array features;
  for (const std::string& f : m.features) features.emplace_back(f);
  out["extensions"] = std::move(features);
  out["logical_cpus"] = m.logical_cpus;
  out["usable_cpus"] = m.usable_cpus;
  out["quota_cpus"] = std::isfinite(m.quota_cpus) ? json::value(m.quota_cpus) : json::value(nullptr);
  out["threads"] = r.threads;
  out["isa"] = r.isa;
  out["isa_reason"] = r.isa_reason;
  json::array isas;
  for (const std::string& isa : r.isas) isas.emplace_back(isa);
  out["isas"] = std::move(isas);
  out["available_memory_bytes"] =
      m.available_memory_bytes ? json::value(*m.available_memory_bytes) : json::value(nullptr);
  json::array caches;
  for (const Cache& c : m.caches) caches.push_back({{"level", c.level}, {"type", c.type}, {"size", c.size}});
  out["caches"] = std::move(caches);
  out["huge_pages"] = m.huge_pages.empty() ? json::value(nullptr) : json::value(m.huge_pages);
  out["governor"] = m.governor.empty() ? json::value(nullptr) : json::value(m.governor);
  json::array results;
  for (const Bandwidth& b : r.bandwidth) {
    results.push_back({{"threads", b.threads},
                       {"read_gbps", b.gbps.value},
                       {"read_gbps_min", b.gbps.lo},
                       {"read_gbps_max", b.gbps.hi}});
  }
  out["results"] = std::move(results);
  json::array worries;
  for (const std::string& w : warnings(r)) worries.emplace_back(w);
  out["warnings"] = std::move(worries);
  return out;
}

void add_doctor(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand("doctor", "what this machine is, what will be used of it, and its read speed");
  c.footer("Example: carpool doctor --threads 4 --json -");
  c.add_option("--threads", options->threads, "threads to measure with, beside one (default: usable CPUs)")
      ->check(CLI::Range(1, 1024));
  c.add_option("--isa", options->isa, "instruction set: auto, scalar, avx2 or avx512")
      ->default_val("auto")
      ->envname("CARPOOL_ISA");
  c.add_option("--json", options->json, "write the facts to this file (- = standard output instead of the text)");
  c.callback([options, &invocation] { run(*options, invocation); });
}

}  // namespace carpool
