#include "measure/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "measure/lines.h"

namespace carpool {

SplitText split_documents(std::string_view text) {
  SplitText out;
  size_t begin = 0;  // of the document under way
  const auto take = [&](size_t end) {
    if (end > begin) out.documents.push_back(text.substr(begin, end - begin));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t newline = text.find('\n', at);
    const size_t next = newline == std::string_view::npos ? text.size() : newline + 1;
    const std::string_view line = text.substr(at, next - at);
    if (line == "---\n" || line == "---\r\n" || line == "---") {
      size_t end = at;
      if (end > begin) --end;  // the newline before the separator
      if (end > begin && text[end - 1] == '\r') --end;
      take(end);
      out.list = true;
      begin = next;
    }
    at = next;
  }
  take(text.size());
  return out;
}

DocumentFile::DocumentFile(const std::string& path) {
  const std::string text = read_text_file(path);
  if (!path.ends_with(".jsonl")) {
    const SplitText split = split_documents(text);
    list_ = split.list;
    documents_.assign(split.documents.begin(), split.documents.end());
    return;
  }
  list_ = true;
  for_each_line(text, [&](const Line& line) {
    const std::string where = line.where(path);
    const json::value value = parse_json(line.text, where);
    documents_.push_back(JsonObject(value, where).string("text"));
  });
}

Documents read_starts(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const TextOptions& options,
                      int stretch) {
  CARPOOL_CHECK(options.tokens > 0 && stretch >= options.tokens);
  const auto length = static_cast<size_t>(options.tokens);
  Documents documents;
  const auto full = [&] { return documents.size() == static_cast<size_t>(options.documents); };
  for (const std::string& path : paths) {
    const DocumentFile file(path);
    for (size_t d = 0; d < file.documents().size() && !full(); ++d) {
      const std::vector<int> ids = tokenizer.encode(file.documents()[d], false, false);
      for (size_t i = 0; i + length <= ids.size() && !full(); i += static_cast<size_t>(stretch)) {
        documents.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(i),
                               ids.begin() + static_cast<std::ptrdiff_t>(i + length));
        if (file.list()) break;
      }
    }
  }
  return documents;
}

Documents read_documents(const Tokenizer& tokenizer, const std::vector<std::string>& paths,
                         const TextOptions& options) {
  Documents documents = read_starts(tokenizer, paths, options, options.tokens);
  if (documents.size() < static_cast<size_t>(options.documents)) {
    throw Error(ErrorKind::kUsage, fmt::format("the text gives {} documents of {} tokens, {} are needed",
                                               documents.size(), options.tokens, options.documents));
  }
  return documents;
}

QualityRun teacher_forced(Model& model, const std::vector<const Policy*>& policies, const Documents& documents,
                          int batch, const std::function<void(double)>& progress) {
  const std::vector<LockstepRun> runs = decode_in_step(model, policies, documents, {batch, {0}, progress, nullptr});
  QualityRun out;
  for (size_t p = 1; p < runs.size(); ++p) {
    const LockstepRun& run = runs[p];
    Quality q;
    q.documents = static_cast<int>(run.loss.size());
    q.tokens = run.predictions;
    q.cross_entropy = mean(run.loss);  // by document: the same bits at every batch
    q.kl_mean = mean(run.kl);
    q.top1_agreement = mean(run.agree);
    std::vector<double> delta = run.loss;
    for (size_t d = 0; d < delta.size(); ++d) delta[d] -= runs[0].loss[d];
    q.cross_entropy_delta = bootstrap(delta, mean);
    out.quality.push_back(q);
    out.routing.push_back(run.routing);
  }
  return out;
}

}  // namespace carpool
