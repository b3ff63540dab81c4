// run_cli: the program's frame. Options are parsed by CLI11; every error ends as one line and an exit code.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <new>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/routing.h"
#include "measure/result.h"

namespace carpool {
namespace {

int report(const std::string& sentence, int code) {
  std::fprintf(stderr, "error: %s (exit %d)\n", sentence.c_str(), code);
  return code;
}

// Only async-signal-safe calls. Kernels read the mapping on every thread, so this may run on any of them.
void on_bus_error(int, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) {  // not a page without a file behind it: die as without this handler
    ::signal(SIGBUS, SIG_DFL);
    ::raise(SIGBUS);
    return;
  }
  constexpr char kLine[] = "error: a mapped model file became shorter or unreadable (exit 74)\n";
  static_cast<void>(!::write(STDERR_FILENO, kLine, sizeof(kLine) - 1));
  ::_exit(static_cast<int>(ErrorKind::kIo));
}

}  // namespace

void install_bus_handler() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

int run_cli(int argc, const char* const* argv) {
  install_bus_handler();
  CLI::App app{
      "carpool: an inference engine for Mixture-of-Experts language models in which the batch decides which experts "
      "are loaded.\n"
      "Example: carpool run models/books-qwen3 \"The old lighthouse keeper\" --verbose"};
  app.name("carpool");
  app.set_version_flag("--version", fmt::format("carpool {} ({})", CARPOOL_VERSION, build_commit()));
  app.require_subcommand(1);
  app.option_defaults()->take_last();  // of an option given twice, as in a script with overrides, the last one counts
  app.get_formatter()->column_width(36);
  const Invocation invocation{{argv + 1, argv + argc}};
  add_run(app, invocation);
  add_serve(app, invocation);
  add_ab(app, invocation);
  add_bench(app, invocation);
  add_bench_serve(app, invocation);
  add_inspect(app, invocation);
  add_doctor(app, invocation);
  add_eval(app, invocation);
  add_calibrate(app, invocation);
  add_compare(app, invocation);
  add_tune(app, invocation);
  add_quantize(app);
  add_routing(app);
  add_trace(app, invocation);
  try {
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0) return report("standard output cannot be written", static_cast<int>(ErrorKind::kIo));
    return 0;
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return report(fmt::format("{}; see carpool --help", escape(e.what(), 400)), static_cast<int>(ErrorKind::kUsage));
  } catch (const Error& e) {
    return report(e.what(), e.exit_code());
  } catch (const std::bad_alloc&) {
    return report("out of memory", static_cast<int>(ErrorKind::kNoMemory));
  } catch (const std::exception& e) {
    return report(fmt::format("internal error: {}", e.what()), static_cast<int>(ErrorKind::kInternal));
  }
}

}  // namespace carpool
