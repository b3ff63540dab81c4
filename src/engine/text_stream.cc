#include "engine/text_stream.h"

#include <algorithm>

namespace carpool {

TextStream::TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops) : stops_(std::move(stops)) {
  if (tokenizer) decoder_ = std::make_unique<StreamDecoder>(*tokenizer, /*skip_special=*/true);
}

std::string TextStream::release() {
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, pending_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    return pending_.substr(0, first);
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
