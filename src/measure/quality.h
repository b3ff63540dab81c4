// What a policy costs in quality: teacher-forced on fixed text, batched as decode.
//
// Owns the document set and what the A/B reports of a pass over it (lockstep.h). Never uses generated text.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "measure/lockstep.h"
#include "measure/result.h"
#include "text/tokenizer.h"

namespace carpool {

struct TextOptions {
  int documents = 64;
  int tokens = 256;  // per document
};

// A text in its documents. Lines of "---" alone (LF or CRLF) separate them, wherever they stand; the line end before a
// separator belongs to it, and empty documents are left out.
struct SplitText {
  bool list = false;  // there was a separator
  std::vector<std::string_view> documents;
};
SplitText split_documents(std::string_view text);

// The documents of a file: of a name ending in .jsonl the member "text" of every line, else split_documents.
class DocumentFile {
 public:
  // Error{kMissing}, and kMalformed naming the line of a .jsonl file that is no object with a text.
  explicit DocumentFile(const std::string& path);
  bool list() const { return list_; }
  const std::vector<std::string>& documents() const { return documents_; }

 private:
  bool list_ = false;
  std::vector<std::string> documents_;
};

// Cuts documents from text files: of a list (DocumentFile) each document's beginning, any other text into stretches.
// Documents shorter than `tokens` are left out. Error{kUsage} naming both numbers when too few remain.
Documents read_documents(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const TextOptions& options);

// The first `tokens` tokens of up to `count` documents, `stretch` tokens apart in a text that is no list.
Documents read_starts(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const TextOptions& options,
                      int stretch);

struct QualityRun {
  std::vector<Quality> quality;          // per policy
  std::vector<RoutingCounters> routing;  // per policy, all steps
};

// Documents are taken in order, `batch` at a time. Error{kUsage} when they do not fill the last batch, so that all
// batch sizes score the same text, or do not fit the context; kMalformed when logits are not finite. `progress` gets
// the share done.
QualityRun teacher_forced(Model& model, const std::vector<const Policy*>& policies, const Documents& documents,
                          int batch, const std::function<void(double)>& progress = {});

}  // namespace carpool
