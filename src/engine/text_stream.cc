// Holding back what a stop string may claim. See text_stream.h.
#include "engine/text_stream.h"

#include <algorithm>

namespace carpool {

TextStream::TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops, bool include_stop, bool skip_special,
                       std::vector<int> show_special)
    : stops_(std::move(stops)), include_stop_(include_stop) {
  if (tokenizer) decoder_ = std::make_unique<StreamDecoder>(*tokenizer, skip_special, std::move(show_special));
}

std::string TextStream::release() {
  // The first to be complete, so that it does not matter in which pieces the text came.
  size_t first = 0, end = std::string::npos;
  const std::string* found = nullptr;
  for (const std::string& stop : stops_) {
    const size_t at = pending_.find(stop);
    if (at == std::string::npos || at + stop.size() > end || (at + stop.size() == end && at >= first)) continue;
    first = at;
    end = at + stop.size();
    found = &stop;
  }
  if (found) {
    stopped_ = true;
    matched_ = *found;
    return pending_.substr(0, include_stop_ ? end : first);
  }
  size_t held = 0;  // longest suffix that is a proper prefix of a stop string
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n) {
      if (pending_.compare(pending_.size() - n, n, stop, 0, n) == 0) held = n;
    }
  }
  std::string out = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, out.size());
  return out;
}

std::string TextStream::push(int token) {
  if (!decoder_ || stopped_) return "";
  pending_ += decoder_->push(token);
  return release();
}

std::string TextStream::finish() {
  if (!decoder_ || stopped_) return "";
  pending_ += decoder_->finish();
  std::string out = release();
  if (!stopped_) out += pending_;
  pending_.clear();
  return out;
}

}  // namespace carpool
