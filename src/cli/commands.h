// The verbs of the command line; one file each.
//
// Each function adds one subcommand to `app` and sets its callback (routing's is in routing.h). Callbacks print to
// standard output, progress to standard error, and throw Error for everything that goes wrong; run_cli (cli.cc) turns
// that into a sentence and an exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace carpool {

// The words after the program's name, set by run_cli before a callback runs; every result names its command.
struct Invocation {
  std::vector<std::string> words;
};

void add_run(CLI::App& app, const Invocation& invocation);
void add_serve(CLI::App& app, const Invocation& invocation);
void add_ab(CLI::App& app, const Invocation& invocation);
void add_bench(CLI::App& app, const Invocation& invocation);
void add_bench_serve(CLI::App& app, const Invocation& invocation);
void add_inspect(CLI::App& app, const Invocation& invocation);
void add_doctor(CLI::App& app, const Invocation& invocation);
void add_calibrate(CLI::App& app, const Invocation& invocation);
void add_eval(CLI::App& app, const Invocation& invocation);
void add_compare(CLI::App& app, const Invocation& invocation);
void add_quantize(CLI::App& app);
void add_tune(CLI::App& app, const Invocation& invocation);
void add_trace(CLI::App& app, const Invocation& invocation);

// From now on a mapped file that was truncated under the mapping ends the process with one line and exit code 74
// instead of a bare signal: nothing can be mended at that point, but the user learns what happened. run_cli calls it.
void install_bus_handler();

// The whole program: parses, runs, reports. Returns the exit code.
int run_cli(int argc, const char* const* argv);

}  // namespace carpool
