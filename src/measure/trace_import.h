// Readers of the formats that trace.h names; each appends sequences to a trace or says what is wrong with a file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "measure/trace.h"

namespace carpool {

// What files of one trace must agree on; the first sets it.
class TraceBuilder {
 public:
  explicit TraceBuilder(int n_experts) : asked_(n_experts) {}

  // Reads one file, whatever its format.
  void add_file(const std::string& path);
  Trace finish();

 private:
  void add_own(const std::string& path, const std::string& text);
  void add_own_token(const JsonObject& line, TraceSequence& s);
  void add_fingerprint(const std::string& path, const std::string& text);
  void add_esft(const std::string& folder, const std::map<int, std::string>& files);
  void add_token_lines(const std::string& path, const std::string& text);
  void add_npy(const std::string& path, const std::string& bytes);
  // The shape of the first file, or the same again.
  void expect(const std::string& where, int top_k, const std::vector<int>& layers, bool ranked);
  void check_expert(const std::string& where, int64_t expert);

  int asked_ = 0, highest_ = -1;
  bool told_ = false;  // n_experts comes from a file
  bool shaped_ = false;
  std::map<std::string, std::map<int, std::string>> esft_;  // folder -> layer -> file, read when all are known
  Trace trace_;
};

}  // namespace carpool
