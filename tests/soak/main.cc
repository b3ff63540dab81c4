// carpool_soak: puts a running server under the load that many careless clients make, and judges it.
//
// The load (stream.h) or the overload (overload.h), a probe of /health, and what the process holds before and after.
// One line per fact on standard output, or all of it as JSON with --json. Exit code 0 when nothing was wrong, 1 when
// something was, 64 for bad options, 69 when there is no server. docs/soak.md has commands and results.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/asio/ip/address_v4.hpp>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/time.h"
#include "server/http_server.h"
#include "soak/answer.h"
#include "soak/overload.h"
#include "soak/stream.h"
#include "soak/watch.h"

namespace carpool::soak {
namespace {

constexpr double kSettleSeconds = 60, kDescriptorSeconds = 10;

struct Options {
  std::string url;
  int streams = 1024, fixed_cases = 48, overload = 0, saturation = 256;
  double seconds = 300, warmup = 15, health_p99_ms = 200, refusal_p99_ms = 50, throughput_share = 0.95;
  double slow_pause = 0.22, rss_slack_mib = 32, most_wait = 60;
  uint64_t seed = 1;
  pid_t pid = 0;
  std::string json_file;
};

// The server and everything that is known about it before the load.
struct Subject {
  int port;
  asio::ip::tcp::endpoint endpoint;
  ModelFacts facts;
  pid_t pid;
};

// "http://127.0.0.1:PORT": only servers on this machine are asked to suffer.
int port_of(const std::string& url) {
  for (const char* prefix : {"http://127.0.0.1:", "http://localhost:", ""}) {
    if (!url.starts_with(prefix)) continue;
    const std::string rest = url.substr(std::string(prefix).size());
    const bool digits = !rest.empty() && rest.size() < 6 && rest.find_first_not_of("0123456789") == std::string::npos;
    if (digits) return std::atoi(rest.c_str());
  }
  throw Error(ErrorKind::kUsage, "URL must be http://127.0.0.1:PORT");
}

// Requests with the answers that the idle server gives, one by one.
std::vector<Case> ask_fixed(const Subject& subject, const Cases& cases, const Options& options, Tally& tally) {
  std::vector<Case> fixed;
  Random random(options.seed, 0xf1ced);
  for (int i = 0; i < options.fixed_cases; ++i) {
    Case c = cases.plain(random);
    int status = 0;
    const std::string body = post(subject.port, path(c.api), json::serialize(c.body), status);
    Answer answer;
    take_whole(c.api, body, answer);
    if (status != 200 || !answer.broken.empty()) {
      tally.violation("no answer before the load", fmt::format("{} {} {}", path(c.api), status, body.substr(0, 200)));
      continue;
    }
    c.text = answer.text;
    c.ids = answer.ids;
    c.finish = answer.finish;
    c.prompt_tokens = answer.prompt_tokens;
    c.tokens = answer.completion_tokens;
    fixed.push_back(std::move(c));
  }
  return fixed;
}

// Waits until the server is idle, empties its prefix cache, and says what is left.
json::object settle(const Subject& subject, Tally& tally, ProcessState& process, int expected_descriptors) {
  const double begin = now_seconds();
  ServerState server = server_state(subject.port);
  while (!server.idle() && now_seconds() - begin < kSettleSeconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server = server_state(subject.port);
  }
  json::object out{{"idle_after_s", now_seconds() - begin}, {"idle", server.report()}};
  if (!server.idle()) tally.violation("not idle", json::serialize(server.report()));
  if (server.kv_free + server.kv_cached != server.kv_blocks) {
    tally.violation("lost blocks", json::serialize(server.report()));
  }
  int status = 0;
  const std::string flushed = post(subject.port, "/flush_cache", "", status);
  server = server_state(subject.port);
  if (status != 200 || server.kv_free != server.kv_blocks || server.kv_cached != 0) {
    tally.violation("blocks behind a flush",
                    fmt::format("{} {} {}", status, flushed, json::serialize(server.report())));
  }
  out["flushed"] = server.report();
  if (subject.pid == 0) return out;
  process = look(subject.pid);
  const double looked = now_seconds();
  while (process.descriptors > expected_descriptors && now_seconds() - looked < kDescriptorSeconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    process = look(subject.pid);
  }
  out["process"] = process.report();
  out["descriptors_back_after_s"] = now_seconds() - looked;
  return out;
}

void judge_process(const ProcessState& before, const ProcessState& after, const Options& options, Tally& tally) {
  if (after.descriptors > before.descriptors) {
    tally.violation("descriptors", fmt::format("{} before, {} after", before.descriptors, after.descriptors));
  }
  if (after.threads > before.threads) {
    tally.violation("threads", fmt::format("{} before, {} after", before.threads, after.threads));
  }
  const double grown = static_cast<double>(after.rss_bytes - before.rss_bytes) / 1048576;
  if (grown > options.rss_slack_mib) tally.violation("memory", fmt::format("{:.1f} MiB more than before", grown));
}

json::object probe_report(const HealthProber& prober, const Options& options, Tally& tally) {
  if (prober.failures() > 0) tally.violation("health", fmt::format("{} probes failed", prober.failures()));
  const double p99 = prober.latency().percentile(99) * 1e3;
  if (options.health_p99_ms > 0 && p99 > options.health_p99_ms) {
    tally.violation("slow health", fmt::format("p99 {:.1f} ms", p99));
  }
  const std::vector<double>& rss = prober.rss_mib();
  return {{"health_ms", prober.latency().milliseconds()},
          {"prober_late_ms", prober.late().milliseconds()},
          {"process_most", prober.most().report()},
          {"rss_mib_every_10_s", json::array(rss.begin(), rss.end())}};
}

json::object soak(const Subject& subject, const Options& options, Tally& tally) {
  const Cases cases(subject.facts, options.seed);
  const std::vector<Case> fixed =
      subject.facts.canary ? std::vector<Case>() : ask_fixed(subject, cases, options, tally);
  const std::vector<BadRequest> bad = bad_requests(subject.facts);
  if (!subject.facts.canary && fixed.empty()) return {};
  Load load{subject.endpoint, cases, fixed, bad, Mix{}};
  load.streams = options.streams;
  load.seed = options.seed;
  load.slow_pause_s = options.slow_pause;
  json::object out;
  ProcessState start, before, after;
  const int any = 1 << 30;
  out["start"] = settle(subject, tally, start, any);
  if (options.warmup > 0) {
    load.seconds = options.warmup;
    load.ramp_s = options.warmup / 3;
    Tally warm;
    run_load(load, warm);
    out["warmup"] = warm.report();
    if (warm.violations() > 0) tally.violation("in the warm-up", json::serialize(warm.report()));
    load.seed ^= 0x5eed;
  }
  out["before"] = settle(subject, tally, before, start.descriptors);
  load.seconds = options.seconds;
  load.ramp_s = std::min(30.0, options.seconds / 10);
  HealthProber prober(subject.port, subject.pid);
  const double begin = now_seconds();
  run_load(load, tally);
  out["load_s"] = now_seconds() - begin;
  prober.stop();
  out["probe"] = probe_report(prober, options, tally);
  out["after"] = settle(subject, tally, after, before.descriptors);
  if (subject.pid != 0) judge_process(before, after, options, tally);
  out["load"] = tally.report();
  out["tokens_per_second"] = static_cast<double>(tally.tokens) / options.seconds;
  return out;
}

json::object overload(const Subject& subject, const Options& options, Tally& tally) {
  if (!subject.facts.canary) throw Error(ErrorKind::kUsage, "--overload needs a server on dummy:canary");
  const Cases cases(subject.facts, options.seed);
  OverloadPlan plan{subject.endpoint, cases};
  plan.connections = options.overload;
  plan.saturation = options.saturation;
  plan.seconds = options.seconds;
  plan.settle_s = options.seconds / 6;
  plan.most_wait_s = options.most_wait;
  plan.seed = options.seed;
  const int any = 1 << 30;
  ProcessState before, after;
  json::object out;
  out["before"] = settle(subject, tally, before, any);
  HealthProber prober(subject.port, subject.pid);
  const OverloadResult result = run_overload(plan);
  prober.stop();
  out["overload"] = result.report();
  out["probe"] = probe_report(prober, options, tally);
  out["after"] = settle(subject, tally, after, before.descriptors);
  for (const Tally* part : {&result.saturated, &result.overloaded}) {
    if (part->violations() > 0) tally.violation("under overload", json::serialize(part->report()));
  }
  const double p99 = result.refusals.percentile(99) * 1e3;
  if (options.refusal_p99_ms > 0 && p99 > options.refusal_p99_ms) {
    tally.violation("slow refusals", fmt::format("p99 {:.1f} ms", p99));
  }
  const double share = result.overloaded_tokens_per_second / std::max(result.saturated_tokens_per_second, 1e-9);
  if (share < options.throughput_share) tally.violation("throughput", fmt::format("{:.3f} of saturation", share));
  if (result.refusals.count() == 0) tally.violation("nothing was refused", "");
  out["violations"] = tally.report().at("violations_by_kind");
  out["examples"] = tally.report().at("examples");
  return out;
}

void print(const json::value& value, const std::string& name) {
  if (const json::object* object = value.if_object()) {
    for (const auto& [key, member] : *object) {
      print(member, name.empty() ? std::string(key) : name + "." + std::string(key));
    }
    return;
  }
  fmt::print("{}: {}\n", name, json::serialize(value));
}

int run(const Options& options) {
  raise_descriptor_limit();
  fmt::print(stderr, "seed {}\n", options.seed);
  const int port = port_of(options.url);
  Subject subject{port, {asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)}, {}, options.pid};
  try {
    subject.facts = model_facts(port);
  } catch (const std::runtime_error& e) {
    throw Error(ErrorKind::kUnavailable, fmt::format("{}: {}", options.url, e.what()));
  }
  Tally tally;
  json::object report{
      {"command", "carpool_soak"},  {"url", options.url},
      {"seed", options.seed},       {"streams", options.overload > 0 ? options.overload : options.streams},
      {"seconds", options.seconds}, {"canary", subject.facts.canary}};
  const json::object result = options.overload > 0 ? overload(subject, options, tally) : soak(subject, options, tally);
  for (const auto& [key, value] : result) report[key] = value;
  report["server_info"] = get_json(port, "/server_info");
  report["passed"] = tally.violations() == 0;
  if (options.json_file == "-") {
    fmt::print("{}", pretty(report));
  } else {
    print(result, "");
  }
  if (!options.json_file.empty() && options.json_file != "-") {
    std::ofstream file(options.json_file);
    file << pretty(report);
    file.close();
    if (!file) throw Error(ErrorKind::kIo, fmt::format("{}: cannot write", options.json_file));
  }
  fmt::print(stderr, "{}\n",
             tally.violations() == 0 ? "passed" : fmt::format("FAILED: {} violations", tally.violations()));
  return tally.violations() == 0 ? 0 : 1;
}

int main_of(int argc, char** argv) {
  Options o;
  CLI::App app("carpool_soak: many careless clients at once");
  app.add_option("URL", o.url, "http://127.0.0.1:PORT")->required();
  app.add_option("--streams", o.streams, "at once")->check(CLI::Range(1, 65536))->capture_default_str();
  app.add_option("--seconds", o.seconds, "of load, or of each part of the overload")->capture_default_str();
  app.add_option("--warmup", o.warmup, "seconds of load before the state that must come back")->capture_default_str();
  app.add_option("--seed", o.seed, "of everything that is chosen")->capture_default_str();
  app.add_option("--pid", o.pid, "of the server: its memory, threads and descriptors are looked at");
  app.add_option("--cases", o.fixed_cases, "requests whose answers are asked first, for models but the canary")
      ->capture_default_str();
  app.add_option("--overload", o.overload, "open so many connections at once, in place of the mixed load");
  app.add_option("--saturation", o.saturation, "connections that the server can take")->capture_default_str();
  app.add_option("--slow-pause", o.slow_pause, "most seconds that a slow reader waits before each piece")
      ->capture_default_str();
  app.add_option("--most-wait", o.most_wait, "seconds that the refused wait if they are told to wait longer")
      ->capture_default_str();
  app.add_option("--health-p99-ms", o.health_p99_ms, "most that /health may take; 0 = not judged")
      ->capture_default_str();
  app.add_option("--refusal-p99-ms", o.refusal_p99_ms, "most that a refusal may take; 0 = not judged")
      ->capture_default_str();
  app.add_option("--throughput-share", o.throughput_share, "of saturation that overload must keep; 0 = not judged")
      ->capture_default_str();
  app.add_option("--rss-slack-mib", o.rss_slack_mib, "memory that may have been added")->capture_default_str();
  app.add_option("--json", o.json_file, "file for the report; - = standard output");
  try {
    app.parse(argc, argv);
    return run(o);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : static_cast<int>(ErrorKind::kUsage);
  } catch (const Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return e.exit_code();
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
}

}  // namespace
}  // namespace carpool::soak

int main(int argc, char** argv) { return carpool::soak::main_of(argc, argv); }
