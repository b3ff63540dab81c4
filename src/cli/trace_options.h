// --trace FILE and --trace-scores of the commands that run a model: what ran, written down as a routing trace.
//
// Owns the spelling and the making of a recorder (measure/trace_recorder.h).
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "measure/trace_recorder.h"

namespace carpool {

struct RecordOptions {
  std::string path;
  bool scores = false;

  void add_to(CLI::App& command);
  // Error{kUsage} for --trace-scores alone.
  void check() const;
  // Null without --trace. `name` is the word for the model on the command line.
  std::unique_ptr<TraceRecorder> recorder(TraceRecorder::Writing writing, const std::string& name,
                                          const LanguageModel& model, const std::string& policy) const;
};

// `trace record` and `trace force`, of the commands that `trace` has (trace.cc).
struct Invocation;
void add_trace_record(CLI::App& trace, const Invocation& invocation);
void add_trace_force(CLI::App& trace, const Invocation& invocation);

}  // namespace carpool
